"""A loop that is left: by a break or a return, or by an exception, whatever stands between.

Longer than other files: it goes through every way out of a loop, for the same loops.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from recorded import Recording, attributes

import otel_goodput as goodput
from otel_goodput._accounting import events as ev
from otel_goodput._recording import sampling

Loop = Callable[[], Any]
FATAL = 3


def steps() -> Iterator[tuple[int, int]]:
    return goodput.steps(range(10), start=0)


def stop(step: int) -> bool:
    return step == FATAL


def fail(step: int) -> None:
    if step == FATAL:
        raise KeyError(step)


def by_break() -> None:
    for step, _ in steps():
        if stop(step):
            break


def by_return_of_a_value() -> int | None:
    for step, _ in steps():
        if stop(step):
            return step
    return None


def by_return_of_a_call() -> str | None:
    for step, _ in steps():
        if stop(step):
            return str(step)
    return None


def by_break_within_finally() -> None:
    for step, _ in steps():
        try:
            if stop(step):
                break
        finally:
            str(step)


def by_break_within_with() -> None:
    for step, _ in steps():
        with contextlib.nullcontext():
            if stop(step):
                break


def by_break_in_a_handler() -> None:
    for step, _ in steps():
        try:
            fail(step)
        except KeyError:
            break


def by_return_from_inner_loops() -> str | None:
    for _ in range(3):
        for step, _ in steps():
            for _ in range(3):
                if stop(step):
                    return "enough"
    return None


def of_a_generator() -> None:
    def numbered() -> Iterator[int]:
        for step, _ in steps():
            yield step

    for step in numbered():
        if stop(step):
            break


def of_generators_in_generators() -> None:
    def inner() -> Iterator[int]:
        for step, _ in steps():
            yield step

    def outer() -> Iterator[int]:
        yield from inner()

    for step in outer():
        if stop(step):
            break


class Bar:
    """As tqdm wraps an iterable."""

    def __init__(self, iterable: Any) -> None:
        self.iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        iterable = self.iterable
        try:
            for item in iterable:  # noqa: UP028 - what is tested
                yield item
        finally:
            self.done = True


def under_a_progress_bar() -> None:
    for step, _ in Bar(steps()):
        if stop(step):
            break


def of_enumerate() -> None:
    for _, (step, _) in enumerate(steps()):
        if stop(step):
            break


def of_zip() -> None:
    for _, (step, _) in zip(range(9), steps(), strict=False):
        if stop(step):
            break


def in_a_coroutine() -> None:
    async def train() -> None:
        for step, _ in steps():
            await asyncio.sleep(0)
            if stop(step):
                break

    asyncio.run(train())


def as_a_context_manager() -> None:
    with goodput.steps(range(10), start=0) as loop:
        for step, _ in loop:
            if stop(step):
                break


def held_and_closed() -> None:
    loop = goodput.steps(range(10), start=0)
    for step, _ in loop:
        if stop(step):
            break
    loop.close()


def held_by_a_function_that_returns() -> None:
    loop = steps()
    for step, _ in loop:
        if stop(step):
            break


def held_and_rebound() -> None:
    loop: Any = steps()
    for step, _ in loop:
        if stop(step):
            break
    loop = None


def iterated_by_hand() -> None:
    loop = goodput.steps(range(10), start=0)
    while not stop(next(loop)[0]):
        pass
    loop.close()


def by_an_exception() -> None:
    for step, _ in steps():
        fail(step)


def by_an_exception_of_an_operation() -> None:
    for step, _ in steps():
        1 / (FATAL - step)


def by_an_exception_handled_around() -> None:
    with contextlib.suppress(KeyError):
        for step, _ in steps():
            fail(step)


def by_an_exception_handled_in_the_function() -> None:
    try:
        for step, _ in steps():
            fail(step)
    except KeyError as error:
        str(error)


def by_an_exception_through_finally() -> None:
    for step, _ in steps():
        try:
            fail(step)
        finally:
            str(step)


def by_an_exception_in_a_generators_user() -> None:
    def numbered() -> Iterator[int]:
        for step, _ in steps():
            yield step

    for step in numbered():
        fail(step)


def by_an_exception_under_a_progress_bar() -> None:
    for step, _ in Bar(steps()):
        fail(step)


def by_an_exception_of_enumerate() -> None:
    for _, (step, _) in enumerate(steps()):
        fail(step)


def by_an_exception_in_a_coroutine() -> None:
    async def train() -> None:
        for step, _ in steps():
            await asyncio.sleep(0)
            fail(step)

    asyncio.run(train())


def by_the_cancelling_of_a_coroutine() -> None:
    async def train() -> None:
        for step, _ in steps():
            if stop(step):
                await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(train())
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(main())


def by_an_exception_as_a_context_manager() -> None:
    with goodput.steps(range(10), start=0) as loop:
        for step, _ in loop:
            fail(step)


def by_an_exception_closed_in_finally() -> None:
    loop = goodput.steps(range(10), start=0)
    try:
        for step, _ in loop:
            fail(step)
    finally:
        loop.close()


def by_an_exception_of_a_held_one() -> None:
    held = steps()
    for step, _ in held:
        fail(step)


def by_an_interrupt() -> None:
    for step, _ in steps():
        if stop(step):
            raise KeyboardInterrupt


LEFT: list[Loop] = [
    by_break,
    by_return_of_a_value,
    by_return_of_a_call,
    by_break_within_finally,
    by_break_within_with,
    by_break_in_a_handler,
    by_return_from_inner_loops,
    of_a_generator,
    of_generators_in_generators,
    under_a_progress_bar,
    of_enumerate,
    of_zip,
    in_a_coroutine,
    as_a_context_manager,
    held_and_closed,
    held_by_a_function_that_returns,
    held_and_rebound,
    iterated_by_hand,
]
FAILED: list[Loop] = [
    by_an_exception,
    by_an_exception_of_an_operation,
    by_an_exception_handled_around,
    by_an_exception_handled_in_the_function,
    by_an_exception_through_finally,
    by_an_exception_in_a_generators_user,
    by_an_exception_under_a_progress_bar,
    by_an_exception_of_enumerate,
    by_an_exception_in_a_coroutine,
    by_the_cancelling_of_a_coroutine,
    by_an_exception_as_a_context_manager,
    by_an_exception_closed_in_finally,
    by_an_exception_of_a_held_one,
    by_an_interrupt,
]


def last_end(recording: Recording) -> tuple[int, int]:
    """Number and flags of the step that ended last."""
    *_, last = (event for event in recording.events() if event.kind == ev.END and event.phase == 4)
    return last.step, last.flags & (ev.FAILED | ev.LEFT)


@pytest.mark.parametrize("loop", LEFT, ids=lambda loop: loop.__name__)
def test_left(loop: Loop, recording: Recording) -> None:
    with goodput.job():
        loop()
        open_then = recording.report()["in_flight_step"]
    assert open_then is None, "it ends where it is left"
    assert last_end(recording) == (FATAL, ev.FAILED | ev.LEFT)


@pytest.mark.parametrize("loop", FAILED, ids=lambda loop: loop.__name__)
def test_failed(loop: Loop, recording: Recording) -> None:
    with contextlib.suppress(KeyError, ZeroDivisionError, KeyboardInterrupt, asyncio.CancelledError), goodput.job():
        loop()
    assert last_end(recording) == (FATAL, ev.FAILED)


@pytest.mark.parametrize("loop", [of_enumerate, by_an_exception_of_enumerate], ids=lambda loop: loop.__name__)
def test_what_traces_the_code_makes_no_difference(loop: Loop, recording: Recording) -> None:
    """Coverage and debuggers look on at every line."""

    def look(frame: Any, event: str, argument: Any) -> Any:
        return look

    before = sys.gettrace()
    with contextlib.suppress(KeyError), goodput.job():
        sys.settrace(look)
        try:
            loop()
        finally:
            sys.settrace(before)
    assert last_end(recording) == (FATAL, ev.FAILED | (0 if "exception" in loop.__name__ else ev.LEFT))


@pytest.mark.jax
def test_a_step_left_that_was_observed_has_completed(recording: Recording) -> None:
    import jax.numpy as jnp

    with goodput.job():
        for step, _ in goodput.steps(range(10)):
            goodput.observe(jnp.ones(3))
            if stop(step):
                break
    assert last_end(recording) == (FATAL, 0)
    goodput.shutdown()
    assert recording.report_on_disk()["steps"]["kept"] == FATAL + 1


def test_a_loop_that_is_held_is_left_when_the_next_one_begins(recording: Recording) -> None:
    with goodput.job():
        held = goodput.steps(range(10), start=0)
        for step, _ in held:
            if stop(step):
                break
        goodput.steps(range(3))
        assert recording.report()["in_flight_step"] is None
        assert last_end(recording) == (FATAL, ev.FAILED | ev.LEFT)


def test_a_loop_that_is_held_while_its_exception_is_handled_has_failed(recording: Recording) -> None:
    with goodput.job():
        held = goodput.steps(range(10), start=0)
        try:
            for step, _ in held:
                fail(step)
        except KeyError:
            for _ in goodput.steps(range(2), start=20):
                pass
        ends = {event.step: event.flags for event in recording.events() if event.kind == ev.END and event.phase == 4}
    assert ends[FATAL] & (ev.FAILED | ev.LEFT) == ev.FAILED and not ends[20] & ev.FAILED


def test_a_loop_in_a_handler_is_left_by_its_own_break(recording: Recording) -> None:
    """The exception that is being handled is not the loop's."""
    with goodput.job():
        try:
            raise MemoryError
        except MemoryError:
            held = goodput.steps(range(10), start=0)
            for step, _ in held:
                if stop(step):
                    break
            held.close()
    assert last_end(recording) == (FATAL, ev.FAILED | ev.LEFT)


