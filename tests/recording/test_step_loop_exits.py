"""A loop that is left while something still holds its iterator, and a step that nobody ends: live and after the end.

Longer than other files: every way of leaving a loop has the same witness.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from recorded import Recording
from tqdm import tqdm

import otel_goodput as goodput

BODY_S = 0.02
BODIES = 10
AFTER_S = 0.4
HELD: list[Any] = []
Watch = Callable[[], None]


class Bodies:
    """The witness: counts the bodies of the loop, each of which takes a while.

    Attributes:
        ends: when it was made, and when each body ended.
        longest: no step before this body took longer (s). A step whose end nobody saw is as long as those before it.
    """

    def __init__(self) -> None:
        self.bodies = 0
        self.longest = 0.0
        self.ends = [time.perf_counter()]

    def body(self) -> bool:
        """Do a step's work; returns whether it was the last one."""
        if self.bodies:  # the step of the body before this one began after the body before that
            self.longest = max(self.longest, time.perf_counter() - self.ends[-2])
        time.sleep(BODY_S)
        self.bodies += 1
        self.ends.append(time.perf_counter())
        return self.bodies == BODIES


def steps() -> Any:
    return goodput.steps(range(100))


def passed_on(items: Any) -> Iterator[Any]:
    yield from items


def a_variable(watch: Bodies) -> None:
    HELD.append(held := steps())
    for _ in held:
        if watch.body():
            break


def a_progress_bar(watch: Bodies) -> None:
    HELD.append(bar := tqdm(steps(), disable=True))
    for _ in bar:
        if watch.body():
            break


def a_progress_bar_of_enumerate(watch: Bodies) -> None:
    HELD.append(bar := tqdm(enumerate(steps()), disable=None))
    for _ in bar:
        if watch.body():
            break


def a_zip(watch: Bodies) -> None:
    HELD.append(held := zip(steps(), range(50), strict=False))
    for _ in held:
        if watch.body():
            print("the last one")
            break


def a_generator(watch: Bodies) -> None:
    HELD.append(held := passed_on(passed_on(steps())))
    for _ in held:
        try:
            if watch.body():
                break
        except ValueError:
            print("never")


def an_iterator_advanced_by_hand(watch: Bodies) -> None:
    HELD.append(held := iter(steps()))
    while True:
        next(held)
        if watch.body():
            break


def a_loop_in_a_coroutine(watch: Bodies) -> None:
    async def train() -> None:
        HELD.append(held := enumerate(steps()))
        for _ in held:
            await asyncio.sleep(0)
            if watch.body():
                break

    asyncio.run(train())


LEFT = [
    a_variable,
    a_progress_bar,
    a_progress_bar_of_enumerate,
    a_zip,
    a_generator,
    an_iterator_advanced_by_hand,
    a_loop_in_a_coroutine,
]


@pytest.fixture(autouse=True)
def _nothing_held() -> Iterator[None]:
    yield
    HELD.clear()


@pytest.mark.parametrize("loop", LEFT, ids=lambda loop: loop.__name__)
def test_what_follows_a_loop_is_no_part_of_its_last_step(loop: Callable[[Bodies], None], recording: Recording) -> None:
    watch = Bodies()
    with goodput.job():
        began = time.perf_counter()
        loop(watch)
        left = time.perf_counter()
        time.sleep(AFTER_S)
        after = time.perf_counter() - left
        goodput.flush()  # as the keeper does at every tick
        live = recording.report()
    # That a coroutine has returned is known only when the job ends: one that waits is on no stack either.
    for report in (live, recording.report())[loop is a_loop_in_a_coroutine :]:
        seconds = report["seconds"]
        assert report["in_flight_step"] is None and report["steps"]["kept"] == BODIES
        assert seconds["other"] > after - watch.longest
        assert seconds["productive"] < left - began + watch.longest


