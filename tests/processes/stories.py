"""Small jobs of three real processes, each with something that costs them time, and what every reader says of them.

All jobs run at the same time, and each reader reads each of them once.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final, NamedTuple

import warm
from waits import until

from benchmarks.container import Container
from otel_goodput._tools.cli import main
from otel_goodput.semconv import Category

COUNT: Final = 3
HANG_S: Final = 2.0
RANK: Final = """
import json, os, signal, sys, threading, time
from pathlib import Path
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
import otel_goodput as goodput
from otel_goodput._live import ranks

ranks.FIRST_S = ranks.EVERY_S = 0.2  # so that the live account is not seconds old
rank, folder, plan = int(os.environ["RANK"]), Path(sys.argv[1]), json.loads(sys.argv[2])
first, reader = plan["first"], InMemoryMetricReader()

def mine(name):
    return plan.get(name, {}).get(str(rank))

def loader():
    for number in range(first, plan["last"]):
        time.sleep(mine("loads") or 0.003)
        if mine("hangs") == number:
            threading.Event().wait(60)
        if mine("stops") == number:
            os.kill(os.getpid(), signal.SIGSTOP)
        yield number

def meet(number):
    (folder / f"{first}-{number}-{rank}").touch()
    while not all((folder / f"{first}-{number}-{other}").exists() for other in mine("meets") or range(3)):
        time.sleep(0.005)

def write(name):
    collected = reader.get_metrics_data()
    points = [
        [metric.name, dict(point.attributes or {}), point.value]
        for resource in (collected.resource_metrics if collected else ())
        for scope in resource.scope_metrics for metric in scope.metrics
        for point in metric.data.data_points if isinstance(point, NumberDataPoint)
    ]
    (folder / f"{name}.new").write_text(json.dumps({"report": goodput.report().to_json(), "metrics": points}))
    (folder / f"{name}.new").rename(folder / name)

def watch():
    while True:
        report = goodput.report()
        if report is not None and report.ranks is not None and report.ranks.waiting:
            write("waiting")
        time.sleep(0.1)

goodput.configure(
    "stories", run_id="story", directory=folder / "runs", exporters="none", metric_readers=[reader], role=mine("roles")
)
if rank == 0 and "hangs" in plan:
    threading.Thread(target=watch, daemon=True).start()
if "late" not in plan:
    meet("begin")
with goodput.job():
    for number, _ in goodput.steps(loader(), start=first):
        time.sleep(mine("steps") or 0.01)
        if mine("dies") == number:
            os.kill(os.getpid(), signal.SIGKILL)
        meet(number)
        if number % 5 == 4 and mine("saves"):
            with goodput.checkpoint_save(number):
                time.sleep(mine("saves"))
if rank == 0:
    while goodput.report().ranks is None or not goodput.totals().ended:  # until the others have published their ends
        time.sleep(0.05)
    write("ended")
"""


class Point(NamedTuple):
    """A point of a metric that the leader exported."""

    name: str
    attributes: Mapping[str, str]
    value: float


class Exported(NamedTuple):
    """What the leader says of the job: its report, as JSON, and its metrics."""

    report: Mapping[str, Any]
    points: Sequence[Point]

    @classmethod
    def read(cls, path: Path) -> Exported:
        known = json.loads(path.read_text())
        return cls(known["report"], [Point(*one) for one in known["metrics"]])

    def metric(self, name: str) -> list[Point]:
        return [one for one in self.points if one.name == name]


class Recorded(NamedTuple):
    """What is read from a run's folder: the report as text, without empty lines, and as JSON; the head of the page."""

    lines: Sequence[str]
    report: Mapping[str, Any]
    page: Mapping[str, Any]

    @classmethod
    def read(cls, runs: Path) -> Recorded:
        lines = [line.strip() for line in _printed(runs).splitlines() if line.strip()]
        [packed] = re.findall(r'<script[^>]*id="document"[^>]*>([^<]*)<', _printed(runs, "--html", "-"))
        head = Container(gzip.decompress(base64.b64decode(packed))).head
        return cls(lines, json.loads(_printed(runs, "--json")), head)


def _printed(runs: Path, *options: str) -> str:
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) as output:
        assert main(["report", str(runs), *options]) == 0
        output.flush()
        return output.buffer.getvalue().decode()


