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
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from statistics import median
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
SINGLE: Final = 2.0  # a turn that takes more than so many times as long as usual,
SINGLE_S: Final = 0.25  # and so long, s, is a single one that something happened in:
LATEST: Final = 15  # turns say what is usual
NEARLY: Final = 0.6  # of the largest growth: so much has the function that explains it


class Turns:
    """Knows whether the present turn of the loop takes about as long as others do.

    One in which something happens now and then, such as an evaluation, may fill a profile by chance, and tells nothing
    of why all turns have become longer.

    Args:
        step: returns the number of the step that began last.
    """

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self._number, self._since = -1, 0.0
        self._latest = deque[float](maxlen=LATEST)  # s

    def usual(self) -> bool:
        """Look at it; whether it does."""
        now, number = time.monotonic(), self._step()
        if number != self._number:
            if 0 <= self._number < number:
                self._latest.append((now - self._since) / (number - self._number))
            self._number, self._since = number, now
        return not self._latest or now - self._since <= SINGLE * median(self._latest) + SINGLE_S


class Stacks:
    """Samples of a thread's stack: how often each was there, and how often in a turn of the usual length."""

    def __init__(self) -> None:
        self.samples = 0
        self.counts: Counter[Stack] = Counter()
        self.usual: Counter[Stack] = Counter()

    def take(self, thread: int, *, usual: bool = True) -> None:
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
            if usual:
                self.usual[key] += 1


def sample(
    thread: Callable[[], int | None],
    each_s: float,
    stop: threading.Event,
    over: Callable[[int], bool],
    usual: Callable[[], bool] = lambda: True,
) -> Stacks:
    """Take samples every `each_s` seconds until `over`, which is given their number, or `stop` is set."""
    stacks = Stacks()
    next_one = time.monotonic()
    with attentive():
        while not over(stacks.samples):
            if (identity := thread()) is not None:
                stacks.take(identity, usual=usual())
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

    def __init__(self, counts: Counter[Stack]) -> None:
        self.own: Counter[CodeType] = Counter()
        self.total: Counter[CodeType] = Counter()
        self.depths: Counter[CodeType] = Counter()
        self.lines: dict[CodeType, Counter[int]] = {}
        self.samples = max(1, sum(counts.values()))
        for stack, count in counts.items():
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
    sums = _Sums(stacks.counts)
    codes = sorted(sums.total, key=lambda code: (-sums.own[code], -sums.total[code], *_key(code)))[:ROWS]
    return tuple(
        Function(_name(code), code.co_filename, sums.line(code), sums.own[code], sums.total[code]) for code in codes
    )


def grown(stacks: Stacks, baseline: Stacks) -> tuple[Grown, ...]:
    """Return the functions whose share of the time is certainly larger than in the baseline, in turns of usual length.

    The first explains most: the innermost one, of the program's own if one is, that grew nearly as much as any.
    """
    now, before = _Sums(stacks.usual), _Sums(baseline.usual)
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