@pytest.mark.parametrize("error", [None, SystemExit(0), SystemExit(1), KeyError()], ids=repr)
@pytest.mark.parametrize("inside", [False, True])
def test_a_job_that_ends_with_a_held_loop(error: BaseException | None, inside: bool, recording: Recording) -> None:
    held = enumerate(goodput.steps(range(10), start=0))
    with contextlib.suppress(SystemExit, KeyError), goodput.job():
        for step, _ in held:
            if stop(step):
                if inside and error is not None:
                    raise error
                break
        if error is not None:
            raise error
    failed = inside and isinstance(error, (KeyError, SystemExit)) and error.args != (0,)
    assert last_end(recording) == (FATAL, ev.FAILED if failed else ev.FAILED | ev.LEFT)
    report = recording.report()
    assert report["in_flight_step"] is None and report["ended"]
    job, step_span = recording.span("job"), recording.spans("step")[-1]
    assert job.end_time and step_span.end_time and step_span.end_time <= job.end_time
    assert "goodput.interrupted" not in attributes(step_span)


LONG = 0.05  # s: on a busy machine, too, each step takes more than half as long as the others


def test_an_iterator_around_the_steps_that_takes_no_more_of_them(recording: Recording) -> None:
    """Nobody leaves such a loop: what stands around the steps is exhausted, and drops them."""
    with goodput.job():
        for _ in range(3):
            for _ in enumerate(itertools.islice(goodput.steps(range(100)), 4)):
                time.sleep(LONG)
        for _ in zip(range(4), goodput.steps(range(100)), strict=False):
            time.sleep(LONG)
    assert recording.report()["steps"] == {"executed": 16, "kept": 16, "lost": 0}


