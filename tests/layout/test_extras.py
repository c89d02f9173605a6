"""Each extra, installed with the wheel in an environment of its own, is enough for what it promises."""

from __future__ import annotations

import email
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from emulators.google import GoogleEmulator
from exporters.backends import grpc_backend, http_backend
from http_server import HttpServer, Response
from tools.commands import environment

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.usage import read_usage

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 100
# A new environment may have these of its own, and nothing of ours asks for a version.
LEFT_OUT = {"pip", "setuptools", "uv", "wheel", "otel-goodput"}

JOB = """
import time
import otel_goodput as goodput
goodput.configure("job", run_id="run")
with goodput.job():
    for step, _ in goodput.steps(range(3)):
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass
goodput.shutdown()
"""


@dataclass
class Installed:
    """An environment with the wheel and an extra; nothing of the source tree can be imported there."""

    python: Path
    place: Path

    def run(self, *arguments: str, **variables: str) -> str:
        """Run its Python with `arguments` in an empty folder, and return what it prints."""
        done = subprocess.run(
            [str(self.python), "-I", *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            cwd=self.place, env=self.environment(**variables),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def environment(self, **variables: str) -> dict[str, str]:
        ours = {"OTEL_GOODPUT_DIR": str(self.place / "runs"), "OTEL_GOODPUT_STRICT": "1", **variables}
        plain = environment(**ours)
        return {name: value for name, value in plain.items() if name != "PYTHONPATH"}

    def job(self, exporters: str = "none", **variables: str) -> None:
        """A job of three steps."""
        self.run("-c", JOB, OTEL_GOODPUT_EXPORTERS=exporters, **variables)


@contextmanager
def installed(wheel: Path, extra: str, place: Path) -> Iterator[Installed]:
    """The wheel with `extra` in a new environment, at the versions that this process has."""
    folder, constraints = place / "venv", place / "constraints.txt"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=PATIENCE_S)
    versions = {one.metadata["Name"].lower().replace("_", "-"): one.version for one in metadata.distributions()}
    lines = [f"{name}=={version}\n" for name, version in versions.items() if name not in LEFT_OUT]
    constraints.write_text("".join(lines), encoding="utf-8")
    python = folder / "bin" / "python"
    what = ["--quiet", "--constraint", str(constraints), f"{wheel}[{extra}]" if extra else str(wheel)]
    uv = [sys.executable, "-m", "uv", "pip", "install", "--python", str(python)]
    # As `make` does: uv from its cache, else pip, which knows of indexes that uv does not read of.
    for command in ([*uv, "--offline"], uv, [sys.executable, "-m", "pip", "--python", str(python), "install"]):
        done = subprocess.run([*command, *what], capture_output=True, text=True, timeout=280, check=False)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    try:
        yield Installed(python, elsewhere)
    finally:
        shutil.rmtree(folder)


# --- what each extra promises -----------------------------------------------------------------------------------------


def nothing(here: Installed) -> None:
    """The core alone records, and the command tells of it."""
    verdict = here.run("-m", "otel_goodput", "doctor").splitlines()[0]
    assert f"$ otel-goodput doctor\n{verdict}\n" in (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    here.job("file")
    command = str(here.python.with_name("otel-goodput"))
    done = subprocess.run(
        [command, "report", "--json"], capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        cwd=here.place, env=here.environment(),
    )  # fmt: skip
    assert json.loads(done.stdout)["run_id"] == "run"


def otlp(here: Installed) -> None:
    for wire, backend in (("grpc", grpc_backend), ("http/protobuf", http_backend)):
        with backend() as received:
            here.job(
                "otlp", OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire,
                OTEL_GOODPUT_RUN_ID="run",
            )  # fmt: skip
            assert "job" in received.span_names() and received.metrics


def gcp(here: Installed) -> None:
    with GoogleEmulator() as google:
        here.job(
            "gcp,workload", OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, OTEL_GOODPUT_GCP_PROJECT="test-project",
            OTEL_GOODPUT_INTEGRATIONS="none",
        )  # fmt: skip
        assert google.spans and google.series
        assert not google.otlp_spans


def gcp_otlp(here: Installed) -> None:
    with GoogleEmulator() as google:
        here.job(
            "gcp-otlp", OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, OTEL_GOODPUT_GCP_PROJECT="test-project",
            OTEL_GOODPUT_INTEGRATIONS="none",
        )  # fmt: skip
        assert google.otlp_spans and google.otlp_series
        assert not google.spans


def remote(here: Installed) -> None:
    folder = here.place / "bucket"
    here.job(OTEL_GOODPUT_DIR=f"file://{folder}")
    assert list(folder.glob("run/journal/*"))
    output = here.run("-m", "otel_goodput", "report", f"file://{folder}", "--json")
    assert json.loads(output)["run_id"] == "run"


def serve(here: Installed) -> None:
    here.job()
    with subprocess.Popen(
        [str(here.python), "-I", "-m", "otel_goodput", "serve", "--port", "0"], stdout=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL, cwd=here.place, env=here.environment(),
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            address = next(line.strip() for line in process.stdout if line.strip().startswith("http://"))
            root, _, token = address.partition("?token=")
            request = urllib.request.Request(f"{root}api/runs", headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                (run,) = json.load(answer)["runs"]
            assert run["run_id"] == "run"
        finally:
            process.send_signal(signal.SIGINT)


def tensorboard(here: Installed) -> None:
    folder = here.place / "scalars"
    here.job("tensorboard", OTEL_GOODPUT_TENSORBOARD_DIR=str(folder))
    read = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator({folder!r})
events.Reload()
print(*events.Tags()["tensors"])
"""
    assert "goodput/ratio" in here.run("-c", read.format(folder=str(folder))).split()


def usage(here: Installed) -> None:
    here.job(OTEL_GOODPUT_USAGE_INTERVAL="1s")
    _, samples = read_usage(RunDirectory(here.place / "runs" / "run"), 0, 0)
    assert samples and samples[-1].process_memory > 2**20


def jax(here: Installed) -> None:
    output = here.run("-c", WITH_JAX, OTEL_GOODPUT_EXPORTERS="none", JAX_PLATFORMS="cpu")
    assert json.loads(output)["clock"] == "device"
    assert "step 299  error" in here.run(str(ROOT / "examples" / "quickstart.py"), JAX_PLATFORMS="cpu")


WITH_JAX = """
import json
import jax, jax.numpy as jnp
import otel_goodput as goodput
goodput.configure("job", run_id="run")
double = jax.jit(lambda x: 2 * x)
with goodput.job():
    for step, _ in goodput.steps(range(3)):
        double(jnp.ones(8))
goodput.shutdown()
print(json.dumps(goodput.report().to_json()))
"""


def orbax(here: Installed) -> None:
    output = here.run("-c", WITH_ORBAX, OTEL_GOODPUT_EXPORTERS="none", JAX_PLATFORMS="cpu")
    assert {*output.split()} == {"checkpoint_save", "checkpoint_restore"}


WITH_ORBAX = """
import pathlib
import jax.numpy as jnp
import orbax.checkpoint as ocp
import otel_goodput as goodput
goodput.configure("job", run_id="run")
state = {"weights": jnp.ones(4)}
with goodput.job(), ocp.CheckpointManager(pathlib.Path.cwd() / "checkpoints") as manager:
    manager.save(3, args=ocp.args.StandardSave(state))
    manager.wait_until_finished()
    manager.restore(3, args=ocp.args.StandardRestore(state))
goodput.shutdown()
print(*(phase.phase for phase in goodput.open_run("runs", "run").phases() if phase.phase.startswith("checkpoint")))
"""


def notify(here: Installed) -> None:
    with HttpServer(lambda request: Response()) as server:
        here.run("-m", "otel_goodput", "doctor", "--notify", OTEL_GOODPUT_NOTIFY=f"json://127.0.0.1:{server.port}")
        assert len(server.requests) == 1


def mcp(here: Installed) -> None:
    here.job()
    assert here.run("-c", ASKING).split() == ["run"]


ASKING = """
import asyncio, json, sys
from mcp import Client, StdioServerParameters, stdio_client
async def ask():
    command = StdioServerParameters(command=sys.executable, args=["-I", "-m", "otel_goodput", "mcp", "runs"])
    async with Client(stdio_client(command)) as client:
        return await client.call_tool("runs", {})
print(*(one["run_id"] for one in json.loads(asyncio.run(ask()).content[0].text)["runs"]))
"""


def everything(here: Installed) -> None:
    """All exporters can be opened in one process, and reach what they send to."""
    with GoogleEmulator() as google, grpc_backend() as received:
        output = here.run(
            "-m", "otel_goodput", "doctor", "--gcp", "--json",
            OTEL_GOODPUT_EXPORTERS="file,otlp,gcp,workload,gcp-otlp,tensorboard",
            OTEL_GOODPUT_TENSORBOARD_DIR=str(here.place / "scalars"), OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint,
            OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, OTEL_GOODPUT_GCP_PROJECT="test-project",
        )  # fmt: skip
    answer: dict[str, Any] = json.loads(output)
    assert answer["problems"] == 0
    assert "file, otlp, gcp, workload, gcp-otlp, tensorboard" in answer["verdict"]
    here.run(
        "-c",
        "import fsspec, psutil, pynvml, starlette, uvicorn; from importlib import util; assert util.find_spec('orbax')",
    )


def completion(here: Installed) -> None:
    assert "compare" in here.run("-m", "otel_goodput", "completion", "fish")


def run(here: Installed) -> None:
    (here.place / "program.py").write_text("print(__name__)")
    variables = {"OTEL_GOODPUT_EXPORTERS": "none", "OTEL_GOODPUT_DIR": str(here.place / "whole")}
    assert here.run("-m", "otel_goodput", "run", str(here.place / "program.py"), **variables) == "__main__\n"
    assert (here.place / "whole" / "program" / "run.json").exists()


USES: dict[str, Callable[[Installed], None]] = {
    "": nothing,
    "completion": completion,
    "gcp": gcp,
    "gcp-otlp": gcp_otlp,
    "otlp": otlp,
    "jax": jax,
    "mcp": mcp,
    "notify": notify,
    "orbax": orbax,
    "remote": remote,
    "run": run,
    "serve": serve,
    "tensorboard": tensorboard,
    "usage": usage,
    "all": everything,
}


def test_every_extra_is_tested_documented_and_in_all(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(content.read(name))
    needs: dict[str, set[str]] = {extra: set() for extra in metadata.get_all("Provides-Extra", [])}
    assert needs.keys() == USES.keys() - {""}
    for line in metadata.get_all("Requires-Dist", []):
        requirement, _, extra = line.partition("; extra == ")
        if extra:
            needs[extra.strip("'")].add(requirement)
    whole = needs.pop("all")
    assert all(needs.values()) and whole == set().union(*needs.values())
    table = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    documented = re.findall(r"`([\w-]+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert sorted(documented) == sorted([*needs, "all"])


@pytest.mark.release
@pytest.mark.servers
@pytest.mark.parametrize("extra", USES)
def test_an_extra_is_enough_for_what_it_promises(extra: str, wheel: Path, tmp_path: Path) -> None:
    with installed(wheel, extra, tmp_path) as here:
        where = here.run("-c", "from importlib.util import find_spec; print(find_spec('otel_goodput').origin)")
        assert Path(where).is_relative_to(here.python.parents[1])
        USES[extra](here)
