"""Ports on which nobody listens yet: held for one that comes soon, or for one that goes and comes back."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Not of those that the system gives to connections: collectors make many, and one that was killed wants its port back.
_ports = iter(random.SystemRandom().sample(range(10_000, 32_000), 4_000))


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port where nobody listens, and that nobody but who asks for it by number is given meanwhile."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def free_address() -> str:
    """An address of loopback on which nobody listens, for processes that are killed and listen there again."""
    for port in _ports:
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return f"127.0.0.1:{port}"
    raise AssertionError("no port is free")
