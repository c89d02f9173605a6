"""Which functions take the time, and which of them grew, of stacks that are given."""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Sequence
from types import CodeType

import pytest

from otel_goodput._incidents import sampler
from otel_goodput._incidents.sampler import LATEST, Stacks, Turns, frames_of, functions, grown, is_own


def code(name: str, file: str = "/home/me/train.py") -> CodeType:
    namespace: dict[str, CodeType] = {}
    exec(compile(f"def {name}(): pass", file, "exec"), {}, namespace)
    return namespace[name].__code__  # type: ignore[attr-defined, no-any-return]


LIBRARY = f"{sysconfig.get_paths()['purelib']}/torch/nn.py"
MAIN, LOAD, STEP, HELPER = (code(name) for name in ("main", "load", "step", "helper"))
INNER = code("inner", LIBRARY)


def stacks(*of: tuple[int, Sequence[CodeType]]) -> Stacks:
    """So many samples of each stack, which is from the outermost function to the innermost, at line 7 of each."""
    made = Stacks()
    for count, codes in of:
        made.samples += count
        made.counts[tuple(part for one in reversed(codes) for part in (one, 7))] += count
    made.usual += made.counts
    return made


def test_functions_are_in_the_order_of_their_own_time() -> None:
    taken = stacks((60, [MAIN, STEP, INNER]), (30, [MAIN, LOAD]), (10, [MAIN]))
    rows = [(one.name, one.own, one.total) for one in functions(taken)]
    assert rows == [("inner", 60, 60), ("load", 30, 30), ("main", 10, 100), ("step", 0, 60)]
    assert functions(taken)[1][1:3] == ("/home/me/train.py", 7)


def test_one_that_calls_itself_counts_once() -> None:
    assert [(one.own, one.total) for one in functions(stacks((10, [MAIN, MAIN, MAIN])))] == [(10, 10)]


def test_what_grew_is_the_innermost_function_of_the_program() -> None:
    before = stacks((700, [MAIN, STEP]), (300, [MAIN, LOAD]))
    now = stacks((560, [MAIN, STEP]), (240, [MAIN, LOAD]), (200, [MAIN, LOAD, HELPER, INNER]))
    first, *others = grown(now, before)
    assert (first.name, first.place, first.share, first.before) == ("helper", "train.py:7", 200_000, 0)
    assert first.inner == f"inner ({LIBRARY}:7)"
    assert "inner" in [one.name for one in others]


def test_what_is_in_a_single_long_turn_by_chance_did_not_grow() -> None:
    """An evaluation that nothing tells of is in the profile; that turns take longer is not its fault."""
    before = stacks((700, [MAIN, STEP]), (100, [MAIN, LOAD]))
    now = stacks((140, [MAIN, STEP]), (60, [MAIN, LOAD]))
    now.counts[HELPER, 7, MAIN, 7] += 250
    now.samples += 250
    assert [one.name for one in grown(now, before)] == ["load"]
    assert "helper" in [one.name for one in functions(now)]


def test_a_turn_is_usual_as_long_as_it_takes_no_longer_than_twice_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    now, number = 100.0, 0
    monkeypatch.setattr(sampler.time, "monotonic", lambda: now)
    turns = Turns(lambda: number)
    for _ in range(20):
        now, number = now + 0.05, number + 1
        assert turns.usual()
    now += 0.3
    assert turns.usual()
    now += 3.0
    assert not turns.usual()
    for _ in range(LATEST):
        now, number = now + 1.0, number + 1
        turns.usual()
    now += 2.0
    assert turns.usual(), "all have become longer"


def test_nothing_grew_where_chance_explains_it() -> None:
    before = stacks((100, [MAIN, STEP]), (20, [MAIN, LOAD]))
    assert grown(stacks((980, [MAIN, STEP]), (240, [MAIN, LOAD])), before) == ()
    assert grown(stacks((1000, [MAIN, STEP]), (15, [MAIN, HELPER])), stacks((1000, [MAIN, STEP]))) == ()


def test_a_function_that_is_defined_again_is_the_same() -> None:
    assert grown(stacks((500, [MAIN, code("helper")])), stacks((500, [MAIN, HELPER]))) == ()


def test_many_different_stacks_take_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "STACKS", 3)
    monkeypatch.setattr(sampler, "DEPTH", 2)
    taken = Stacks()

    def deeper(depth: int) -> None:
        taken.take(threading.get_ident())
        if depth:
            [deeper(depth - 1) for _ in range(1)]
            deeper(depth - 1)

    deeper(3)
    assert len(taken.counts) <= 3 and taken.samples == 15
    assert all(len(frames_of(stack)) == 2 for stack in taken.counts)


def test_a_thread_that_is_gone_has_no_stack() -> None:
    taken = Stacks()
    taken.take(2**40)
    assert not taken.samples and functions(taken) == () and grown(taken, stacks((9, [MAIN]))) == ()


@pytest.mark.parametrize(("before", "during"), [(0.005, 0.0005), (0.02, 0.02)])
def test_the_switch_interval_is_set_back(before: float, during: float) -> None:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(before)
    seen: list[float] = []
    try:

        def over(samples: int) -> bool:
            seen.append(sys.getswitchinterval())
            return samples > 1

        sampler.sample(threading.get_ident, 0.0, threading.Event(), over)
        assert seen == pytest.approx([during] * 3) and sys.getswitchinterval() == pytest.approx(before)

        def meddling(_: int) -> bool:
            sys.setswitchinterval(0.01)
            return True

        sampler.sample(threading.get_ident, 0.0, threading.Event(), meddling)
        assert sys.getswitchinterval() == pytest.approx(0.01)
    finally:
        sys.setswitchinterval(usual)


def test_which_files_are_the_programs() -> None:
    assert is_own("/home/me/train.py") and is_own("train.py")
    assert not any(map(is_own, (LIBRARY, threading.__file__, sampler.__file__, "<frozen importlib._bootstrap>")))
