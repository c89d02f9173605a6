"""What a run leaves next to its journal if something was wrong: incidents, stacks of its ranks, and a profile."""

from __future__ import annotations

from otel_goodput._accounting.incidents import STEP, Incident, Share, Source
from otel_goodput._journal.incidents import IncidentSheet
from otel_goodput._journal.profiles import Function, Grown, Profile, write_profile
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.stacks import DUMP, StacksFile
from otel_goodput.semconv import Category, IncidentKind, Phase

NS = 1_000_000_000
RANKS = 4
CULPRIT = 3
MAIN = ("/app/train.py", 9, "main")
HANG, SLOWDOWN = 1, 2  # numbers of the incidents


def incidents(began: int) -> list[Incident]:
    """A hang from `began` on, ns, which is over; a slowdown a minute later that is open."""
    loading, step = Source(Category.DATA_LOADING, "", CULPRIT), Source(STEP)
    return [
        Incident(
            HANG, IncidentKind.HANG, loading, began, began + NS, began + 3 * NS, 2 * NS, (Share(loading, 2 * NS),),
            line="dataset.py:41", evidence=("rank 3 is in load at dataset.py:41",),
        ),
        Incident(
            SLOWDOWN, IncidentKind.SLOWDOWN, step, began + 4 * NS, began + 5 * NS, None, NS,
            (Share(step, 800_000_000), Share(loading, 200_000_000)), 100_000_000, 150_000_000, "train.py:88",
        ),
    ]  # fmt: skip


def trouble(run: RunDirectory, began: int, attempt: int = 0, *, function: str = "load", note: str = "") -> None:
    """Write all of it: from `began` on, ns, three ranks wait for rank 3; `function` is where that is."""
    sheet = IncidentSheet(attempt, 0)
    for one in incidents(began):
        sheet.put(one._replace(evidence=(*one.evidence, note)) if note else one)
    sheet.keep(run, last=True)
    for process in range(RANKS):
        place = ("/app/dataset.py", 41, function) if process == CULPRIT else ("/app/train.py", 88, "all_reduce")
        frames = "\n".join(f'  File "{path}", line {line} in {name}' for path, line, name in (place, MAIN))
        text = f"Thread 0x00007f0000000001 (most recent call first):\n{frames}\n"
        file = StacksFile(run.file("stacks", attempt, process))
        about = {"time": began + 2 * NS, "since": began, "limit": NS, "step": 70, "phase": Phase.STEP}
        if process == CULPRIT:
            about["phase"] = Phase.DATA_LOADING
        file.add(DUMP, text, **about, training="7f0000000001", threads={})
        file.close()
    functions = (Function(function, "/app/dataset.py", 41, 60, 80), Function("main", "/app/train.py", 9, 5, 100))
    grown = (Grown(function, "/app/dataset.py", 41, "", 600_000, 100_000),)
    profile = Profile(
        1, "incident", SLOWDOWN, began + 5 * NS, began + 6 * NS, 10, 100, functions, grown, note=note or "10 steps"
    )
    assert write_profile(run, attempt, CULPRIT, profile)
