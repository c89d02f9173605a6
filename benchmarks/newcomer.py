"""How long a newcomer takes: from nothing to a right figure, to a dashboard's query, to a manifest for GKE.

Run as ``python -m benchmarks.newcomer``; writes RESULTS-NEWCOMER.md. The commands are those of README.md and docs/, in
empty folders, with a new environment and an empty cache of packages. Reading and typing are not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/RESULTS-NEWCOMER.md"
COLLECTOR = ROOT / "collector/bin/otelcol-goodput"
PROMETHEUS = ROOT / ".venv/bin/prometheus"
PATIENCE_S = 900
PREFACE = """# What a newcomer waits for

Written by `make bench-newcomer`, which runs the commands of README.md and docs/ one by one: in empty folders, with a
new virtual environment and an empty cache of packages. Reading and typing are not counted. Packages come from the index
that pip is configured with, which may be nearer or farther than yours.

"""
SCRAPE = """global: {scrape_interval: 1s}
scrape_configs:
  - job_name: otel
    honor_labels: true
    static_configs: [{targets: ["localhost:8889"]}]
"""


class Taken(NamedTuple):
    """A command as the newcomer types it, and the seconds until it had done its work."""

    command: str
    seconds: float


class Walk:
    """One folder that is empty at first, and the commands that were typed in it."""

    def __init__(self, home: Path, name: str) -> None:
        self.place = home / name
        self.place.mkdir()
        self.taken: list[Taken] = []
        bin_ = self.place / ".venv/bin"
        self.environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("OTEL_", "PYTHON", "VIRTUAL_ENV", "CONDA", "MAKE"))
        }
        self.environment |= {
            "HOME": str(home / "home"),
            "XDG_CACHE_HOME": str(home / f"cache-{name}"),
            "PIP_CACHE_DIR": str(home / f"cache-{name}/pip"),
            "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
            "JAX_PLATFORMS": "cpu",
        }

    def run(self, command: str, shown: str | None = None, where: Path | None = None) -> str:
        """Run a shell command to its end; returns its output. Raises RuntimeError if it fails."""
        begun = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", command], cwd=where or self.place, env=self.environment, capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
        self.take(shown or command, begun)
        return done.stdout

    def take(self, command: str, begun: float) -> None:
        self.taken.append(Taken(command, time.monotonic() - begun))
        print(f"  {self.taken[-1].seconds:7.1f} s  {command}", flush=True)

    @contextmanager
    def in_background(self, command: str) -> Iterator[None]:
        """A program that runs on while the next commands are typed."""
        with (self.place / "beside.log").open("ab") as log:
            child = subprocess.Popen(shlex.split(command), cwd=self.place, env=self.environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            child.terminate()
            child.wait(PATIENCE_S)


def block(page: str, name: str) -> str:
    """The file `name` as a page shows it: the Python block that begins with its name."""
    match = re.search(rf"^```python\n(# {re.escape(name)}\n.*?)^```$", (ROOT / page).read_text("utf-8"), re.M | re.S)
    if match is None:
        raise LookupError(f"{page} shows no {name}")
    return match[1]


def right(walk: Walk, steps: int) -> None:
    """Hold the report against what ran: every step kept, every nanosecond in one category."""
    report = json.loads(subprocess.run(
        ["otel-goodput", "report", "--json"], cwd=walk.place, env=walk.environment, capture_output=True, check=True,
        executable=str(walk.place / ".venv/bin/otel-goodput"), timeout=PATIENCE_S,
    ).stdout)  # fmt: skip
    if report["steps"]["kept"] != steps or not math.isclose(
        sum(report["seconds"].values()), report["elapsed_s"], rel_tol=1e-6
    ):
        raise RuntimeError(f"a wrong report: {report}")


def from_a_clone(home: Path) -> Walk:
    walk = Walk(home, "clone")
    walk.run(f"git clone --quiet {ROOT} otel_goodput", "git clone …")
    walk.run("python3 -m venv .venv")
    walk.run("pip install --quiet -e '.[jax]'", where=walk.place / "otel_goodput")
    (walk.place / "train.py").write_text(block("README.md", "train.py"), "utf-8")
    walk.run("python train.py", "python train.py    # README's ten lines; prints the first report")
    right(walk, 200)
    return walk


def from_a_wheel(home: Path) -> Walk:
    walk = Walk(home, "wheel")
    built = Walk(home, "build")
    built.run("python3 -m venv .venv && pip install --quiet build")
    built.run(f"python -m build --quiet --wheel --outdir {walk.place}/dist {ROOT}")
    walk.run("python3 -m venv .venv")
    walk.run('pip install --quiet "$(ls dist/*.whl)[jax]"', "pip install 'otel_goodput-….whl[jax]'")
    (walk.place / "train.py").write_text(block("README.md", "train.py"), "utf-8")
    walk.run("python train.py", "python train.py    # prints the first report")
    right(walk, 200)
    return walk


def to_a_dashboard(home: Path) -> Walk:
    """On the clone's environment, with a collector and a Prometheus that are there."""
    walk = Walk(home, "dashboard")
    walk.environment["PATH"] = f"{home}/clone/.venv/bin{os.pathsep}{os.environ['PATH']}"
    walk.run("pip install --quiet -e '.[otlp,serve]'", where=home / "clone/otel_goodput")
    shutil.copy(home / "clone/train.py", walk.place)
    (walk.place / "prometheus.yml").write_text(SCRAPE, "utf-8")
    walk.run("otel-goodput collector config local > config.yaml")
    begun = time.monotonic()
    with (
        walk.in_background(f"{COLLECTOR} --config=config.yaml"),
        walk.in_background(f"{PROMETHEUS} --config.file=prometheus.yml --web.listen-address=127.0.0.1:9090"),
    ):
        until(lambda: get("http://localhost:13133") and get("http://localhost:9090/-/ready"))
        walk.take("otelcol-contrib --config=config.yaml & prometheus --config.file=prometheus.yml &", begun)
        send = "OTEL_GOODPUT_EXPORTERS=otlp OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 python train.py"
        walk.run(send)
        begun = time.monotonic()
        query = urllib.parse.urlencode({"query": 'goodput_ratio{goodput_window="run"}'})
        until(lambda: b'"value"' in get(f"http://localhost:9090/api/v1/query?{query}"))
        walk.take("# until the dashboard's query, goodput_ratio, has an answer", begun)
    walk.run("otel-goodput report --html report.html    # or the page, without any of these", where=home / "clone")
    return walk


