"""What ``make attack`` runs: the scenarios of a hostile world by name, with counts, and what takes long (``attack``).

A scenario is a test; which tests belong to which is the table below. ``python tests/attack.py --list`` prints it.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/attack.md"


class Scenario(NamedTuple):
    """What is attacked, and where it is tested: files, or globs of them, below the tests' folder."""

    name: str
    files: tuple[str, ...]


SCENARIOS = (
    Scenario(
        "Google Cloud: refusals, faults, limits, credentials",
        (
            "exporters/google/test_delivery_failures.py",
            "exporters/google/test_fitting.py",
            "exporters/google/test_metrics.py",
            "exporters/google/test_restarts.py",
        ),
    ),
    Scenario("names that no encoding can express", ("recording/test_misuse.py", "exporters/test_otlp_json.py")),
    Scenario(
        "queues that overflow, floods of phases",
        ("recording/test_span_queue.py", "recording/test_sampling.py", "recording/test_floods.py"),
    ),
    Scenario("traces of 64 ranks and 10⁶ steps", ("recording/test_budget.py", "exporters/google/test_budget.py")),
    Scenario(
        "roots, links, nothing twice",
        (
            "journal/test_roots.py",
            "journal/test_twice.py",
            "recording/test_identity.py",
            "recording/test_first_load.py",
        ),
    ),
    Scenario("collectors: full disks", ("otelcol/test_full_disk.py",)),
    Scenario(
        "collectors: outages, permanent refusals, access",
        (
            "otelcol/test_losses.py",
            "otelcol/test_refusals.py",
            "otelcol/test_send.py",
            "otelcol/test_gateway_access.py",
            "exporters/test_listener.py",
        ),
    ),
    Scenario("JobSets, pods and their security", ("collector/test_jobset.py", "collector/test_pod_security.py")),
    Scenario("runs that disappear", ("recording/test_job_state.py", "collector/test_alerts.py")),
    Scenario(
        "exits and deadlines",
        (
            "test_deadline.py",
            "exporters/test_exit.py",
            "exporters/google/test_exit.py",
            "tools/send/test_send_deadline.py",
        ),
    ),
    Scenario(
        "file access: links, FIFOs, other users, decompression bombs",
        ("journal/test_hostile_files.py", "tools/send/test_send_files.py", "layout/test_files.py"),
    ),
    Scenario("disks that are full, read-only or gone", ("journal/test_disk.py",)),
    Scenario("journals at URLs", ("journal/test_remote.py",)),
    Scenario(
        "unexpected data in a run's folder",
        ("journal/test_rundir_outside_data.py", "journal/test_damage.py"),
    ),
    Scenario("one flipped byte, deaths and damage", ("journal/test_flips.py",)),
    Scenario("fuzz of journals, JSON files and variables", ("journal/test_fuzz.py",)),
    Scenario("real processes, killed", ("crash/*.py",)),
    Scenario(
        "terminal escapes and credentials",
        ("tools/test_escapes.py", "exporters/google/test_credentials.py", "disruption/test_metadata_reception.py"),
    ),
)
OTHERS = "other long tests"


class Count(NamedTuple):
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def plus(self, other: Count) -> Count:
        return Count(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def paths_of(scenario: Scenario) -> list[Path]:
    """Its files that there are."""
    tests = ROOT / "tests"
    paths = {path for form in scenario.files for path in tests.glob(form)}
    return sorted(path for path in paths if path.name.startswith("test_"))


def counted(results: Path) -> dict[str, Count]:
    """By the module of the test, as pytest writes it."""
    counts: dict[str, Count] = {}
    for case in ET.parse(results).iter("testcase"):
        tags = {inner.tag for inner in case}
        bad, skipped = bool(tags & {"failure", "error"}), "skipped" in tags
        one = Count(not bad and not skipped, bad, skipped, float(case.get("time", 0)))
        module = case.get("classname", "")
        counts[module] = counts.get(module, Count()).plus(one)
    return counts


def run(arguments: Sequence[str], results: Path) -> int:
    command = [sys.executable, "-m", "pytest", f"--junitxml={results}", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def table(counts: dict[str, Count]) -> list[tuple[str, Count]]:
    """Each scenario with what came of it; what is in none of them comes last."""
    rows, left = [], dict(counts)
    for scenario in SCENARIOS:
        total = Count()
        for path in paths_of(scenario):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            total = total.plus(left.pop(module, Count()))
        rows.append((scenario.name, total))
    rest = Count()
    for count in left.values():
        rest = rest.plus(count)
    return [*rows, (OTHERS, rest)] if rest != Count() else rows


def written(rows: Sequence[tuple[str, Count]]) -> str:
    """The counts in Markdown."""
    lines = [
        "# Results of `make attack`",
        "",
        "`make attack` runs this package against hostile files, receivers, disks and kills. A scenario is a group of",
        "tests that `tests/attack.py` lists. The seconds are the sum over its tests.",
        "",
        f"Written on {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Python {platform.python_version()}.",
        "",
        "| scenario | passed | failed | skipped | seconds |",
        "|---|---|---|---|---|",
        *(f"| {name} | {row.passed:,} | {row.failed} | {row.skipped} | {row.seconds:.0f} |" for name, row in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print which files belong to which scenario")
    parser.add_argument("--write", action="store_true", help=f"write the counts to {RESULTS.relative_to(ROOT)}")
    parser.add_argument("rest", nargs="*", help="further arguments of pytest, behind --")
    options = parser.parse_args()
    if options.list:
        for scenario in SCENARIOS:
            print(scenario.name, *(f"  {path.relative_to(ROOT)}" for path in paths_of(scenario)), sep="\n")
        return 0
    paths = sorted({str(path) for scenario in SCENARIOS for path in paths_of(scenario)})
    with tempfile.TemporaryDirectory() as place:
        short, long = Path(place) / "short.xml", Path(place) / "long.xml"
        # One after the other: what takes long is not to be slowed down by the rest.
        statuses = [
            run(["-n", "auto", "--dist", "worksteal", *paths, *options.rest], short),
            run(["-n", "auto", "-m", "attack", *options.rest], long),
        ]
        counts: dict[str, Count] = {}
        for results in (short, long):
            for module, count in counted(results).items():
                counts[module] = counts.get(module, Count()).plus(count)
    rows = table(counts)
    rows.append(("total", Count(*(sum(each) for each in zip(*(count for _, count in rows), strict=True)))))
    if options.write:
        RESULTS.write_text(written(rows), encoding="utf-8")
    width = max(len(name) for name, _ in rows)
    print(f"\n{'scenario':<{width}}  passed  failed  skipped  seconds")
    for name, count in rows:
        print(f"{name:<{width}}  {count.passed:>6}  {count.failed:>6}  {count.skipped:>7}  {count.seconds:>7.1f}")
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
