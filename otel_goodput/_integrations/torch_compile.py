"""Record the compilations of ``torch.compile``, from the callbacks of TorchDynamo.

They are called when the first compilation of all threads begins, and when the last ends: those at once are one phase.
A PyTorch without these callbacks (before 2.4) records nothing.

Why a function is compiled again is what TorchDynamo has put into ``guard_failures`` just before. Whether a cache had
the compiled code is seen in its ``counters``: AOTAutograd's cache has all that follows the trace, that of Inductor the
code of a graph. Both are read only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any, Final

from opentelemetry.util import types

from otel_goodput._recording.compile_phases import CompilePhase
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import containing
from otel_goodput._text.redact import printable
from otel_goodput.semconv import GOODPUT_COMPILE_CACHE_HIT, GOODPUT_COMPILE_REASON, GOODPUT_COMPILE_RECOMPILATION

FARTHEST: Final = 24  # frames between a callback and the code that is compiled
WRAPPERS: Final = "external_utils.py"  # of TorchDynamo, with a function that calls a module
LONGEST: Final = 200  # characters of a reason
NOTED: Final = 4  # functions whose reasons are notes of the run
# Of TorchDynamo's counters: the cache, and what it counts, that of the whole first.
CACHES: Final = (
    ("aot_autograd", "autograd_cache_hit", "autograd_cache_miss"),
    ("inductor", "fxgraph_cache_hit", "fxgraph_cache_miss"),
)
_COMPILE_ID: Final = re.compile(r"^\[?!?\d+/\d+\S*: ")
DYNAMO: Final = "DYNAMO"  # a function is compiled; other triggers are further work for one that was


def install(tracer: PhaseTracer) -> Callable[[], None] | None:
    """Listen to TorchDynamo from now on. Return what ends it, or None while it is still being imported."""
    dynamo = sys.modules.get("torch._dynamo")
    handler = getattr(sys.modules.get("torch._dynamo.callback", dynamo), "callback_handler", None)
    if handler is None:
        # A module that is being imported says so.
        return None if getattr(getattr(dynamo, "__spec__", None), "_initializing", False) else lambda: None
    return Listener(tracer, handler).remove


class Listener:
    """The callbacks at TorchDynamo's `handler`. None of them raises: an error would abort the user's compilation."""

    def __init__(self, tracer: PhaseTracer, handler: Any) -> None:
        self._tracer = tracer
        self._handler = handler
        self._open: CompilePhase | None = None
        self._reason = ""
        self._reasons: dict[CodeType, int] = {}  # how many were there of a function when it was compiled last
        self._counted: tuple[int, ...] = ()  # by its caches, when it began
        self._title = ""  # of what is compiled in it, empty if it is counted already
        self._done: list[tuple[CompilePhase, int, types.Attributes]] = []
        self._compiled: set[str] = set()
        self._closed = False
        self._register()
        handler.clear = self._cleared
        tracer.hooks.at_tick(self.tick)

    def _register(self) -> None:
        self._handler.register_start_callback(self._begin)
        self._handler.register_end_callback(self._end)

    def _cleared(self) -> None:
        """Clear the callbacks, as ``torch._dynamo.reset()`` does, but for ours."""
        try:
            type(self._handler).clear(self._handler)
        finally:
            if not self._closed:
                self._register()

    # Called with what triggered it, in PyTorch 2.7 and later.

    def _begin(self, *arguments: Any) -> None:
        if self._closed or self._open is not None:
            return
        with containing("compile callback"):
            trigger = getattr(getattr(arguments[0], "callback_trigger", None), "name", DYNAMO) if arguments else DYNAMO
            function, bound = _compiled(sys._getframe(1))
            self._title, self._reason = "", ""
            if trigger == DYNAMO and function:
                self._title = self._tracer.compilations.title(function, bound)
                self._reason = self._newest_reason(bound[0])
            self._counted = _cached()
            # Other triggers come from threads of autograd, which the thread that trains waits for.
            blocking = None if trigger == DYNAMO else True
            self._open = self._tracer.compilations.begin(function, self._tracer.clock(), blocking)

    def _end(self, *_: Any) -> None:
        phase, self._open = self._open, None
        if phase is None:
            return
        with containing("compile callback"):
            now, title = self._tracer.clock(), self._title
            if not phase.aside and self._tracer.hooks.device is not None:
                self._tracer.hooks.device.compiled(now)
            again = title in self._compiled
            if title:
                self._compiled.add(title)
            attributes: dict[str, types.AttributeValue] = {GOODPUT_COMPILE_RECOMPILATION: True} if again else {}
            if again and self._reason:
                attributes[GOODPUT_COMPILE_REASON] = self._reason
                self._explain(title)
            if (hit := _hit(self._counted, _cached())) is not None:
                self._tracer.hooks.compile_cache.add(hit=hit)
                attributes[GOODPUT_COMPILE_CACHE_HIT] = hit
            if self._tracer.compilations.end(phase, now, title):
                self._done.append((phase, now, attributes))

    def _newest_reason(self, code: object) -> str:
        """Return why the function with this code is compiled again; empty if TorchDynamo does not tell."""
        failures = getattr(sys.modules.get("torch._dynamo.utils"), "guard_failures", None)
        if not isinstance(failures, Mapping) or not isinstance(code, CodeType) or code not in failures:
            return ""
        reasons = failures[code]
        before, self._reasons[code] = self._reasons.get(code, 0), len(reasons)
        newest = reasons[before:] if before < len(reasons) else reasons[-1:]  # TorchDynamo was reset meanwhile
        return _plain(str(newest[0])) if newest else ""

    def _explain(self, title: str) -> None:
        """Have reports and incidents say why `title` was compiled again."""
        known = self._tracer.hooks.recompiled
        if title in known or len(known) < NOTED:
            known[title] = self._reason
            self._tracer.account.notes.add(f"recompiled {title}", f"{title} was compiled again: {self._reason}")

    def tick(self) -> None:
        """Export the compilations that are done."""
        while self._done:
            try:
                done = self._done.pop()
            except IndexError:  # another thread was quicker
                return
            self._tracer.compilations.emit(*done)

    def remove(self) -> None:
        """Stop listening."""
        self._closed = True
        self._end()
        self.tick()
        self._tracer.hooks.not_at_tick(self.tick)
        if self._handler.__dict__.get("clear") == self._cleared:
            del self._handler.clear
        with suppress(ValueError):  # somebody has removed all
            self._handler.remove_start_callback(self._begin)
        with suppress(ValueError):
            self._handler.remove_end_callback(self._end)


def _plain(reason: str) -> str:
    """Return the first line of a reason, without the number of the compilation and what follows in a comment."""
    lines = _COMPILE_ID.sub("", reason.strip()).splitlines()
    line = printable(lines[0].partition("  #")[0].strip()) if lines else ""
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _cached() -> tuple[int, ...]:
    """Return the hits and misses of each cache so far; empty if they are not counted."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    if not isinstance(counters, Mapping):
        return ()
    by_cache = [(dict(counters.get(name, {})), names) for name, *names in CACHES]
    return tuple(int(counts.get(name, 0)) for counts, names in by_cache for name in names)


