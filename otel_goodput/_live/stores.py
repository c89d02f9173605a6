"""The key-value stores that distributed runtimes keep for a job, for as long as they are initialized.

Nothing is imported here, nobody is waited for, and there is no collective operation. A call may hang if the process
that serves the store does: it is given up after a while.
"""

from __future__ import annotations

import atexit
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

from otel_goodput._runtime.guard import containing, report_once

T = TypeVar("T")

PATIENCE_S: Final = 5.0
LAST_S: Final = 1.0  # for calls to return at the end of the process
CONNECTING_S: Final = 60.0  # for a connection: hundreds of ranks may want one at once
# A connection of each rank more is to one process, which needs its files for others, too.
FILES_OF_A_RANK: Final = 4
FILES: Final = 256


class Store(Protocol):
    """A key-value store. Its methods may hang, and raise errors of its own."""

    name: str

    def get(self, key: str) -> bytes:
        """Return what is stored; empty if nothing is."""

    def set(self, key: str, data: bytes) -> None:
        """Store it, in place of what was stored."""

    def several(self, folder: str, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of those in `folder` that exist, and perhaps of others there."""


class JaxStore:
    """That of ``jax.distributed``. The client is not kept, because its end is that of the connection."""

    name = "jax"

    @staticmethod
    def client() -> Any:
        """The client of this process; None if jax is not imported, or not initialized as one process of several.

        Whoever uses it before it is connected, or while it is shut down, ends the processes of the job: the service
        takes the call for one of a process that has restarted. jax sets the client first, and what watches for
        preemptions after it has connected, and removes that first.
        """
        state: Any = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
        client = getattr(state, "client", None)
        connected = getattr(state, "preemption_sync_manager", None) is not None
        return client if connected and hasattr(client, "key_value_dir_get_bytes") else None

    def _client(self) -> Any:
        client = self.client()
        if client is None:
            raise ConnectionError("jax.distributed has been shut down")
        return client

    def get(self, key: str) -> bytes:
        try:
            return bytes(self._client().key_value_try_get_bytes(key))
        except Exception as error:  # jax has renamed its class
            if "NOT_FOUND" in str(error):
                return b""
            raise

    def set(self, key: str, data: bytes) -> None:
        self._client().key_value_set_bytes(key, data, allow_overwrite=True)

    def several(self, folder: str, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for key, data in self._client().key_value_dir_get_bytes(f"{folder}/"):
            yield key.rpartition("/")[2], data


class TorchStore:
    """That of ``torch.distributed``, through a connection of its own: calls of one connection wait for each other.

    Only a ``TCPStore``: a ``FileStore`` grows by all that is ever set, and a ``HashStore`` is of one process.
    """

    name = "torch"

    def __init__(self, served: Any) -> None:
        self.served = served
        self._connecting = threading.Lock()
        self._connection: Any = None
        self._broken = False
        self._there: set[str] = set()  # keys that are known to exist

    @staticmethod
    def serving() -> Any:
        """The store that the process group of this process uses; None if there is none, or none of use.

        None also if the limit on open files is low: the process that serves it gets a connection more of each rank.
        """
        module: Any = sys.modules.get("torch.distributed")
        inner: Any = sys.modules.get("torch.distributed.distributed_c10d")
        if module is None or inner is None or not (module.is_available() and module.is_initialized()):
            return None
        store = inner._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        if type(store).__name__ != "TCPStore":
            return None
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        needed = FILES + FILES_OF_A_RANK * module.get_world_size()
        if most != resource.RLIM_INFINITY and most < needed:
            report_once(
                "rank channel files",
                "what the ranks do is not exchanged through the store of torch.distributed: it would need more "
                "connections, and the limit on open files is %d; raise it to %d (ulimit -n)",
                most,
                needed,
            )
            return None
        return store

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Yield the connection. Once broken, it is not made again: torch reports each failure at length on stderr."""
        if self._broken:
            raise ConnectionError("the connection is broken")
        try:
            with self._connecting:
                if self._connection is None:
                    host, port, patience = self.served.host, self.served.port, timedelta(seconds=CONNECTING_S)
                    self._connection = type(self.served)(host, port, None, False, patience, wait_for_workers=False)
                    self._connection.set_timeout(timedelta(seconds=PATIENCE_S))
            yield self._connection
        except Exception:
            self._broken = True
            raise

    def get(self, key: str) -> bytes:
        with self._connected() as store:
            return bytes(store.get(key)) if store.check([key]) else b""

    def set(self, key: str, data: bytes) -> None:
        with self._connected() as store:
            store.set(key, data)

    def several(self, folder: str, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        keys = {f"{folder}/{name}": name for name in names}
        with self._connected() as store:
            unknown = keys.keys() - self._there
            if unknown and store.check([*unknown]):
                self._there |= unknown
            else:
                self._there.update(key for key in unknown if store.check([key]))
            # It would wait for a key that does not exist.
            known = [key for key in keys if key in self._there]
            contents = store.multi_get(known) if known else []
        for key, data in zip(known, contents, strict=True):
            yield keys[key], bytes(data)


class Patience:
    """Makes calls that may hang in a thread of their own, one at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], T]) -> T:
        """Return what `function` returns, and raise what it raises.

        Raises TimeoutError if it, or one before it, hangs, and Ending at the end of the process.
        """
        if self._thread is not None and self._thread.is_alive():
            raise TimeoutError("an earlier call has not returned yet")
        results: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(function())
            except Exception as error:
                errors.append(error)

        self._thread = thread = _calls.start(run)
        thread.join(PATIENCE_S)
        for error in errors:
            raise error
        if not results:
            raise TimeoutError(f"it has not answered within {PATIENCE_S:.0f} s")
        return results[0]


class Ending(Exception):
    """The process ends: the store is not called any more."""


class _Calls:
    """The threads that are in a call.

    One that returns while the interpreter ends would abort the process: Python ends it in the middle of C++. So there
    are no calls by then.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._ended = False

    def start(self, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, name="otel-goodput-store", daemon=True)
        with self._changing:
            if self._ended:
                raise Ending
            self._threads = {each for each in self._threads if each.is_alive()} | {thread}
            thread.start()
        return thread

    def end(self) -> None:
        with self._changing:
            self._ended = True
        until = time.monotonic() + LAST_S
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))


_calls = _Calls()
# Registered before a recorder can be: what is called at exit last is registered first, and the recorder's last message
# goes out at exit.
atexit.register(_calls.end)


def _forget_calls() -> None:
    global _calls
    _calls = _Calls()


# After a fork, only the parent has the threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_calls)


def current_store(before: Store | None) -> Store | None:
    """Return the store of the runtime that is initialized now: `before`, if it is still that one; else None."""
    with containing("store of the distributed runtime"), suppress(ValueError):  # the group is just being destroyed
        if JaxStore.client() is not None:
            return before if isinstance(before, JaxStore) else JaxStore()
        if (served := TorchStore.serving()) is not None:
            return before if isinstance(before, TorchStore) and before.served is served else TorchStore(served)
    return None
