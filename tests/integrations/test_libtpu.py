"""TPUs as libtpu tells of them, from a process of its own: the texts are in the forms that libtpu describes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from waits import until

from otel_goodput._integrations import accelerators, flops
from otel_goodput._integrations.accelerators import Accelerators, Reading
from otel_goodput._integrations.libtpu import Libtpu
from otel_goodput._journal.usage_now import UNKNOWN

GIB = 2**30
SDK = """
import os, time
from pathlib import Path

ANSWERS = {answers!r}
Path({place!r}, "pid").write_text(str(os.getpid()))

class Metric:
    def __init__(self, name):
        self.name = name
    def data(self):
        if self.name not in ANSWERS:
            raise RuntimeError("INTERNAL: no such metric")
        if ANSWERS[self.name] == "dies":
            os._exit(1)
        if ANSWERS[self.name] == "hangs":
            time.sleep(600)
        return ANSWERS[self.name]

class tpumonitoring:
    get_metric = Metric
"""
FOUR_CHIPS = {
    "duty_cycle_pct": ["20.00", "40.00", "0.00", "40.00"],
    "hbm_capacity_usage": [str(GIB)] * 4,
    "hbm_capacity_total": [str(32 * GIB)] * 4,
    "tpu_throttle_score": ["0-0", "1-3", "2-0", "3-0"],
}
NOTHING_MORE = {"power": UNKNOWN, "energy": UNKNOWN}


@pytest.fixture(autouse=True)
def on_a_tpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    devices = [SimpleNamespace(platform="tpu")]
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(local_devices=lambda: devices))  # type: ignore[arg-type]
    monkeypatch.setattr(flops, "backend_started", lambda: True)
    monkeypatch.setattr(accelerators, "SHARE", 1e9)
    yield
    until(lambda: not any(one.name == "goodput-accelerators" for one in threading.enumerate()))


def libtpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: dict[str, object]) -> None:
    """A package as libtpu is one, with these answers."""
    package = tmp_path / "libtpu"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sdk.py").write_text(SDK.format(answers=answers, place=str(tmp_path)))
    monkeypatch.syspath_prepend(str(tmp_path))


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_the_tpus_count_together_and_the_process_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    libtpu(monkeypatch, tmp_path, FOUR_CHIPS)
    driver = Libtpu()
    expected = Reading("tpu", 4, 0.25, 4 * GIB, 128 * GIB, **NOTHING_MORE, throttled=1 << 4, held_down=0.25)
    assert driver.read() == driver.read() == expected
    pid = int((tmp_path / "pid").read_text())
    assert pid != os.getpid() and not gone(pid)
    driver.close()
    assert gone(pid) and "libtpu" not in sys.modules


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, None),
        ({name: [] for name in FOUR_CHIPS}, None),  # nothing runs yet
        (
            {"duty_cycle_pct": ["50.0"]},  # of an older version
            Reading("tpu", 1, 0.5, UNKNOWN, UNKNOWN, **NOTHING_MORE, throttled=UNKNOWN),
        ),
        (
            {"duty_cycle_pct": ["nonsense"], "tpu_throttle_score": ["0-0"], "hbm_capacity_usage": ["-1"]},
            Reading("tpu", 1, UNKNOWN, UNKNOWN, UNKNOWN, **NOTHING_MORE, throttled=0),
        ),
        ({"duty_cycle_pct": "dies"}, None),
    ],
)
def test_what_is_not_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: dict[str, object], expected: Reading | None
) -> None:
    libtpu(monkeypatch, tmp_path, answers)
    driver = Libtpu()
    assert driver.read() == expected
    assert driver.read() == expected
    driver.close()


def test_without_a_tpu_in_use_no_process_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    libtpu(monkeypatch, tmp_path, FOUR_CHIPS)
    devices = [SimpleNamespace(platform="cpu")]
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(local_devices=lambda: devices))  # type: ignore[arg-type]
    assert Libtpu().read() is None
    monkeypatch.setattr(flops, "backend_started", lambda: False)
    assert Libtpu().read() is None
    assert not (tmp_path / "pid").exists()


def test_without_libtpu_there_is_nothing() -> None:
    assert Libtpu().read() is None


def test_a_call_that_hangs_holds_up_nothing_and_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(accelerators, "PATIENCE_S", 0.02)
    libtpu(monkeypatch, tmp_path, {"duty_cycle_pct": "hangs"})
    watched = Accelerators([Libtpu])
    assert watched.read() is None
    until((tmp_path / "pid").exists)
    until(lambda: (tmp_path / "pid").read_text() != "")
    watched.close()
    until(lambda: gone(int((tmp_path / "pid").read_text())))
