"""The chips of this host, by its machine type, the type of its TPU slice, or NVIDIA's driver; and its TPU slice.

Chips are named as in ``integrations.peaks`` if they are in its table. The count is that of the host's chips, even if
this process uses only some of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_goodput import semconv
from otel_goodput._integrations.flops import find_chip
from otel_goodput._runtime import files
from otel_goodput._settings.placement import whole
from otel_goodput.semconv import ACCELERATOR_COUNT, ACCELERATOR_TYPE

LONGEST: Final = 256  # characters of a value at most; names of machines and pods have a quarter of that

Value = str | int


def text(given: object) -> str | None:
    """Return a short printable text, also for an int; None for anything else."""
    if isinstance(given, bool) or not isinstance(given, (str, int)):
        return None
    stripped = str(given).strip()
    return stripped if stripped.isprintable() and 0 < len(stripped) <= LONGEST else None


def index(given: object) -> int | None:
    """Return a non-negative int, given as int or text; None for anything else."""
    return whole(text(given) or "")


class Fact(NamedTuple):
    """An attribute's key, the names that may hold its value (the first valid one counts), and how the value is read."""

    key: str
    names: tuple[str, ...]
    read: Callable[[object], Value | None] = text


def read(facts: Iterable[Fact], source: Mapping[str, object]) -> dict[str, Value]:
    attributes: dict[str, Value] = {}
    for fact in facts:
        values = (fact.read(source.get(name)) for name in fact.names)
        value = next((value for value in values if value is not None), None)
        if value is not None:
            attributes[fact.key] = value
    return attributes


def mapping(given: object) -> Mapping[str, Any]:
    """Return what was JSON's object; empty if it was anything else."""
    return given if isinstance(given, dict) else {}


DRIVER: Final = Path("/proc/driver/nvidia/gpus")
_MODEL: Final = re.compile(r"^Model:\s*(\S.*?)\s*$", re.MULTILINE)


class Accelerator(NamedTuple):
    """One kind of chip, with regular expressions: for all of a machine type with it, whose group is the number of
    chips, and for the beginning of a TPU slice's type.
    """

    name: str
    machines: str
    slices: str = ""


# https://cloud.google.com/compute/docs/gpus and https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus.
# N1 is not here: any GPU may be attached to it.
ACCELERATORS: Final = (
    Accelerator("TPU v2", "", "v2"),
    Accelerator("TPU v3", r"ct3p?-hightpu-(\d+)t", "v3"),
    Accelerator("TPU v4", r"ct4p-hightpu-(\d+)t", "v4"),
    Accelerator("TPU v5e", r"ct5lp?-hightpu-(\d+)t", "v5litepod|v5-lite|v5e"),
    Accelerator("TPU v5p", r"ct5p-hightpu-(\d+)t", "v5p"),
    Accelerator("TPU v6e", r"ct6e-standard-(\d+)t", "v6e"),
    Accelerator("TPU 7x", r"tpu7x-standard-(\d+)t", "v?7x"),
    Accelerator("A100", r"a2-(?:high|mega|ultra)gpu-(\d+)g"),
    Accelerator("H100 SXM", r"a3-(?:high|mega|edge)gpu-(\d+)g"),
    Accelerator("H200 SXM", r"a3-ultragpu-(\d+)g"),
    Accelerator("B200", r"a4-highgpu-(\d+)g"),
    Accelerator("GB200", r"a4x-highgpu-(\d+)g"),
    Accelerator("GB300", r"a4x-maxgpu-(\d+)g"),
    Accelerator("L4", r"g2-standard-\d+"),
    Accelerator("RTX PRO 6000 Blackwell Server Edition", r"g4-standard-\d+"),
)
# Machine types whose number counts virtual CPUs, and their chips. The smaller ones of G4 have a part of a chip.
_COUNTS: Final = {
    **{f"g2-standard-{cpus}": 1 for cpus in (4, 8, 12, 16, 32)},
    "g2-standard-24": 2,
    "g2-standard-48": 4,
    "g2-standard-96": 8,
    **{f"g4-standard-{48 * count}": count for count in (1, 2, 4, 8)},
}
_VARIANT: Final = "(?:-nolssd|-metal)?"


def of_machine(machine_type: str) -> dict[str, Value]:
    """Return type and number of chips of a Google Cloud machine type such as ``a3-highgpu-8g``, as far as known."""
    for accelerator in ACCELERATORS:
        match = re.fullmatch(accelerator.machines + _VARIANT, machine_type) if accelerator.machines else None
        if match is not None:
            return _attributes(accelerator.name, int(match[1]) if match.groups() else _COUNTS.get(machine_type))
    return {}


