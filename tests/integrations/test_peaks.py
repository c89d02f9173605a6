"""Peaks by jax's names of devices."""

from __future__ import annotations

import re

import pytest

from otel_goodput._integrations.flops import CHIPS, find_chip, hint, peak_flops, peak_of

KNOWN = {
    "TPU v3": (123, 2),
    "TPU v4": (275, 1),
    "TPU v5 lite": (197, 1),
    "TPU v5e": (197, 1),
    "TPU v5": (459, 1),
    "TPU v5p": (459, 1),
    "TPU v6 lite": (918, 1),
    "TPU v6e": (918, 1),
    "TPU7x": (2307, 2),
    "NVIDIA A100-SXM4-40GB": (312, 1),
    "NVIDIA A100-SXM4-80GB": (312, 1),
    "NVIDIA A100-PCIE-40GB": (312, 1),
    "NVIDIA A100 80GB PCIe": (312, 1),
    "A100-SXM4-40GB": (312, 1),
    "NVIDIA H100 80GB HBM3": (989.4, 1),
    "NVIDIA H100 PCIe": (756, 1),
    "NVIDIA H100 NVL": (835.5, 1),
    "NVIDIA H200": (989.4, 1),
    "NVIDIA H200 NVL": (835.5, 1),
    "NVIDIA GH200 480GB": (989.4, 1),
    "NVIDIA B200": (2250, 1),
    "NVIDIA GB200": (2500, 1),
    "NVIDIA L4": (121, 1),
    "NVIDIA L40S": (362.05, 1),
    "nvidia h200 ": (989.4, 1),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_known_kinds(kind: str) -> None:
    tera, devices = KNOWN[kind]
    assert peak_flops(kind, 16) == pytest.approx(tera * 1e12 * 16 / devices)
    matching = [chip for chip in CHIPS if re.fullmatch(chip.kinds, kind.strip(), re.IGNORECASE)]
    assert matching == [find_chip(kind)]


@pytest.mark.parametrize(
    "kind",
    [
        "cpu",
        "",
        "TPU v5 litepod",
        "TPU v4 lite",
        "TPU v9",
        "NVIDIA L40",
        "NVIDIA H100",
        "NVIDIA H20",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "Tesla V100-SXM2-16GB",
    ],
)
def test_unknown_kinds_have_no_number_but_a_hint(kind: str) -> None:
    assert find_chip(kind) is None
    assert peak_flops(kind, 8) is None
    assert "peak_flops=" in hint(kind)


def test_every_chip_is_known_by_a_kind() -> None:
    assert {find_chip(kind) for kind in KNOWN} == set(CHIPS)


def test_every_figure_has_a_source() -> None:
    for chip in CHIPS:
        assert chip.source.startswith("https://") and chip.flops >= 46e12 and chip.devices in (1, 2)
    assert len({chip.name for chip in CHIPS}) == len(CHIPS)


@pytest.mark.jax
def test_devices_of_this_machine() -> None:
    jax = pytest.importorskip("jax")
    devices = jax.devices()
    assert peak_of(devices) == peak_flops(devices[0].device_kind, len(devices))
    assert peak_of([]) is None
