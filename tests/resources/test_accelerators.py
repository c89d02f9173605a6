"""Which chips a host has, and which TPU slice it belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_goodput._integrations.flops import CHIPS
from otel_goodput._resources import accelerators
from otel_goodput._resources.accelerators import ACCELERATORS, of_driver, of_machine, of_slice


def chips(name: str | None, count: int | None = None) -> dict[str, Any]:
    attributes = {"goodput.accelerator.type": name, "goodput.accelerator.count": count}
    return {key: value for key, value in attributes.items() if value is not None}


@pytest.mark.parametrize(
    ("machine", "name", "count"),
    [
        ("ct3-hightpu-4t", "TPU v3", 4),
        ("ct3p-hightpu-4t", "TPU v3", 4),
        ("ct4p-hightpu-4t", "TPU v4", 4),
        ("ct5l-hightpu-8t", "TPU v5e", 8),
        ("ct5lp-hightpu-1t", "TPU v5e", 1),
        ("ct5p-hightpu-4t", "TPU v5p", 4),
        ("ct6e-standard-8t", "TPU v6e", 8),
        ("tpu7x-standard-4t", "TPU 7x", 4),
        ("a2-highgpu-1g", "A100", 1),
        ("a2-megagpu-16g", "A100", 16),
        ("a2-ultragpu-8g", "A100", 8),
        ("a3-highgpu-8g", "H100 SXM", 8),
        ("a3-megagpu-8g", "H100 SXM", 8),
        ("a3-edgegpu-8g", "H100 SXM", 8),
        ("a3-ultragpu-8g", "H200 SXM", 8),
        ("a3-ultragpu-8g-nolssd", "H200 SXM", 8),
        ("a4-highgpu-8g", "B200", 8),
        ("a4x-highgpu-4g", "GB200", 4),
        ("a4x-maxgpu-4g-metal", "GB300", 4),
        ("g2-standard-12", "L4", 1),
        ("g2-standard-24", "L4", 2),
        ("g2-standard-96", "L4", 8),
        ("g4-standard-48", "RTX PRO 6000 Blackwell Server Edition", 1),
        ("g4-standard-384", "RTX PRO 6000 Blackwell Server Edition", 8),
        ("g4-standard-6", "RTX PRO 6000 Blackwell Server Edition", None),
        ("n1-standard-8", None, None),
        ("a9-highgpu-8g", None, None),
        ("xa3-highgpu-8g", None, None),
        ("-metal", None, None),
        ("", None, None),
    ],
)
def test_machines(machine: str, name: str | None, count: int | None) -> None:
    assert of_machine(machine) == chips(name, count)


@pytest.mark.parametrize(
    ("slice_type", "name"),
    [
        ("v2-8", "TPU v2"),
        ("v3-32", "TPU v3"),
        ("v4-256", "TPU v4"),
        ("tpu-v4-podslice", "TPU v4"),
        ("v5litepod-256", "TPU v5e"),
        ("tpu-v5-lite-podslice", "TPU v5e"),
        ("v5p-512", "TPU v5p"),
        ("V6E-256", "TPU v6e"),
        ("tpu-v6e-slice", "TPU v6e"),
        ("tpu7x-128", "TPU 7x"),
        ("v7x-8", "TPU 7x"),
        ("v44-8", None),
        ("xv4-8", None),
        ("v5-8", None),
        ("", None),
    ],
)
def test_slices(slice_type: str, name: str | None) -> None:
    assert of_slice(slice_type) == chips(name)


def test_chips_are_called_as_elsewhere() -> None:
    without_a_peak = {"TPU v2", "GB300", "RTX PRO 6000 Blackwell Server Edition"}
    assert {accelerator.name for accelerator in ACCELERATORS} - {chip.name for chip in CHIPS} == without_a_peak


# --- NVIDIA's driver --------------------------------------------------------------------------------------------------


def driver(folder: Path, *models: str) -> dict[str, Any]:
    for number, model in enumerate(models):
        gpu = folder / f"0000:{number:02x}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(f"{model}IRQ:   \t\t 195\nGPU UUID: \t GPU-2b3c\nBus Type: \t PCIe\n")
    return of_driver(folder)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA GB300", "GB300"),
        ("Tesla T4", "Tesla T4"),
    ],
)
def test_the_driver(tmp_path: Path, model: str, name: str) -> None:
    assert driver(tmp_path, *[f"Model: \t\t {model}\n"] * 4) == chips(name, 4)


@pytest.mark.parametrize("models", [(), ("",), ("Model: \n",), ("Model: NVIDIA L4\n", "Model: Tesla T4\n")])
def test_a_driver_that_does_not_say(tmp_path: Path, models: tuple[str, ...]) -> None:
    assert driver(tmp_path / "gpus", *models) == {}


def test_a_driver_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "0000:00:00.0" / "information").mkdir(parents=True)
    assert of_driver(tmp_path) == {}


# --- the environment of a TPU -----------------------------------------------------------------------------------------


def test_a_tpu_of_gke() -> None:
    environ = {
        "TPU_ACCELERATOR_TYPE": "v6e-256",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "TPU_TOPOLOGY": "16x16",
        "TPU_WORKER_ID": "63",
        "TPU_WORKER_HOSTNAMES": "a,b",
        "MEGASCALE_NUM_SLICES": "4",
        "MEGASCALE_SLICE_ID": "3",
    }
    assert accelerators.of_environment(environ) == {
        "goodput.slice.type": "v6e-256",
        "goodput.slice.topology": "16x16",
        "goodput.slice.worker": 63,
        "goodput.slice.index": 3,
        "goodput.slice.count": 4,
        **chips("TPU v6e", 4),
    }
    assert accelerators.of_environment({"TPU_NAME": "mine", "CLOUD_TPU_TASK_ID": "2"}) == {
        "goodput.slice.name": "mine",
        "goodput.slice.worker": 2,
    }
    assert accelerators.of_environment({"WORKER_ID": "1", "ACCELERATOR_TYPE": "v4-8", "TOPOLOGY": "2x2"}) == {}


@pytest.mark.parametrize("bounds", ["", "2,2", "2,2,x", "0,2,1", "2,2,1,1", "-2,-2,1", "99999,1,1", "1" * 500])
def test_bounds_that_are_none(bounds: str) -> None:
    assert accelerators.chips(bounds) is None
    assert accelerators.of_environment({"TPU_CHIPS_PER_HOST_BOUNDS": bounds}) == {}