def test_a_loop_whose_body_always_leaves_it(recording: Recording) -> None:
    """It has no way back to its head. The loop around it has one, and goes on."""
    watch, after = Bodies(), 0.0
    with goodput.job():
        for _ in range(2):
            HELD.append(held := iter(steps()))
            for _ in held:
                watch.body()
                break
            goodput.flush()  # as the keeper does at its next tick, until which no usual length of a step is known
            left = time.perf_counter()
            time.sleep(AFTER_S)
            after += time.perf_counter() - left
            assert recording.report()["in_flight_step"] is None
    assert recording.report()["seconds"]["other"] > 0.99 * after


def test_what_follows_may_be_a_phase(recording: Recording) -> None:
    """The loop is left before the phase begins, so the phase is not inside its last step."""
    watch = Bodies()
    with goodput.job():
        a_progress_bar_of_enumerate(watch)
        left = time.perf_counter()
        time.sleep(AFTER_S)
        after = time.perf_counter() - left
        with goodput.custom("export"):
            pass
    (export,), last = recording.spans("export"), recording.spans("step")[-1]
    assert export.parent is not None and export.parent.span_id != last.get_span_context().span_id
    assert last.end_time is not None and export.start_time is not None and last.end_time <= export.start_time
    assert recording.report()["seconds"]["other"] > after - watch.longest


def test_an_exception_that_is_kept_holds_the_loop(recording: Recording) -> None:
    watch = Bodies()

    def train() -> None:
        for _ in steps():
            if watch.body():
                raise ArithmeticError

    with goodput.job():
        try:
            train()
        except ArithmeticError as error:
            HELD.append(error)
            left = time.perf_counter()
            time.sleep(AFTER_S)
            after = time.perf_counter() - left
            goodput.flush()
            live = recording.report()
    for report in (live, recording.report()):
        assert report["steps"] == {"executed": BODIES - 1, "kept": BODIES - 1, "lost": 1}, "it failed"
        assert report["seconds"]["other"] > after - watch.longest
        assert report["seconds"]["wasted_progress"] < left - watch.ends[-2] + watch.longest


def test_a_callbacks_step_that_nobody_ends(recording: Recording) -> None:
    """As Keras calls: the end of the data comes after the begin of a step, and nobody calls the step's end."""
    watch = Bodies()
    step: Any = None
    after = 0.0
    with goodput.job():
        for epoch in range(2):
            data = iter(range(BODIES - 1))
            try:
                while True:
                    step = goodput.step(watch.bodies)
                    step.__enter__()
                    next(data)
                    watch.body()
                    step.__exit__(None, None, None)
            except StopIteration:
                pass
            left = time.perf_counter()
            time.sleep(AFTER_S)
            after += time.perf_counter() - left
            assert epoch == 0 or watch.bodies == 2 * (BODIES - 1)
    report = recording.report()
    assert report["steps"]["kept"] == 2 * (BODIES - 1)
    assert report["seconds"]["other"] > after - 2 * watch.longest
    assert report["seconds"]["wasted_progress"] < 2 * watch.longest


# --- steps that are in progress -----------------------------------------------------------------------------------


class Wrapper:
    def __init__(self, items: Any) -> None:
        self.items = iter(items)

    def __iter__(self) -> Wrapper:
        return self

    def __next__(self) -> Any:
        while True:  # it looks like a loop
            return next(self.items)


def in_a_for_loop(watch: Watch) -> None:
    for _, _ in zip(range(5), enumerate(steps()), strict=False):
        watch()


def in_a_handler(watch: Watch) -> None:
    held = enumerate(steps())
    for at, _ in held:
        try:
            raise KeyError(at)
        except KeyError:
            watch()
        if at == 4:
            break


def in_a_branch_that_leaves(watch: Watch) -> None:
    held = enumerate(steps())
    for at, _ in held:
        watch()
        if at == 4:
            watch()
            break


def advanced_by_a_function(watch: Watch) -> None:
    held = iter(steps())

    def get() -> Any:
        return next(held)

    for _ in range(5):
        get()
        watch()


