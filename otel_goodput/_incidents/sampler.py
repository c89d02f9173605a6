"""Takes samples of the Python stack of a thread, from another thread, and says which functions take the time.

A sample is taken when this thread gets the GIL, and a thread that computes in Python gives it up only after the
interpreter's switch interval, of 5 ms: code that computes for shorter would hardly be seen beside code that waits. So
the interval is shorter while samples are taken, unless the program has set one itself.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType
from typing import Final, cast

from otel_goodput._journal.profiles import GREW, ROWS, Function, Grown

# The code and the line of each frame, one after another, from the innermost frame on. One tuple: objects that are held
# have the garbage collector look at all there are.
Stack = tuple[CodeType | int, ...]

DEPTH: Final = 100  # frames of a sample, from the innermost one
STACKS: Final = 4096  # different ones that are held; the samples of further ones are not
_USUAL_S: Final = 0.005  # the interpreter's switch interval, unless it is set
_SHORT_S: Final = 0.0005  # who waits for the GIL looks that often: a shorter one costs more where it is held for long
_MILLION: Final = 1_000_000
LEAST: Final = 20_000  # of a million: a function whose share grew by less did not grow;
CERTAIN: Final = 4.0  # nor if it is not so many times the statistical error
NEARLY: Final = 0.6  # of the largest growth: so much has the function that explains it


class Stacks:
    """Samples of a thread's stack."""

    def __init__(self) -> None:
        self.samples = 0
        self.counts: Counter[Stack] = Counter()

    def take(self, thread: int) -> None:
        """Take a sample of the thread with this identity, if it is there."""
        frame = sys._current_frames().get(thread)
        if frame is None:
            return
        stack: list[CodeType | int] = []
        while frame is not None and len(stack) < 2 * DEPTH:
            stack.append(frame.f_code)
            stack.append(frame.f_lineno)
            frame = frame.f_back
        self.samples += 1
        key = tuple(stack)
        if key in self.counts or len(self.counts) < STACKS:
            self.counts[key] += 1


def sample(
    thread: Callable[[], int | None], each_s: float, stop: threading.Event, over: Callable[[int], bool]
) -> Stacks:
    """Take samples every `each_s` seconds until `over`, which is given their number, or `stop` is set."""
    stacks = Stacks()
    next_one = time.monotonic()
    with attentive():
        while not over(stacks.samples):
            if (identity := thread()) is not None:
                stacks.take(identity)
            next_one = max(next_one + each_s, time.monotonic())
            if stop.wait(max(0.0, next_one - time.monotonic())):
                break
    return stacks


_attending = threading.Lock()


@contextmanager
def attentive() -> Iterator[None]:
    """Shorten the interpreter's switch interval, if it is the usual one, and set it back."""
    shortened = shorten()
    try:
        yield
    finally:
        set_back(shortened)


def shorten() -> bool:
    """Shorten the interpreter's switch interval if it is the usual one; return whether it was."""
    with _attending:
        usual = abs(sys.getswitchinterval() - _USUAL_S) < 1e-9
        if usual:
            sys.setswitchinterval(_SHORT_S)
        return usual


def set_back(shortened: bool) -> None:
    """Set it back if it was `shortened`, and nobody has set another one since."""
    with _attending:
        if shortened and abs(sys.getswitchinterval() - _SHORT_S) < 1e-9:
            sys.setswitchinterval(_USUAL_S)


def frames_of(stack: Stack) -> list[tuple[CodeType, int]]:
    """Return the code and the line of each frame, from the innermost one on."""
    return cast("list[tuple[CodeType, int]]", [*zip(stack[::2], stack[1::2], strict=True)])


class _Sums:
    """Samples by function: own, in all, depth from the outermost, and by line."""

    def __init__(self, stacks: Stacks) -> None:
        self.own: Counter[CodeType] = Counter()
        self.total: Counter[CodeType] = Counter()
        self.depths: Counter[CodeType] = Counter()
        self.lines: dict[CodeType, Counter[int]] = {}
        self.samples = max(1, sum(stacks.counts.values()))
        for stack, count in stacks.counts.items():
            frames = frames_of(stack)
            self.own[frames[0][0]] += count
            seen = set()
            for height, (code, line) in enumerate(frames):
                if code not in seen:
                    seen.add(code)
                    self.total[code] += count
                    self.depths[code] += count * (len(frames) - height)
                    self.lines.setdefault(code, Counter())[line] += count

    def line(self, code: CodeType) -> int:
        """Where the function was most often."""
        return self.lines[code].most_common(1)[0][0] or code.co_firstlineno


def functions(stacks: Stacks) -> tuple[Function, ...]:
    """Return the functions that took the most time, by their own time, then by all of it."""
    sums = _Sums(stacks)
    codes = sorted(sums.total, key=lambda code: (-sums.own[code], -sums.total[code], *_key(code)))[:ROWS]
    return tuple(
        Function(_name(code), code.co_filename, sums.line(code), sums.own[code], sums.total[code]) for code in codes
    )


def grown(stacks: Stacks, baseline: Stacks) -> tuple[Grown, ...]:
    """Return the functions whose share of the time is certainly larger than in the baseline.

    The first explains most: the innermost one, of the program's own if one is, that grew nearly as much as any.
    """
    now, before = _Sums(stacks), _Sums(baseline)
    earlier: Counter[tuple[str, str, int]] = Counter()  # code objects may be made anew
    for code, count in before.total.items():
        earlier[_key(code)] += count
    shares = {}
    for code, count in now.total.items():
        share, old = count / now.samples, min(1.0, earlier[_key(code)] / before.samples)
        pooled = (count + old * before.samples) / (now.samples + before.samples)
        error = (pooled * (1 - min(1.0, pooled)) * (1 / now.samples + 1 / before.samples)) ** 0.5
        if share - old >= max(LEAST / _MILLION, CERTAIN * error) > 0:
            shares[code] = share, old
    if not shares:
        return ()
    most = max(share - old for share, old in shares.values())
    # A function that is called from everywhere, and one that calls it, may both grow: the innermost says most.
    level = {code: now.depths[code] / now.total[code] for code in shares}
    nearly = [code for code, (share, old) in shares.items() if share - old >= NEARLY * most]
    inner = max(nearly, key=lambda code: level[code])
    own = [code for code in nearly if is_own(code.co_filename)]
    first = max(own, key=lambda code: level[code]) if own else inner
    others = sorted(shares.keys() - {first}, key=lambda code: (shares[code][1] - shares[code][0], -level[code]))
    return tuple(
        Grown(
            _name(code),
            code.co_filename,
            now.line(code),
            f"{_name(inner)} ({inner.co_filename}:{now.line(inner)})" if code is first is not inner else "",
            *(round(_MILLION * part) for part in shares[code]),
        )
        for code in [first, *others][:GREW]
    )


def _name(code: CodeType) -> str:
    return str(getattr(code, "co_qualname", code.co_name))


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, _name(code), code.co_firstlineno


@lru_cache(1024)
def is_own(file: str) -> bool:
    """Whether a file is the program's: not of the standard library, an installed package, or the interpreter."""
    return not file.startswith((*_installed(), "<")) and not {"site-packages", "dist-packages"} & {*file.split("/")}


@lru_cache(1)
def _installed() -> tuple[str, ...]:
    places = sysconfig.get_paths()
    own = __file__.rpartition("/_incidents/")[0]
    return (own, *(places[name] for name in ("stdlib", "platstdlib", "purelib", "platlib") if places.get(name)))