def _hit(before: Sequence[int], now: Sequence[int]) -> bool | None:
    """Return whether a cache had what was compiled since `before`; None if none was asked."""
    if len(before) != len(now):
        return None
    since = [later - earlier for earlier, later in zip(before, now, strict=True)]
    for hits, misses in zip(since[::2], since[1::2], strict=True):
        if hits > 0 and misses <= 0:
            return True
    return False if any(each > 0 for each in since) else None


def _compiled(frame: FrameType | None) -> tuple[str, tuple[object, ...]]:
    """Return the name of what TorchDynamo compiles in a frame around `frame`, and its code with what that is bound to.

    The name is empty if that cannot be found. A module is called through a function of TorchDynamo's, bound to it.
    """
    code: CodeType | None = None
    for _ in range(FARTHEST):
        if frame is None:
            break
        names = frame.f_code.co_varnames
        if frame.f_code.co_filename.endswith("convert_frame.py"):
            if code is None and "code" in names and isinstance(local := frame.f_locals.get("code"), CodeType):
                code = local
            if code is not None and "frame" in names and (called := frame.f_locals.get("frame")) is not None:
                return _named(code, called)
        frame = frame.f_back
    return ("", ()) if code is None else (code.co_name, (code,))


def _named(code: CodeType, called: Any) -> tuple[str, tuple[object, ...]]:
    """Return the name of the frame `called`, which runs `code`, and that code with what it is bound to."""
    values = getattr(called, "f_locals", None) or {}
    held = tuple(cell.cell_contents for cell in getattr(called, "closure", None) or ())
    name = code.co_name
    if code.co_filename.endswith(WRAPPERS):
        module = next((each for each in held if callable(each)), None)
        module = getattr(module, "__self__", module)  # or its method
        name = getattr(module, "__name__", name if module is None else type(module).__name__)
    return name, (code, *held, values.get("self"))