def of_a_wrapper(watch: Watch) -> None:
    for at, _ in enumerate(Wrapper(steps())):
        watch()
        if at == 4:
            break


def in_a_coroutine_that_waits(watch: Watch) -> None:
    async def train() -> None:
        held = enumerate(steps())
        for at, _ in held:
            await asyncio.to_thread(watch)
            if at == 4:
                break

    asyncio.run(train())


IN_PROGRESS = [
    in_a_for_loop,
    in_a_handler,
    in_a_branch_that_leaves,
    advanced_by_a_function,
    of_a_wrapper,
    in_a_coroutine_that_waits,
]


@pytest.mark.parametrize("loop", IN_PROGRESS, ids=lambda loop: loop.__name__)
def test_a_step_in_progress_stays_open(loop: Callable[[Watch], None], recording: Recording) -> None:
    open_steps = []

    def watch() -> None:
        goodput.flush()  # as the keeper does at every tick
        open_steps.append(recording.report()["in_flight_step"])

    with goodput.job():
        loop(watch)
    assert open_steps[:5] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("consume", ["pool", "coroutine"])
def test_a_pool_that_fetches_the_next_batch_gets_the_line_to_write(
    recording: Recording, caplog: pytest.LogCaptureFixture, consume: str
) -> None:
    """The thread that trains asks for the iterator, and another one for each item, in a context of its own."""

    def ahead(items: Iterator[Any]) -> Iterator[Any]:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next, items, None)
            while (item := waiting.result()) is not None:
                waiting = pool.submit(next, items, None)
                yield item

    async def fetched(items: Iterator[Any]) -> list[Any]:
        fetched_items = []
        while (item := await asyncio.to_thread(next, items, None)) is not None:
            fetched_items.append(item)
        return fetched_items

    with goodput.job():
        items = iter(goodput.steps(range(3)))
        pairs = list(ahead(items)) if consume == "pool" else asyncio.run(fetched(items))
        assert [step for step, _ in pairs] == [0, 1, 2]
    [warning] = recording.report()["warnings"]
    assert "for step, batch in goodput.steps(prefetch(loader)):" in warning["text"]
    assert caplog.messages == [warning["text"]]


def test_a_thread_that_prefetches_is_warned_about(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    import queue
    import threading

    def prefetched(items: Any) -> Iterator[Any]:
        ready: queue.Queue[Any] = queue.Queue(2)

        def fetch() -> None:
            for item in items:
                ready.put(item)
            ready.put(None)

        thread = threading.Thread(target=fetch)
        thread.start()
        while (item := ready.get()) is not None:
            yield item
        thread.join()

    with goodput.job():
        assert [step for step, _ in prefetched(goodput.steps(range(3)))] == [0, 1, 2]
    (warning,) = recording.report()["warnings"]
    assert "for step, batch in goodput.steps(prefetch(loader)):" in warning["text"]
    assert caplog.messages.count(warning["text"]) == 1


@pytest.mark.jax
def test_the_clock_stays_known_where_a_device_works(recording: Recording) -> None:
    """Nobody was there to mark the end of the last step on the device."""
    import jax

    train = jax.jit(lambda x: jax.lax.fori_loop(0, 500, lambda _, y: jax.numpy.tanh(y @ y), x))
    state = train(jax.numpy.full((64, 64), 1e-3))
    with goodput.job():
        HELD.append(held := enumerate(steps()))
        for at, _ in held:
            state = train(state)
            if at == BODIES - 1:
                break
        state.block_until_ready()
        left = time.perf_counter()
        time.sleep(AFTER_S)
        after = time.perf_counter() - left
    recording.recorder.shutdown()
    report = recording.report_on_disk()
    assert report["goodput"] is not None and report["steps"]["kept"] >= BODIES - 1
    assert report["seconds"]["other"] > 0.7 * after
