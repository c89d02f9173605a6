"""What ``mypy --strict`` refuses, and below each such line what it says. It is never run."""

from __future__ import annotations

from pathlib import Path

import otel_goodput as goodput
from otel_goodput import Recorder

goodput.configure("job", exporter="otlp")
# Unexpected keyword argument "exporter" for "configure"; did you mean "exporters"?  [call-arg]
goodput.configure("job", step_sampling="ten")
# Argument "step_sampling" to "configure" has incompatible type "str"; expected "int | None"  [arg-type]
goodput.configure(directory=3)
# Argument "directory" to "configure" has incompatible type "int"; expected "str | Path | None"  [arg-type]
Recorder("job", runid="run")
# Unexpected keyword argument "runid" for "Recorder"; did you mean "run_id"?  [call-arg]
goodput.configure("job").step(1)
# Item "None" of "Recorder | None" has no attribute "step"  [union-attr]

with goodput.step("one") as step:
    # Argument 1 has incompatible type "str"; expected "SupportsIndex"  [arg-type]
    step.observ(1)
    # "FastSpan" has no attribute "observ"; maybe "observe"?  [attr-defined]
with goodput.step():
    # Too few arguments  [call-arg]
    pass
with goodput.custom():
    # Too few arguments  [call-arg]
    pass
with goodput.checkpoint_save(1, durable="no") as save:
    # Argument "durable" has incompatible type "str"; expected "bool"  [arg-type]
    save.durably()
    # "Save" has no attribute "durably"; maybe "durable"?  [attr-defined]
with goodput.job(start_time="now") as job:
    # Argument "start_time" has incompatible type "str"; expected "int | None"  [arg-type]
    job.observe(1)
    # "Span" has no attribute "observe"  [attr-defined]
for number, batch in goodput.steps([b"a"]):
    number.observ(1)
    # "int" has no attribute "observ"  [attr-defined]
    batch.decode(3)
    # Argument 1 to "decode" of "bytes" has incompatible type "int"; expected "str"  [arg-type]
goodput.elastic_wait(3)
# Argument 1 has incompatible type "int"; expected "str"  [arg-type]
goodput.slice_counts(1, 2)
# Too few arguments  [call-arg]
goodput.on_preemption(3)
# Value of type variable "C" of "on_preemption" cannot be "int"  [type-var]
goodput.report().to_json()
# Item "None" of "Report | None" has no attribute "to_json"  [union-attr]
goodput.stepp(1)
# Module has no attribute "stepp"; maybe "step" or "steps"?  [attr-defined]


@goodput.traced_step
def train(state: dict[str, int], *, scale: float) -> Path:
    return Path()


@goodput.step(1)
def first(batch: bytes) -> int:
    return 1


train(3, scale=1.0)
# Argument 1 to "train" has incompatible type "int"; expected "dict[str, int]"  [arg-type]
train({}).exists()
# Missing named argument "scale" for "train"  [call-arg]
first("a")
# Argument 1 to "first" has incompatible type "str"; expected "bytes"  [arg-type]
