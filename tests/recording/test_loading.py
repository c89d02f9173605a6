"""``loading()``: what it is given stays what it is for frameworks that ask, and its loads are recorded."""

from __future__ import annotations

import copy
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from recorded import Recording

import otel_goodput as goodput
from everyday.stand_ins import accelerate_data, torch_data
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.rules import DATA_LOADING

LOAD_S = 0.004


class Images:
    """Eight, from a slow disk; read by `waits` in s, as the stopwatch says."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        began = time.perf_counter()
        time.sleep(LOAD_S)
        self.waits.append(time.perf_counter() - began)
        return index


@pytest.fixture(autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.data", torch_data)


def loads(recording: Recording) -> int:
    return sum(event.kind == ev.START and event.phase == DATA_LOADING for event in recording.events())


def loaded(recording: Recording) -> float:
    return recording.report()["seconds"]["data_loading"]


def trained(batches: Any) -> list[Any]:
    """What a loop trains on that opens its own steps."""
    seen = []
    with goodput.job():
        for number, batch in enumerate(batches):
            with goodput.step(number):
                seen.append(batch)
    return seen


def test_a_data_loader_is_returned_itself(recording: Recording) -> None:
    loader = torch_data.DataLoader(Images(), 2)
    before, pickled = dict(vars(loader)), pickle.dumps(loader)
    assert goodput.loading(loader) is loader and goodput.loading(goodput.loading(loader)) is loader
    assert vars(loader) == before and pickle.dumps(loader) == pickled
    iterator = iter(loader)
    assert isinstance(iterator, torch_data._BaseDataLoaderIter) and iterator._dataset is loader.dataset
    assert trained(loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    waited = sum(loader.dataset.waits)
    assert loads(recording) == 5, "the last finds that there are no more"
    assert waited <= loaded(recording) <= 1.5 * waited + 0.01


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_has_batches_of_its_own(copied: Callable[[Any], Any], recording: Recording) -> None:
    again = copied(goodput.loading(torch_data.DataLoader(Images(), 2)))
    assert type(again) is torch_data.DataLoader
    assert list(again) == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("order", ["prepare(loading)", "loading(prepare)", "loading(prepare(loading))"])
def test_each_process_gets_its_share(order: str, recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    """What it is without us is held against, too."""
    share, count = trained(accelerate_data.prepare(torch_data.DataLoader(Images(), 2), 2, 1)), loads(recording)
    loader = torch_data.DataLoader(images := Images(), 2)
    given = loader if order == "loading(prepare)" else goodput.loading(loader)
    prepared = accelerate_data.prepare(given, 2, 1)
    used = prepared if order == "prepare(loading)" else goodput.loading(prepared)
    assert used is prepared
    assert trained(used) == share == [[2, 3], [6, 7]]
    assert count == 0 and loads(recording) == 3
    assert loaded(recording) >= sum(images.waits)
    messages = [
        record.getMessage() for record in caplog.records if "accelerator.prepare(loader)" in record.getMessage()
    ]
    assert len(messages) == (order == "prepare(loading)"), "that another loader is used than was given"


@pytest.mark.parametrize("prepared", [True, False])
def test_batches_that_were_done_before_a_restart_are_skipped(prepared: bool, recording: Recording) -> None:
    loader: Any = torch_data.DataLoader(images := Images(), 2)
    if prepared:
        loader = accelerate_data.prepare(loader, 1, 0)
    kind = type(accelerate_data.skip_first_batches(loader, 2))
    skipping = accelerate_data.skip_first_batches(goodput.loading(loader), 2)
    assert type(skipping) is kind
    assert trained(skipping) == [[4, 5], [6, 7]]
    waited = sum(images.waits)
    assert waited <= loaded(recording) <= 1.5 * waited + 0.01


@pytest.mark.parametrize(
    "looped",
    [
        lambda loader: goodput.steps(loader),
        lambda loader: goodput.steps(goodput.loading(loader)),
        lambda loader: goodput.steps(batch for batch in goodput.loading(loader)),
        lambda loader: enumerate(goodput.loading(batch for batch in goodput.loading(loader))),
    ],
)
def test_nothing_is_counted_twice(looped: Callable[[Any], Any], recording: Recording) -> None:
    loader = goodput.loading(torch_data.DataLoader(Images(), 2))
    with goodput.job():
        assert [batch for _, batch in looped(loader)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        with goodput.data_loading():
            next(iter(loader))
    assert loads(recording) == 6


def test_other_loaders_are_left_alone(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    """Those of other datasets, and those that are given to nobody."""
    goodput.loading(torch_data.DataLoader(Images(), 2))
    other = torch_data.DataLoader(Images(), 2)
    assert type(iter(other)) is torch_data._BaseDataLoaderIter
    trained(other)
    assert loads(recording) == 0 and not caplog.records


def test_a_dataset_that_is_gone_is_forgotten(recording: Recording) -> None:
    import gc
    import weakref

    loader = goodput.loading(torch_data.DataLoader(Images(), 2))
    gone = weakref.ref(loader.dataset), weakref.ref(loader)
    del loader
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_the_depth_of_its_queue(recording: Recording) -> None:
    with goodput.job():
        for _ in goodput.loading(torch_data.DataLoader(Images(), 2), queue_depth=lambda: 7):
            (point,) = recording.metrics()["goodput.loading.queue_depth"].data.data_points
            assert point.value == 7  # type: ignore[union-attr]


BEGIN_S = 0.05


class Slow:
    """A loader that is slow to begin a pass, as where it starts workers, and not to give batches."""

    dataset = ()

    def __init__(self) -> None:
        self.waited = 0.0  # s, as the stopwatch says

    def __iter__(self) -> Iterator[int]:
        began = time.perf_counter()
        time.sleep(BEGIN_S)
        self.waited += time.perf_counter() - began
        return iter([1, 2, 3])


@pytest.mark.parametrize(
    "looped",
    [
        lambda loader: goodput.steps(loader),
        lambda loader: enumerate(goodput.loading(loader)),
        lambda loader: goodput.steps(goodput.loading(loader)),
    ],
    ids=["steps", "loading", "both"],
)
@pytest.mark.parametrize("kind", [Slow, type("Loader", (Slow, torch_data.DataLoader), {})], ids=["any", "torch"])
def test_beginning_a_pass_is_loading(kind: Any, looped: Callable[[Any], Any], recording: Recording) -> None:
    loader = kind()
    with goodput.job():
        began = time.perf_counter()
        for _ in range(2):
            for _ in looped(loader):
                pass
        lasted = time.perf_counter() - began  # next to nothing more, except on a busy machine
    assert loader.waited <= loaded(recording) <= lasted
    begins = [event for event in recording.events() if event.kind == ev.START and event.phase == DATA_LOADING]
    assert len(begins) == 2 * (1 + 4)  # a pass of three batches, and what says that there is no other


class Shuffled:
    """A loader of no library that we know."""

    epoch = 0

    def __init__(self) -> None:
        self._order = [3, 1, 2]

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        yield from self._order


def test_another_passes_for_what_it_is(recording: Recording) -> None:
    mine = Shuffled()
    loader = goodput.loading(mine)
    assert isinstance(loader, Shuffled) and repr(loader) == repr(mine)
    loader.epoch = 2
    assert mine.epoch == 2 and loader._order is mine._order
    del loader.epoch
    assert mine.epoch == loader.epoch == 0
    for again in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert type(again) is Shuffled and again is not mine
    assert pickle.dumps(loader) == pickle.dumps(mine)
    assert goodput.loading(loader) is loader
    assert trained(loader) == [3, 1, 2] and loads(recording) == 4


def test_an_iterator_stays_one(recording: Recording) -> None:
    with goodput.job():
        batches = goodput.loading(iter([1, 2, 3]))
        assert next(batches) == 1 and iter(batches) is batches and list(batches) == [2, 3]
    assert loads(recording) == 4
