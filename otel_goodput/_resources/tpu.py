"""The TPU slice that this process belongs to, as reported by GKE, Cloud TPU and libtpu.

GKE reports it in the environment of a pod, Cloud TPU in attributes of the machine, mostly in the text ``tpu-env``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from otel_goodput import semconv
from otel_goodput._resources import accelerators
from otel_goodput._resources.facts import Fact, Value, index, text, told

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
    return _with_chip(told(VARIABLES, environ))


def of_machine(attributes: Mapping[str, object]) -> dict[str, Value]:
    """Return the attributes found in those of a machine; empty without a TPU."""
    lines = attributes.get(TPU_ENV)
    pairs = (line.partition(":") for line in (lines.splitlines() if isinstance(lines, str) else ()))
    quoted = {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}
    found = {**told(LINES, quoted), **told(ATTRIBUTES, attributes)}
    # Anybody may set attributes on a machine; only those of a TPU include its type.
    return _with_chip(found) if semconv.SLICE_TYPE in found else {}


def _with_chip(found: dict[str, Value]) -> dict[str, Value]:
    return {**found, **accelerators.of_slice(str(found.get(semconv.SLICE_TYPE, "")))}
