"""Peak FLOP/s of chips: the denominator of program goodput (MFU).

Figures are dense bfloat16 FLOP/s of a whole chip, as its maker states them. NVIDIA's data sheets print the figure with
2:4 sparsity, which is twice the dense one. A chip that is not in the table has no peak; none is guessed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from otel_goodput.guard import report_once

TERA: Final = 1e12


class Chip(NamedTuple):
    """One kind of chip.

    Attributes:
        name: common name.
        kinds: regular expression for jax's ``device_kind``; must match all of it, ignoring case.
        flops: dense bfloat16 operations per second.
        devices: how many devices jax counts for one chip.
        source: address of the page with the figure.
    """

    name: str
    kinds: str
    flops: float
    devices: int
    source: str


_TPU: Final = "https://cloud.google.com/tpu/docs/"
_NVIDIA: Final = "https://www.nvidia.com/en-us/data-center/"
_HOPPER: Final = "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper"

# jax counts one device for each chip, but two for v3 and 7x, one for each of the cores.
CHIPS: Final[tuple[Chip, ...]] = (
    # "Peak compute per chip (bf16)" on the page of each.
    Chip("TPU v3", "TPU v3", 123 * TERA, 2, _TPU + "v3"),
    Chip("TPU v4", "TPU v4", 275 * TERA, 1, _TPU + "v4"),
    Chip("TPU v5e", "TPU v5 ?lite|TPU v5e", 197 * TERA, 1, _TPU + "v5e"),
    Chip("TPU v5p", "TPU v5p?", 459 * TERA, 1, _TPU + "v5p"),
    Chip("TPU v6e", "TPU v6 ?lite|TPU v6e", 918 * TERA, 1, _TPU + "v6e"),
    Chip("TPU 7x", "TPU ?v?7x", 2307 * TERA, 2, _TPU + "tpu7x"),
    # "BFLOAT16 Tensor Core 312 TFLOPS | 624 TFLOPS*", the same for SXM and PCIe, 40 and 80 GB.
    Chip("A100", r"(NVIDIA )?A100-(SXM4|PCIE)-\d+GB|NVIDIA A100 80GB PCIe", 312 * TERA, 1, _NVIDIA + "a100/"),
    # "Peak BF16 Tensor TFLOPS with FP32 Accumulate 989.4/1978.9" of SXM5, "756/1513" of PCIe.
    Chip("H100 SXM", "NVIDIA H100 80GB HBM3", 989.4 * TERA, 1, _HOPPER),
    Chip("H100 PCIe", "NVIDIA H100 PCIe", 756 * TERA, 1, _HOPPER),
    # "BFLOAT16 Tensor Core 1,671 teraFLOPS*" with sparsity.
    Chip("H100 NVL", "NVIDIA H100 NVL", 835.5 * TERA, 1, _NVIDIA + "h100/"),
    # "BFLOAT16 Tensor Core 1,979 TFLOPS" of SXM, "1,671 TFLOPS" of NVL, with sparsity: the chips of the H100.
    Chip("H200 SXM", "NVIDIA H200", 989.4 * TERA, 1, _NVIDIA + "h200/"),
    Chip("H200 NVL", "NVIDIA H200 NVL", 835.5 * TERA, 1, _NVIDIA + "h200/"),
    Chip("GH200", r"NVIDIA GH200 \d+GB", 989.4 * TERA, 1, _NVIDIA + "grace-hopper-superchip/"),
    # "FP16/BF16 Tensor Core 4.5 PFLOPS" and "5 PFLOPS" a GPU, with sparsity.
    Chip("B200", "NVIDIA B200", 2250 * TERA, 1, _NVIDIA + "hgx/"),
    Chip("GB200", "NVIDIA GB200", 2500 * TERA, 1, _NVIDIA + "gb200-nvl72/"),
    # "BFLOAT16 Tensor Core 242 teraFLOPS*" with sparsity, and "362.05 | 733* TFLOPS".
    Chip("L4", "NVIDIA L4", 121 * TERA, 1, _NVIDIA + "l4/"),
    Chip("L40S", "NVIDIA L40S", 362.05 * TERA, 1, _NVIDIA + "l40s/"),
)


def find_chip(device_kind: str) -> Chip | None:
    """Return the chip that jax calls `device_kind`; None if it is not in the table.

    A partition of a GPU (MIG) is not in it: its share of the peak does not follow from its name.
    """
    kind = device_kind.strip()
    return next((chip for chip in CHIPS if re.fullmatch(chip.kinds, kind, re.IGNORECASE)), None)


def peak_flops(device_kind: str, device_count: int) -> float | None:
    """Return the dense bfloat16 FLOP/s of `device_count` devices; None for an unknown chip, see :func:`hint`.

    Args:
        device_kind: ``jax.devices()[0].device_kind``.
        device_count: ``jax.device_count()``, over all processes.
    """
    chip = find_chip(device_kind)
    return None if chip is None else chip.flops / chip.devices * device_count


def peak_of(devices: Sequence[Any]) -> float | None:
    """Return :func:`peak_flops` of `devices`, such as ``jax.devices()``; None also if chips differ."""
    kinds = {str(device.device_kind) for device in devices}
    return peak_flops(kinds.pop(), len(devices)) if len(kinds) == 1 else None


def backend_started() -> bool:
    """Return whether jax knows its devices already. Asking for them would start it, too early for some jobs."""
    # Not public; in a jax without it the only peak is one set by the user.
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bool(getattr(bridge, "backends_are_initialized", lambda: False)())


def peak_of_all() -> float | None:
    """Return :func:`peak_of` of all devices of jax; if they have no stated peak, log that once."""
    import jax

    devices = jax.devices()
    peak = peak_of(devices)
    if peak is None:
        report_once("peak flops", "%s", hint(devices[0].device_kind))
    return peak


def hint(device_kind: str) -> str:
    """Return the message for a user whose chip is not in the table."""
    if device_kind.strip().lower() == "cpu":
        return "a CPU has no stated peak, so there is no program goodput (MFU); peak_flops= sets one"
    return (
        f"the peak of {device_kind!r} is not known, so there is no program goodput (MFU); set configure(peak_flops=…) "
        "to the FLOP/s of all chips together"
    )
