"""A report as text: the figures, and the largest loss in a plain sentence."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Final

from otel_goodput.printable import printable
from otel_goodput.semconv import Category

# What to say of each source of badput: what it is, and what usually helps.
EXPLAINED: Final[Mapping[str, tuple[str, str]]] = {
    Category.ACCELERATOR_INIT: ("bringing up accelerators", "check the runtime's start and the network between hosts"),
    Category.TRAINING_PREP: ("setting up model and data", "look at what happens between start and the first step"),
    Category.PROGRAM_STARTUP: ("compiling", "a persistent compilation cache saves most of it after a restart"),
    Category.DATA_LOADING: ("waiting for data", "prefetch batches or give the input pipeline more workers"),
    Category.CHECKPOINT_SAVE: ("saving checkpoints", "save asynchronously or less often"),
    Category.CHECKPOINT_RESTORE: ("restoring checkpoints", "read them from faster or nearer storage"),
    Category.CUSTOM: ("in custom phases", "run them less often or beside training"),
    Category.WASTED_PROGRESS: ("on steps that were lost", "save checkpoints more often"),
    Category.INFRASTRUCTURE_RECOVERY: ("waiting to be restarted", "look at scheduling and spare capacity"),
    Category.ELASTIC_SLICE_DOWN: ("waiting after slices were lost", "look at what takes slices away"),
    Category.ELASTIC_SCALE_UP: ("waiting for slices to come back", "scale up less eagerly"),
    Category.ELASTIC_REINITIALIZATION: ("setting up again after slices changed", "a compilation cache helps here too"),
    Category.IN_FLIGHT: ("in a step that has not ended", "if it takes much longer than the others, it hangs"),
    Category.OTHER: ("in no phase at all", "open phases around what happens between the steps"),
}
_WIDTH: Final = 24
# With fewer steps, or with steps that take more than this share of the time, nothing is suspected.
DISPATCH_STEPS: Final = 20
LATE_SHARE: Final = 0.05  # of the cadence, from which on it is worth a line
DISPATCH_SHARE: Final = 0.05


def duration(seconds: float) -> str:
    """A duration as a person reads it: ``850 ms``, ``12.3 s``, ``4 min 05 s``, ``3 h 07 min``, ``2 d 04 h``."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if seconds < 86_400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{int(seconds // 86_400)} d {int(seconds % 86_400 // 3600):02d} h"


def render(report: Mapping[str, Any]) -> str:
    """The text of a report, from its JSON."""
    return "".join(f"{printable(line)}\n" for line in _lines(report))


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    elapsed = report["elapsed_s"]
    yield _title(report)
    if not elapsed:
        yield "  no job has started yet: nothing to account for"
        return
    yield ""
    yield f"  goodput {_percent(report['goodput'] * elapsed, elapsed)} of {duration(elapsed)}"
    if report.get("scheduling_goodput") is not None:
        yield f"  scheduling goodput {report['scheduling_goodput'] * 100:.1f} %"
    if report.get("program_goodput") is not None:
        yield f"  program goodput (MFU) {report['program_goodput'] * 100:.1f} %"
    if report.get("productivity_goodput") is not None:
        yield f"  ML productivity goodput {report['productivity_goodput'] * 100:.1f} %"
    if report["excluded_s"]:
        yield f"  {duration(report['excluded_s'])} excluded"
    yield from _warnings(report)
    yield ""
    yield from _table(report["seconds"], elapsed)
    if report["overlapped_data_loading_s"]:
        yield f"  beside: {duration(report['overlapped_data_loading_s'])} of data loading overlapped with training"
    yield ""
    yield from _steps(report)
    yield from _disruptions(report)
    yield from _processes(report)
    for window in report["windows"]:
        yield from _window(window)
    yield ""
    yield f"  {_sentence(report)}"


def _title(report: Mapping[str, Any]) -> str:
    name = report.get("job_name") or report.get("run_id") or "timeline"
    parts = [f"Goodput of {name}"]
    if report.get("run_id") and report["run_id"] != name:
        parts.append(f"run {report['run_id']}")
    if report["attempts"]:
        parts.append(f"{report['attempts']} attempt{'s' if report['attempts'] != 1 else ''}")
    if report.get("started_at"):
        began = datetime.fromtimestamp(report["started_at"], tz=timezone.utc)
        parts.append(f"since {began:%Y-%m-%d %H:%M:%S} UTC")
    if "ended" in report:
        parts.append("ended" if report["ended"] else "not ended")
    return ", ".join(parts)


