"""Ports on which nobody listens yet: held for one that comes soon, or for one that goes and comes back.

A port that is asked for and let go is anybody's: of another test, of another run at the same time. So each is bound, by
a socket that does not listen, for as long as it is wanted. Who asks for it by number, with SO_REUSEADDR as servers do,
may listen there as often as he likes; the system gives it to nobody else, neither to who asks for any port nor to a
connection.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


def _held() -> socket.socket:
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port where nobody listens, and that nobody but who asks for it by number is given meanwhile."""
    with _held() as held:
        yield int(held.getsockname()[1])


def kept_address() -> str:
    """Return such an address, held until this process ends: for processes that are killed and listen again."""
    held = _held()
    port = held.getsockname()[1]
    held.detach()  # stays open, and no object is there that could close it
    return f"127.0.0.1:{port}"