def to_gke(home: Path) -> Walk:
    """As far as it goes without a cluster: the manifest. The suite holds it against Kubernetes' schemas."""
    walk = Walk(home, "gke")
    walk.environment["PATH"] = f"{home}/clone/.venv/bin{os.pathsep}{os.environ['PATH']}"
    page = (ROOT / "docs/google-cloud/gke.md").read_text("utf-8")
    match = re.search(r"^otel-goodput collector k8s jobset .*?> manifest\.yaml$", page, re.M | re.S)
    if match is None:
        raise LookupError("docs/google-cloud/gke.md writes no JobSet")
    walk.run(match[0], "otel-goodput collector k8s jobset … > manifest.yaml")
    commands = sum(
        len(re.findall(r"^(?:gcloud|kubectl|for) ", one, re.M))
        for one in re.findall(r"^```bash\n(.*?)^```$", page.partition("## 6")[0], re.M | re.S)
    )
    walk.taken.append(Taken(f"# not run here: {commands} commands of gcloud and kubectl up to kubectl apply", math.nan))
    return walk


def get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            read: bytes = answer.read()
            return read
    except OSError:
        return b""


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("nothing came")
        time.sleep(0.1)


WALKS: dict[str, Callable[[Path], Walk]] = {
    "From a clone to the first right figure": from_a_clone,
    "From the wheel alone to the first right figure": from_a_wheel,
    "From there to a dashboard on a laptop": to_a_dashboard,
    "To the manifest of a job on GKE": to_gke,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.newcomer", description="How long a newcomer takes to a right figure."
    )
    parser.add_argument("--no-write", action="store_true", help="only print; RESULTS-NEWCOMER.md stays")
    options = parser.parse_args()
    missing = [str(each.relative_to(ROOT)) for each in (COLLECTOR, PROMETHEUS) if not each.exists()]
    if missing:
        print(f"{' and '.join(missing)}: not there; `make parts` gets them", file=sys.stderr)
        return 1
    text = PREFACE + "\n".join(f"- {what}: {value}" for what, value in machine.describe()[:4]) + "\n"
    with tempfile.TemporaryDirectory(prefix="otel-goodput-newcomer-") as home:
        (Path(home) / "home").mkdir()
        for title, walk in WALKS.items():
            print(title, flush=True)
            taken = walk(Path(home)).taken
            total = sum(one.seconds for one in taken if not math.isnan(one.seconds))
            typed = sum(not one.command.startswith("#") for one in taken)
            commands = f"{typed} command" + "s" * (typed != 1)
            text += f"\n## {title}: {total:.0f} s, {commands}\n\n| command | seconds |\n|---|---:|\n"
            for command, seconds in taken:
                text += f"| `{command}` | {'' if math.isnan(seconds) else f'{seconds:.1f}'} |\n"
    if not options.no_write:
        RESULTS.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
