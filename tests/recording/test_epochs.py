"""Loops one after the other: their steps are numbered on, behind a restored checkpoint where there was one."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from recorded import Recording, attributes

import otel_goodput as goodput
from otel_goodput._accounting import events as ev


def spin(ns: int) -> None:
    """Take so long, at least."""
    import time

    until = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < until:
        pass


def begun(recording: Recording) -> list[int]:
    return [event.step for event in recording.events() if event.kind == ev.START and event.phase == 4]


def test_epochs_count_on(recording: Recording) -> None:
    with goodput.job():
        for _ in range(3):
            for _ in goodput.steps(range(4)):
                pass
    assert begun(recording) == list(range(12))
    report = recording.report()
    assert report["steps"]["kept"] == 12 and report["steps"]["lost"] == 0 and report["disruptions"] == 0


def test_they_count_on_from_where_the_first_started(recording: Recording) -> None:
    with goodput.job():
        for _ in goodput.steps(range(2), start=100):
            pass
        for _ in goodput.steps(range(2)):
            pass
        with goodput.step(200):
            pass
        for _ in goodput.steps(range(2)):
            pass
    assert begun(recording) == [100, 101, 102, 103, 200, 201, 202]


def test_over_jobs_of_a_process(recording: Recording) -> None:
    for _ in range(2):
        with goodput.job():
            for _ in goodput.steps(range(2)):
                pass
    assert begun(recording) == [0, 1, 2, 3]


def test_a_new_process_begins_at_0(record: Callable[..., Recording]) -> None:
    for _ in range(2):
        recording = record()
        with goodput.job():
            for _ in goodput.steps(range(2)):
                pass
    assert begun(recording) == [0, 1, 0, 1]


def test_behind_a_restored_checkpoint(recording: Recording) -> None:
    with goodput.job():
        with goodput.checkpoint_restore(40):
            pass
        for _ in goodput.steps(range(3)):
            pass
        with goodput.checkpoint_restore(41):
            pass
        for _ in goodput.steps(range(3)):
            pass
    assert begun(recording) == [41, 42, 43, 42, 43, 44]
    assert recording.report()["disruption_reasons"] == {"rollback": 1}


@pytest.mark.parametrize("how", ["without a number", "that failed", "beside training", "before the loop's start"])
def test_a_restore_that_says_nothing_of_it(how: str, recording: Recording) -> None:
    with goodput.job():
        for _ in goodput.steps(range(3)):
            pass
        if how == "without a number":
            with goodput.checkpoint_restore():
                pass
        elif how == "that failed":
            with pytest.raises(OSError), goodput.checkpoint_restore(1):
                raise OSError
        elif how == "beside training":
            with goodput.checkpoint_restore(1, blocking=False):
                pass
        else:
            with goodput.checkpoint_restore(1):
                pass
            for _ in goodput.steps(range(1), start=3):
                pass
        for _ in goodput.steps(range(1)):
            pass
    assert begun(recording)[3:] == ([3, 4] if how == "before the loop's start" else [3])


@pytest.mark.jax
def test_a_restore_of_orbax_within_one_of_the_users(recording: Recording, tmp_path: Any) -> None:
    import orbax.checkpoint as ocp

    from otel_goodput._integrations import orbax

    remove = orbax.install(recording.recorder.tracer) if recording.recorder.tracer else None
    with goodput.job(), ocp.CheckpointManager(tmp_path / "saved") as manager:
        manager.save(7, args=ocp.args.StandardSave({"x": 1}))
        manager.wait_until_finished()
        with goodput.checkpoint_restore():
            manager.restore(7)
        for _ in goodput.steps(range(1)):
            pass
    assert begun(recording) == [8]
    assert remove is not None
    remove()


def test_a_loop_left_at_its_head_is_numbered_again(recording: Recording) -> None:
    with goodput.job():
        for _ in range(3):
            for place, (_, _) in enumerate(goodput.steps(range(10))):
                if place == 4:
                    break
                spin(20_000_000)
    assert begun(recording) == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 10, 11, 12]
    assert recording.report()["disruptions"] == 0


def test_a_loop_left_at_its_tail_is_not(recording: Recording) -> None:
    with goodput.job():
        for _ in range(3):
            for place, _ in enumerate(goodput.steps(range(10))):
                spin(20_000_000)  # so long that a busy machine makes none of the other steps three times as long
                if place == 3:
                    break
    assert begun(recording) == list(range(12))
    assert recording.report()["disruptions"] == 0


def test_a_step_that_raised_is_numbered_again_unless_it_was_saved(recording: Recording) -> None:
    for saved in (False, True):
        with goodput.job():
            for _ in goodput.steps(range(2)):
                pass
            with pytest.raises(KeyError):
                for step, _ in goodput.steps(range(2)):
                    if saved:
                        with goodput.checkpoint_save(step):
                            pass
                    raise KeyError
    with goodput.job():
        for _ in goodput.steps(range(1)):
            pass
    assert begun(recording) == [0, 1, 2, 2, 3, 4, 5]
    assert recording.report()["disruption_reasons"] == {"restart": 2}


def test_a_traced_step_counts_on(recording: Recording) -> None:
    train = goodput.traced_step(lambda batch: batch)
    with goodput.job():
        for _ in range(2):
            train(1)
        for _ in goodput.steps(range(2)):
            pass
        train(1)
        with goodput.checkpoint_restore(30):
            pass
        train(1)
        again = goodput.traced_step(lambda batch: batch, start=50)
        again(1)
        again(1)
    assert begun(recording) == [0, 1, 2, 3, 4, 5, 50, 51], "no step 30 was reached, so it is of another run"


# --- what replaces enumerate() ----------------------------------------------------------------------------------------


def test_it_is_as_long_as_its_source(recording: Recording) -> None:
    assert len(goodput.steps("abc")) == len(goodput.loading("abc")) == 3
    assert goodput.steps("") and goodput.loading("")
    for wrapped in (goodput.steps(iter("abc")), goodput.loading(iter("abc"))):
        with pytest.raises(TypeError):
            len(wrapped)  # type: ignore[arg-type]
        assert len(list(wrapped)) == 3  # type: ignore[call-overload]


class Loader:
    """As those of the libraries: sized, and iterated over anew in each epoch."""

    dataset = "images"

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[str]:
        yield from "abc"


def test_loading(recording: Recording) -> None:
    loader = goodput.loading(Loader())
    assert (len(loader), loader.dataset) == (3, "images")
    assert not hasattr(loader, "sampler")
    with goodput.job():
        for epoch in range(2):
            for number, batch in enumerate(loader):
                with goodput.step(3 * epoch + number):
                    assert batch == "abc"[number]
    loads = recording.spans("data_loading")
    assert [attributes(load)["goodput.step"] for load in loads] == [0, 1, 2, 3, 3, 4, 5, 6]
    assert recording.report()["steps"]["kept"] == 6


def test_a_loader_that_fails_while_it_is_waited_for(recording: Recording) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    with goodput.job(), pytest.raises(OSError, match="gone"):
        list(goodput.loading(broken()))
    assert len(recording.spans("data_loading")) == 2


@pytest.mark.parametrize("kind", ["queue", "function"])
def test_the_depth_of_a_queue(kind: str, recording: Recording) -> None:
    ready: queue.Queue[int] = queue.Queue()
    for number in range(3):
        ready.put(number)
    depth: Any = ready if kind == "queue" else ready.qsize
    with goodput.job():
        assert "goodput.loading.queue_depth" not in recording.metrics()
        for _ in goodput.loading(iter(ready.get, 1), queue_depth=depth):
            (point,) = recording.metrics()["goodput.loading.queue_depth"].data.data_points
            assert point.value == 2  # type: ignore[union-attr]


def test_before_configure() -> None:
    assert list(goodput.loading(Loader(), queue_depth=lambda: 1)) == list("abc")
    assert [step for step, _ in goodput.steps("ab")] == [0, 1]