class Job:
    """The processes of one story."""

    def __init__(self, folder: Path, **plan: Any) -> None:
        self.folder = folder
        self.plan = {"first": 0, "last": 10, **plan}
        self.ranks: list[warm.Process] = []

    def start(self, *ranks: int, **plan: Any) -> None:
        self.plan |= plan
        self.ranks += [
            warm.Process(
                [sys.executable, "-W", "error", "-c", RANK, str(self.folder), json.dumps(self.plan)],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(COUNT)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in ranks or range(COUNT)
        ]

    def reach(self, number: int, *ranks: int) -> None:
        """Wait until these ranks have done their part of a step."""
        until(lambda: all((self.folder / f"{self.plan['first']}-{number}-{rank}").exists() for rank in ranks))

    def finish(self) -> None:
        errors = [process.communicate(timeout=60)[1] for process in self.ranks]
        assert [process.returncode for process in self.ranks] == [0] * len(self.ranks), errors

    def kill(self) -> None:
        for process in self.ranks:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
        self.ranks.clear()


def _stopped(process: warm.Process) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def undisturbed(job: Job) -> None:
    job.start()
    job.finish()


def stopped_for_a_while(job: Job) -> None:
    """A rank gets SIGSTOP in its loader, while the others are in the step before which it loads."""
    job.start()
    job.reach(5, 0, 1)
    until(lambda: _stopped(job.ranks[2]))
    time.sleep(HANG_S)  # what the story is about
    job.ranks[2].send_signal(signal.SIGCONT)
    job.finish()


def restarted(job: Job) -> None:
    """A rank is killed in a step; then the others are, too."""
    job.start()
    job.ranks[1].wait(60)
    job.kill()
    job.start(first=6, last=12, dies={})
    job.finish()


def late(job: Job) -> None:
    job.start(0, 1)
    job.reach(0, 0, 1)
    time.sleep(HANG_S)  # what the story is about
    job.start(2)
    job.finish()


def hanging(job: Job) -> None:
    """A rank hangs in its loader, and nothing ends that."""
    job.start()

    def waited() -> bool:
        path = job.folder / "waiting"
        return path.exists() and Exported.read(path).report["ranks"]["waits"][0]["seconds"] > 1.5

    until(waited)


def _reported(job: Job) -> bool:
    """Whether the others have given a sign of life since rank 2 is stopped: up to then, what all did is known."""
    now = json.loads(_printed(job.folder / "runs", "--json"))["ranks"]["open"]
    signs = {one["rank"]: one["last_sign_of_life"] for one in now}
    return len(signs) == COUNT and min(signs, key=signs.__getitem__) == 2


class Story(NamedTuple):
    """What happens to a job, and what costs it most: for which rank it waits, and what that does; None if for none."""

    how: Callable[[Job], None]
    plan: Mapping[str, Any]
    rank: int | None
    category: str


STORIES: Final[Mapping[str, Story]] = {
    "slow loader": Story(undisturbed, {"loads": {"2": 0.25}}, 2, Category.DATA_LOADING),
    "stopped in its loader": Story(stopped_for_a_while, {"stops": {"2": 5}}, 2, Category.DATA_LOADING),
    "killed and restarted": Story(restarted, {"dies": {"1": 8}}, None, Category.INFRASTRUCTURE_RECOVERY),
    "slow save": Story(undisturbed, {"saves": {"1": 1.0}}, 1, Category.CHECKPOINT_SAVE),
    "late starter": Story(late, {"late": True}, 2, Category.OTHER),
    "each for itself": Story(
        undisturbed,
        {"meets": {"0": [0], "1": [1], "2": [2]}, "steps": {"1": 0.05, "2": 0.1}},
        None,
        Category.DATA_LOADING,
    ),
    "two roles": Story(
        undisturbed,
        {
            "roles": {"0": "learner", "1": "learner", "2": "actor"},
            "meets": {"0": [0, 1], "1": [0, 1], "2": [2]},
            "loads": {"1": 0.25},
        },
        1,
        Category.DATA_LOADING,
    ),
}
HANGS: Final = Story(hanging, {"hangs": {"2": 5}}, 2, Category.DATA_LOADING)


class Known(NamedTuple):
    """What is known of a job by its leader, and from its folder."""

    live: Exported
    recorded: Recorded


class Hung(NamedTuple):
    """What is known of the job that hangs: while its rank is stopped, and after all were killed."""

    stopped: Known
    dead: Recorded


def all_known(folder: Path) -> tuple[dict[str, Known], Hung]:
    """Have all jobs run at the same time."""
    jobs = {}
    for name, story in {**STORIES, "hangs": HANGS}.items():
        place = folder / name.replace(" ", "-")
        place.mkdir()
        jobs[name] = Job(place, **story.plan)
    hung = jobs.pop("hangs")
    try:
        with ThreadPoolExecutor(len(jobs) + 1) as every:
            ended = [every.submit(STORIES[name].how, job) for name, job in jobs.items()]
            ended.append(every.submit(HANGS.how, hung))
            for one in ended:
                one.result()
        hung.ranks[2].send_signal(signal.SIGSTOP)
        until(lambda: _stopped(hung.ranks[2]) and _reported(hung))
        stopped = Known(Exported.read(hung.folder / "waiting"), Recorded.read(hung.folder / "runs"))
        hung.kill()
        dead = Recorded.read(hung.folder / "runs")
    finally:
        for job in (*jobs.values(), hung):
            job.kill()
    known = {
        name: Known(Exported.read(job.folder / "ended"), Recorded.read(job.folder / "runs"))
        for name, job in jobs.items()
    }
    return known, Hung(stopped, dead)