def of_slice(slice_type: str) -> dict[str, Value]:
    """Return the chip type of a TPU slice such as ``v5litepod-256`` or, as GKE names it, ``tpu-v6e-slice``."""
    for accelerator in ACCELERATORS:
        if accelerator.slices and re.fullmatch(f"(?:tpu-?)?(?:{accelerator.slices})(?:-.*)?", slice_type.lower()):
            return _attributes(accelerator.name, None)
    return {}


def of_driver(gpus: Path = DRIVER) -> dict[str, Value]:
    """Return type and number of the GPUs listed by NVIDIA's driver; empty if there are none, or several types."""
    try:
        models = [
            _MODEL.search(files.read_named(path).decode("utf-8", "replace")) for path in gpus.glob("*/information")
        ]
    except OSError:
        return {}
    names = {text(match[1]) if match is not None else None for match in models}
    name = names.pop() if len(names) == 1 else None
    if name is None:
        return {}
    chip = find_chip(name)
    return _attributes(name.removeprefix("NVIDIA ") if chip is None else chip.name, len(models))


def _attributes(name: str, count: int | None) -> dict[str, Value]:
    return {ACCELERATOR_TYPE: name} if count is None else {ACCELERATOR_TYPE: name, ACCELERATOR_COUNT: count}


# --- TPU slices: GKE reports them in the environment of a pod, Cloud TPU in attributes of the machine (`tpu-env`) -----

MOST_CHIPS: Final = 64  # of one host at most; real ones have up to 8


def chips(given: object) -> int | None:
    """Return how many chips lie within bounds such as ``2,2,1``; None for anything else."""
    bounds = [index(bound) for bound in (text(given) or "").split(",")]
    count = math.prod(bound or 0 for bound in bounds)
    return count if len(bounds) == 3 and 0 < count <= MOST_CHIPS else None


_MULTISLICE: Final = (
    Fact(semconv.SLICE_INDEX, ("MEGASCALE_SLICE_ID",), index),
    Fact(semconv.SLICE_COUNT, ("MEGASCALE_NUM_SLICES",), index),
)
VARIABLES: Final = (
    Fact(semconv.SLICE_NAME, ("TPU_NAME",)),
    Fact(semconv.SLICE_TYPE, ("TPU_ACCELERATOR_TYPE",)),
    Fact(semconv.SLICE_TOPOLOGY, ("TPU_TOPOLOGY",)),
    Fact(semconv.SLICE_WORKER, ("TPU_WORKER_ID", "CLOUD_TPU_TASK_ID"), index),
    Fact(semconv.ACCELERATOR_COUNT, ("TPU_CHIPS_PER_HOST_BOUNDS",), chips),
    *_MULTISLICE,
)
ATTRIBUTES: Final = (
    Fact(semconv.SLICE_NAME, ("instance-id",)),
    Fact(semconv.SLICE_TYPE, ("accelerator-type",)),
    Fact(semconv.SLICE_WORKER, ("agent-worker-number",), index),
)
TPU_ENV: Final = "tpu-env"
LINES: Final = (
    Fact(semconv.SLICE_NAME, ("NODE_ID",)),
    Fact(semconv.SLICE_TYPE, ("ACCELERATOR_TYPE",)),
    Fact(semconv.SLICE_TOPOLOGY, ("TOPOLOGY",)),
    Fact(semconv.SLICE_WORKER, ("WORKER_ID",), index),
    Fact(semconv.ACCELERATOR_COUNT, ("CHIPS_PER_HOST_BOUNDS",), chips),
    *_MULTISLICE,
)


def of_environment(environ: Mapping[str, str]) -> dict[str, Value]:
    """Return the attributes found in the environment; empty without a TPU."""
    known = read(VARIABLES, environ)
    return {**known, **of_slice(str(known.get(semconv.SLICE_TYPE, "")))}


def of_slice_attributes(attributes: Mapping[str, object]) -> dict[str, Value]:
    """Return the attributes found in those of a machine; empty without a TPU."""
    lines = attributes.get(TPU_ENV)
    pairs = (line.partition(":") for line in (lines.splitlines() if isinstance(lines, str) else ()))
    quoted = {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}
    known = {**read(LINES, quoted), **read(ATTRIBUTES, attributes)}
    # Anybody may set attributes on a machine; only those of a TPU include its type.
    return {**known, **of_slice(str(known[semconv.SLICE_TYPE]))} if semconv.SLICE_TYPE in known else {}
