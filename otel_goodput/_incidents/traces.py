"""Traces by jax's and PyTorch's own profilers, begun and ended in a background thread.

Each library has one profiler. If the program uses it already, nothing is begun; and if the program begins a trace of
its own meanwhile, ours gives way at once, so that the program's works as if there had been none. jax's Python tracer,
which would run on the training thread with every call, is off.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from otel_goodput._integrations.markers import jax_started
from otel_goodput._journal.profiles import JAX, TORCH
from otel_goodput._runtime import files

FILE: Final = "torch.trace.json"
GIVE_WAY_S: Final = 5.0  # for our trace by PyTorch's profiler to end before the program's begins
TRACES: Final = 8  # of a process that are kept
BYTES: Final = 512 * files.MIB  # of them together, beside the latest one
DEEP: Final = 8  # folders in a trace


class Unavailable(Exception):
    """A trace cannot be taken, for the reason that the text says."""


class Trace(Protocol):
    """A trace that goes on."""

    @property
    def disturbed(self) -> bool: ...  # the program has begun one of its own

    def stop(self) -> bool: ...  # ends it, and writes it; whether there is something


def used() -> str:
    """Return the profiler of the library that this process trains with, if it has one."""
    if jax_started():
        return JAX
    return TORCH if hasattr(sys.modules.get("torch"), "profiler") else ""


def begin(kind: str, folder: Path) -> Trace:
    """Begin a trace that is written to `folder`. Raises Unavailable."""
    return _BEGIN[kind](folder)


class _JaxTrace:
    """A trace of jax's profiler. While it goes on, jax's record of its session is of a class that lets us give way."""

    def __init__(self, folder: Path) -> None:
        jax, internal = sys.modules.get("jax"), sys.modules.get("jax._src.profiler")
        self._state = state = getattr(internal, "_profile_state", None)
        if jax is None or not jax_started():
            raise Unavailable("jax is not in use")
        options = getattr(jax.profiler, "ProfileOptions", None)
        if state is None or options is None or not hasattr(state, "profile_session"):
            raise Unavailable("this version of jax has no profiler that can be used beside the program's")
        if state.profile_session is not None:
            raise Unavailable("the program takes a trace with jax's profiler")
        chosen = options()
        chosen.python_tracer_level = 0
        try:
            jax.profiler.start_trace(str(folder), profiler_options=chosen)
        except RuntimeError as error:
            raise Unavailable(f"jax's profiler cannot begin: {error}") from error
        self._stop = jax.profiler.stop_trace
        self._plain = type(state)
        self._ours: Any = state.profile_session
        self._thread = threading.get_ident()
        self.disturbed = False
        state.__class__ = _yielding(self._plain, self)

    def give_way(self) -> Any:
        """Return the session that is to be seen by the thread that asks: ours is none of the program's business."""
        state: Any = self._state
        session = vars(state).get("profile_session")
        if threading.get_ident() == self._thread or session is not self._ours:
            return session
        self.disturbed = True
        state.__class__ = self._plain
        state.profile_session = None
        with suppress(Exception):
            session.stop()
        return None

    def stop(self) -> bool:
        state: Any = self._state
        if not self.disturbed and vars(state).get("profile_session") is self._ours:
            with suppress(RuntimeError):  # the program has begun its own at this moment
                self._stop()
        if type(state) is not self._plain:
            state.__class__ = self._plain
        return not self.disturbed


def _yielding(plain: type, trace: _JaxTrace) -> type:
    def get(_: Any) -> Any:
        return trace.give_way()

    def put(state: Any, session: Any) -> None:
        vars(state)["profile_session"] = session

    return type(plain.__name__, (plain,), {"profile_session": property(get, put)})


class _TorchTrace:
    """A trace of PyTorch's profiler, of all threads, by its inner class: the outer one imports the compiler."""

    def __init__(self, folder: Path) -> None:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "profiler"):
            raise Unavailable("PyTorch is not in use")
        inner = torch.autograd.profiler
        if getattr(inner, "_is_profiler_enabled", False):
            raise Unavailable("the program takes a trace with PyTorch's profiler")
        try:
            everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        except (AttributeError, TypeError) as error:
            raise Unavailable("this version of PyTorch profiles only the thread that begins a trace") from error
        self._file = folder / FILE
        self.disturbed = False
        self._over = threading.Event()
        self._thread = threading.get_ident()
        self._profiled, self._name = inner.profile, "_prepare_trace"
        if not callable(prepare := getattr(inner.profile, self._name, None)):
            raise Unavailable("this version of PyTorch has a profiler that is not known here")
        self._prepare: Callable[..., Any] = prepare
        device = "cuda" if torch.cuda.is_available() else None
        try:
            self._profile = inner.profile(use_device=device, use_kineto=True, experimental_config=everywhere)
            self._profile.__enter__()
        except (RuntimeError, TypeError) as error:
            raise Unavailable(f"PyTorch's profiler cannot begin: {error}") from error
        self._wrapper = self._watching()
        setattr(inner.profile, self._name, self._wrapper)

    def _watching(self) -> Callable[..., Any]:
        prepare = self._prepare

        def wait_for_ours(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                self.disturbed = True
                self._over.wait(GIVE_WAY_S)
            return prepare(*args, **kwargs)

        return wait_for_ours

    def stop(self) -> bool:
        if getattr(self._profiled, self._name, None) is self._wrapper:
            setattr(self._profiled, self._name, self._prepare)
        try:
            self._profile.__exit__(None, None, None)
        finally:
            self._over.set()
        if not self.disturbed:
            self._profile.export_chrome_trace(str(self._file))
        return not self.disturbed


_BEGIN: Final[dict[str, Callable[[Path], Trace]]] = {JAX: _JaxTrace, TORCH: _TorchTrace}


# --- folders of traces ------------------------------------------------------------------------------------------------


def make_room(folder: Path, own: str) -> None:
    """Remove the oldest traces in `folder` whose names begin with `own`, until few and small enough are left.

    Raises OSError.
    """
    if not files.is_folder(folder):
        return
    names = sorted((name for name in files.names(folder) if name.startswith(own)), reverse=True)
    size = 0
    for at, name in enumerate(names):
        size += _size(folder / name)
        if at and (at >= TRACES or size > BYTES):
            _remove(folder / name)


def _size(place: Path, deep: int = DEEP) -> int:
    if place.is_symlink() or not files.is_folder(place):
        return files.version(place)[0]
    return sum(_size(place / name, deep - 1) for name in files.names(place)) if deep else 0


def _remove(place: Path, deep: int = DEEP) -> None:
    if place.is_symlink() or not files.is_folder(place):
        files.remove(place)
        return
    for name in files.names(place) if deep else ():
        _remove(place / name, deep - 1)
    files.remove_folder(place)
