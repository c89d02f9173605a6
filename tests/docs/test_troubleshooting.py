"""What the page of symptoms quotes is what the program says: each is brought about, in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import warm

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
START = 'import otel_goodput as goodput\ngoodput.configure("llama")\n'
JOB = f"{START}with goodput.job():\n    for step, batch in goodput.steps(range(20)): pass\n"
IN_JAX = """import jax, jax.numpy as jnp
import otel_goodput as goodput
goodput.configure("llama", {argument})
update, state = jax.jit(lambda state: state + 1, donate_argnums=0), jnp.ones(8)
with goodput.job():
    for step, batch in goodput.steps(range(200)):
        old, state = state, update(state)
        {last}
print(goodput.report())
"""


class Symptom(NamedTuple):
    """What is quoted, what brings it about (programs, or commands), and the environment that it needs."""

    quoted: str
    programs: tuple[str, ...]
    environ: dict[str, str] = {}  # noqa: RUF012


SYMPTOMS = [
    Symptom("Steps began, but no job was opened", (f"{START}for step, batch in goodput.steps(range(3)): pass",)),
    Symptom("Steps began after goodput.job() ended and are not accounted for", (
        f"{START}with goodput.job(): pass\nwith goodput.step(0): pass",)),
    Symptom("Step 0 began after step 19, but no checkpoint was restored in between, so the repeated steps count as "
            "lost work.", (f"{JOB}    with goodput.step(0): pass",)),
    Symptom("step() needs a step number (an integer >= 0), not -1; this phase is not recorded", (
        f"{START}with goodput.job(), goodput.step(-1): pass",)),
    Symptom("custom() needs a name that is not blank; this phase is not recorded", (
        f"{START}with goodput.job(), goodput.custom(''): pass",)),
    Symptom("elastic_wait(): kind must be one of slice_down, scale_up, not 'x'; this phase is not recorded", (
        f"{START}with goodput.job(), goodput.elastic_wait('x'): pass",)),
    Symptom("this start continues it as another attempt, and the time between counts as infrastructure recovery.", (
        JOB, JOB), {"OTEL_GOODPUT_RUN_ID": "x"}),
    Symptom("as process 0; this process records its own run 'llama~", (
        f"import subprocess, sys\n{START}subprocess.run([sys.executable, '-c', {START!r}])",)),
    Symptom("holds no run: expected DIR/<run id>/journal", ("report",)),
    Symptom("holds no run 'nope'; it holds llama", (JOB, "report --run nope")),
    Symptom("there are 2 runs; choose one with --run: a, b", (
        "from otel_goodput import Recorder\nfor name in 'ab':\n    with Recorder(name) as one, one.job(): pass",
        "export --perfetto trace.json")),
    Symptom("report() before configure(): nothing is recorded", ("import otel_goodput\notel_goodput.report()",)),
    Symptom("configure() was called again: the previous recorder is shut down", (f"{START}goodput.configure('b')",)),
    Symptom("the journal cannot be written to /dev/null/x/llama (Not a directory: /dev/null): live figures continue, "
            "but a restart will not know of this attempt", (JOB,), {"OTEL_GOODPUT_DIR": "/dev/null/x"}),
    Symptom("OTEL_GOODPUT_STEP_SAMPLING='zero' is ignored, '100' is used", (JOB,), {
        "OTEL_GOODPUT_STEP_SAMPLING": "zero"}),
    Symptom("OTEL_GOODPUT_EXPORTERS='gpc' is ignored, 'auto' is used: unknown exporter 'gpc'", (JOB,), {
        "OTEL_GOODPUT_EXPORTERS": "gpc"}),
    Symptom("exporter tensorboard cannot write its scalars, will keep trying", (JOB,), {
        "OTEL_GOODPUT_EXPORTERS": "tensorboard", "OTEL_GOODPUT_TENSORBOARD_DIR": "/dev/null/tb"}),
    Symptom("spans have not reached every exporter. They are in the journal: the next attempt of run 'llama' exports "
            "them, or `otel-goodput recover goodput --run llama`", (JOB,), {
        "OTEL_GOODPUT_EXPORTERS": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:9",
        "OTEL_GOODPUT_GRACE_PERIOD": "1"}),
    Symptom("nothing listens at localhost:9; shutdown waited", (JOB,), {
        "OTEL_GOODPUT_EXPORTERS": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:9",
        "OTEL_GOODPUT_GRACE_PERIOD": "1"}),
]  # fmt: skip
ON_A_DEVICE = [
    Symptom("goodput.observe() was given an array that is donated to the next step, or deleted", (
        IN_JAX.format(argument="", last="goodput.observe(old)"),)),
    Symptom("goodput.observe() was given int, which contains no jax array: nothing is observed", (
        IN_JAX.format(argument="", last="goodput.observe(3)"),)),
    Symptom("Steps run asynchronously on a device, and it is not known when the device finishes them", (
        IN_JAX.format(argument="device_clock='observe'", last="pass"),)),
]  # fmt: skip


def message_of(symptom: Symptom, folder: Path) -> str:
    """All that its programs print, with notes of reports in one line."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environ |= {"OTEL_GOODPUT_EXPORTERS": "none", **symptom.environ}
    text = ""
    for program in symptom.programs:
        command = ["-c", program] if "\n" in program else ["-m", "otel_goodput", *program.split()]
        done = warm.run(
            [sys.executable, *command],
            cwd=folder, env=environ, capture_output=True, text=True, timeout=60, jax="import jax" in program,
        )  # fmt: skip
        text += done.stdout + done.stderr
    return " ".join(text.split())


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=[one.quoted[:40] for one in SYMPTOMS])
def test_the_message_is_quoted_exactly(symptom: Symptom, tmp_path: Path) -> None:
    assert symptom.quoted in PAGE
    assert symptom.quoted in message_of(symptom, tmp_path)


@pytest.mark.parametrize("symptom", ON_A_DEVICE, ids=[one.quoted[:40] for one in ON_A_DEVICE])
def test_the_message_about_a_device_is_quoted_exactly(symptom: Symptom, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    assert symptom.quoted in PAGE
    assert symptom.quoted in message_of(symptom, tmp_path)


def test_there_are_many_symptoms_and_none_twice() -> None:
    titles = [line for line in PAGE.splitlines() if line.startswith("### ")]
    assert len(titles) == len(set(titles)) >= 40