def sources(seconds: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """(category, custom name or '', seconds) of all that holds time, the largest first."""
    flat = [(name, "", held) for name, held in seconds.items() if name != Category.CUSTOM]
    flat += [(Category.CUSTOM, name, held) for name, held in seconds.get(Category.CUSTOM, {}).items()]
    return sorted(flat, key=lambda source: -source[2])


def _warnings(report: Mapping[str, Any]) -> Iterator[str]:
    for warning in report.get("warnings", ()):
        yield ""
        yield from textwrap.wrap(
            printable(warning["text"]), 100, initial_indent="  note: ", subsequent_indent="        ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def _doubts(report: Mapping[str, Any]) -> set[str]:
    """Categories from whose figures no advice is given."""
    return {category for warning in report.get("warnings", ()) for category in warning["doubts"]}


def _table(seconds: Mapping[str, Any], elapsed: float) -> Iterator[str]:
    productive = seconds.get(Category.PRODUCTIVE, 0.0)
    yield _row(Category.PRODUCTIVE, productive, elapsed)
    total = productive
    for category, name, held in sources(seconds):
        if category != Category.PRODUCTIVE:
            total += held
            yield _row(f"{category} {name}".strip(), held, elapsed)
    yield _row("sum", total, elapsed)


def _row(name: str, seconds: float, elapsed: float) -> str:
    return f"  {name:<{_WIDTH}} {seconds:>12.3f} s  {_percent(seconds, elapsed):>8}"


def _percent(seconds: float, elapsed: float) -> str:
    return f"{100 * seconds / elapsed:.2f} %"


def _steps(report: Mapping[str, Any]) -> Iterator[str]:
    steps = report["steps"]
    top = report["max_productive_step"]
    if top is None and not steps["executed"]:
        yield "  steps    none has completed"
    else:
        reached = "" if top is None else f", up to number {top}"
        yield f"  steps    {steps['executed']} executed, {steps['kept']} kept{reached}, {steps['lost']} lost"
    if report.get("in_flight_step") is not None:
        yield f"           step {report['in_flight_step']} is in flight"
    times = report.get("step_time")
    if times:
        yield (
            f"           net time: median {duration(times['median_s'])}, p90 {duration(times['p90_s'])}, "
            f"max {duration(times['max_s'])}; ideal {duration(report['ideal_step_time_s'])}, "
            f"deviation {report['step_time_deviation_s'] * 1000:+.3g} ms"
        )
    if dispatch_only(report):
        yield "           steps are far shorter than the time from one to the next: if the loop does not wait for the"
        yield "           device, this is the time of dispatching, and what waits is charged elsewhere; block on the"
        yield "           step's result in it"
    if report["recompilations"]:
        yield f"           {report['recompilations']} recompilations"
    yield f"  at risk  {duration(report['at_risk_s'])} of progress is newer than the last durable checkpoint"
    slices = report.get("slice_efficiency")
    if slices:
        yield "  slices   " + ", ".join(f"{state} {share * 100:.1f} %" for state, share in slices.items())


def dispatch_only(report: Mapping[str, Any]) -> bool:
    """Whether the steps' times look like those of asynchronous dispatch (see ACCOUNTING, "Device clock")."""
    times, cadence = report.get("step_time"), report.get("step_cadence_s")
    if not times or not cadence or report.get("observed_steps") or times["count"] < DISPATCH_STEPS:
        return False
    return bool(times["median_s"] < DISPATCH_SHARE * cadence)


def _disruptions(report: Mapping[str, Any]) -> Iterator[str]:
    count = report["disruptions"]
    if not count:
        yield "  disruptions  none"
        return
    reasons = ", ".join(f"{number} {reason}" for reason, number in report["disruption_reasons"].items())
    yield f"  disruptions  {count}: {reasons}"
    for entry in report["disruption_list"][-10:]:
        where = "in the process" if entry["attempt"] is None else f"attempt {entry['attempt']}"
        steps = ""
        if entry["from_step"] is not None and entry["to_step"] is not None:
            steps = f", from step {entry['from_step']} back to {entry['to_step']}"
        yield (
            f"    {entry['reason']} ({where}): {duration(entry['recovery_s'])} until restarted, "
            f"{duration(entry['wasted_s'])} of steps lost{steps}"
        )
    if report["skewed_clocks"]:
        yield "    an attempt began before the last sign of life of the one before it: the hosts' clocks differ"


def _processes(report: Mapping[str, Any]) -> Iterator[str]:
    processes = report.get("processes")
    if not processes or len(processes["paces"]) < 2:
        return
    yield f"  processes  {len(processes['paces'])} of {processes['count']} tell their pace"
    slowest, latest = processes["straggler"], processes["late"]
    if slowest is not None:
        median = processes["paces"][str(slowest["process"])]["median_s"]
        yield (
            f"    the slowest is process {slowest['process']}: median step {duration(median)}, "
            f"{slowest['ratio']:.2f} times the median of all"
        )
    if latest is not None and latest["share"] >= LATE_SHARE:
        outside = processes["paces"][str(latest["process"])]["outside_s"]
        yield (
            f"    process {latest['process']} spends {duration(outside)} from one step to the next outside of steps "
            f"({latest['share'] * 100:.0f} %): the others wait for it"
        )


def _window(window: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"  window {window['start']:.3f} .. {window['end']:.3f}"
    if not window["elapsed_s"]:
        yield "    the job was not running"
        return
    for category, name, held in sources(window["seconds"]):
        yield f"    {f'{category} {name}'.strip():<{_WIDTH}} {held:>12.3f} s  {_percent(held, window['elapsed_s']):>8}"


def _sentence(report: Mapping[str, Any]) -> str:
    losses = [source for source in sources(report["seconds"]) if source[0] != Category.PRODUCTIVE]
    if not losses:
        return "All of the time was productive."
    category, name, held = losses[0]
    doing, advice = EXPLAINED[category]
    if name:
        doing = f"in {name!r}"
    share = _percent(held, report["elapsed_s"])
    if category in _doubts(report):
        return f"The largest loss: {duration(held)} ({share}) went by {doing} ({category}); first see the note above."
    return f"The largest loss: {duration(held)} ({share}) went by {doing} ({category}); {advice}."