def at_head_by_break() -> None:
    for step, _ in steps():
        if step == FATAL:
            break
        str(step)


def at_head_by_return() -> int | None:
    for step, _ in steps():
        if step >= FATAL and step % 1 == 0:
            return step
        str(step)
    return None


def at_head_in_a_function_with_more() -> None:
    str(1)
    for _ in range(2):
        str(2)
    for step, _ in goodput.steps(range(10), start=0):
        last = step >= FATAL
        if not last:
            str(step)
            continue
        break


def after_a_call() -> None:
    for step, _ in steps():
        str(step)
        if step == FATAL:
            break


def after_a_call_in_a_loop() -> None:
    """The break stands before the call in the code, and is come to after it."""
    for step, _ in steps():
        tries = 0
        while True:
            if tries:
                break
            tries += 1
            str(step)
        if step == FATAL:
            return


def after_an_operation() -> None:
    class Model:
        def __matmul__(self, other: object) -> int:
            return 1

    model = Model()
    for step, batch in steps():
        model @ batch
        if step == FATAL:
            break


def after_a_with() -> None:
    lock = contextlib.nullcontext()
    for step, _ in steps():
        with lock:
            pass
        if step == FATAL:
            break


def after_a_failure() -> None:
    for step, _ in steps():
        try:
            fail(step)
        except KeyError:
            break


def after_an_inner_loop() -> None:
    for step, _ in steps():
        for _ in Bar([1]):
            pass
        if step == FATAL:
            break


def of_a_zip_at_its_head() -> None:
    for _, (step, _) in zip(range(9), steps(), strict=False):
        if step == FATAL:
            break
        str(step)


def of_enumerate_at_its_head() -> None:
    for number, _ in enumerate(steps()):
        if number == FATAL:
            break
        str(number)


def of_a_zip_after_a_call() -> None:
    for _, (step, _) in zip(range(9), steps(), strict=False):
        str(step)
        if step == FATAL:
            break


def of_a_generator_at_its_head() -> None:
    """Nobody knows what the generator did."""
    for step, _ in Bar(steps()):
        if step == FATAL:
            break


AT_HEAD: list[Loop] = [
    at_head_by_break,
    at_head_by_return,
    at_head_in_a_function_with_more,
    of_a_zip_at_its_head,
    of_enumerate_at_its_head,
]
LATER: list[Loop] = [
    after_a_call,
    after_a_call_in_a_loop,
    after_an_operation,
    after_a_with,
    after_a_failure,
    after_an_inner_loop,
    of_a_zip_after_a_call,
    of_a_generator_at_its_head,
]


@pytest.mark.parametrize("loop", [*AT_HEAD, *LATER], ids=lambda loop: loop.__name__)
def test_left_at_the_head(loop: Loop, monkeypatch: pytest.MonkeyPatch, recording: Recording) -> None:
    """Where nothing was called no step was begun, however long a busy machine took to come there; else the time
    tells. Code that has often run calls with other instructions."""
    monkeypatch.setattr(sampling.StepSampler, "fleeting", lambda self, took: False)
    with goodput.job():
        for _ in range(30):
            loop()
    left = [
        event for event in recording.events() if event.kind == ev.END and event.phase == 4 and event.flags & ev.LEFT
    ]
    assert [bool(event.flags & ev.IDLE) for event in left] == [loop in AT_HEAD] * 30


def test_a_first_step_left_at_the_head_is_no_lost_step(recording: Recording) -> None:
    """A run that is started again though it has done all: there is no other step to hold it against."""
    with goodput.job():
        for step, _ in steps():
            if step >= 0:
                break
        report = recording.report()
    assert report["steps"]["lost"] == 0
    *_, last = (event for event in recording.events() if event.kind == ev.END and event.phase == 4)
    assert last.flags & ev.IDLE
