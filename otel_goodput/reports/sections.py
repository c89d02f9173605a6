"""Sections of a report as lines of text, made from the report's JSON: steps, disruptions, processes, windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_goodput.reports.advice import sources
from otel_goodput.reports.standing import DIED, SILENT
from otel_goodput.semconv import Category
from otel_goodput.text.quantities import format_duration, format_moment, percent, plural

WIDTH: Final = 24
STAGE_WIDTH: Final = 28
SLOWER: Final = 1.05  # times the median of all ranks; a slowest rank that is nearer to it is not mentioned
LATE_SHARE: Final = 0.05  # of the cadence; a process that is late by less is not mentioned
DISRUPTIONS_SHOWN: Final = 10
FUNCTIONS_SHOWN: Final = 5


def table(seconds: Mapping[str, Any], elapsed: float, *, shares: bool) -> Iterator[str]:
    """Yield the time of each category, productive time first, and the sum; percentages only if `shares`."""
    productive = seconds.get(Category.PRODUCTIVE, 0.0)
    yield row(Category.PRODUCTIVE, productive, elapsed, shares=shares)
    total = productive
    for category, name, held in sources(seconds):
        if category != Category.PRODUCTIVE:
            total += held
            yield row(f"{category} {name}".strip(), held, elapsed, shares=shares)
    yield row("sum", total, elapsed, shares=shares)


def row(name: str, seconds: float, elapsed: float, *, shares: bool, indent: str = "  ") -> str:
    share = f"  {percent(seconds, elapsed):>8}" if shares else ""
    return f"{indent}{name:<{WIDTH}} {seconds:>12.3f} s{share}"


def end(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield when and in which step a run died or fell silent; nothing if it is running or has ended."""
    state, last = report.get("state"), report.get("last_sign_of_life")
    if state not in (DIED, SILENT) or last is None:
        return
    what = "the process died at" if state == DIED else "no sign of life since"
    step, open_for = report.get("last_step"), report.get("last_step_open_s")
    where = ""
    if open_for is not None:
        where = f", {format_duration(open_for)} into step {step}"
    elif step is not None:
        where = f", in no step; the last one was {step}"
    yield f"  {what} {format_moment(last)}{where}"


def steps(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what became of the steps and how long they took, recompilations, progress at risk and slices."""
    yield f"  steps    {_fates(report)}"
    if report.get("in_flight_step") is not None:
        open_for = report.get("in_flight_step_s")
        since = "" if open_for is None else f", for {format_duration(open_for)} now"
        yield f"           step {report['in_flight_step']} is in flight{since}"
    times = report.get("step_time")
    if times:
        yield (
            f"           net time: median {format_duration(times['median_s'])}, p90 {format_duration(times['p90_s'])}, "
            f"max {format_duration(times['max_s'])}; ideal {format_duration(report['ideal_step_time_s'])}, "
            f"deviation {report['step_time_deviation_s'] * 1000:+.3g} ms"
        )
    if report.get("first_step_s") is not None:
        yield f"           first step of the latest job over {format_duration(report['first_step_s'])} after its start"
    yield from _recompilations(report)
    if report["at_risk_s"] is not None:
        yield f"  at risk  {format_duration(report['at_risk_s'])} of progress is newer than the last durable checkpoint"
    slices = report.get("slice_efficiency")
    if slices:
        yield "  slices   " + ", ".join(f"{state} {share * 100:.1f} %" for state, share in slices.items())


def _fates(report: Mapping[str, Any]) -> str:
    counts, pending, started = report["steps"], report["pending_steps"], report["started_steps"]
    if not started:
        return "none has started"
    parts = [f"{counts['kept']} kept", f"{counts['lost']} lost"]
    if pending:
        parts.append(f"{pending} pending")
    top = report["max_productive_step"]
    reached = "" if top is None else f"; kept up to number {top}"
    return f"{started} started = {' + '.join(parts)}{reached}"


def _recompilations(report: Mapping[str, Any]) -> Iterator[str]:
    count = report["recompilations"]
    if not count:
        return
    functions = report.get("recompiled") or {}
    named = [f"{name} {times}" for name, times in list(functions.items())[:FUNCTIONS_SHOWN]]
    if len(functions) > FUNCTIONS_SHOWN:
        named.append(f"{len(functions) - FUNCTIONS_SHOWN} more")
    yield f"           {plural(count, 'recompilation')}" + (f": {', '.join(named)}" if named else "")


def disruptions(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield how often and why the run was interrupted."""
    count = report["disruptions"]
    if not count:
        yield "  disruptions  none"
        return
    reasons = ", ".join(f"{number} {reason}" for reason, number in report["disruption_reasons"].items())
    yield f"  disruptions  {count}: {reasons}"
    for entry in report["disruption_list"][-DISRUPTIONS_SHOWN:]:
        where = "in the process" if entry["attempt"] is None else f"attempt {entry['attempt']}"
        said = ""
        if entry.get("said_by") is not None:
            added = "" if entry["note"] is None else f", “{entry['note']}”"
            said = f"; said by {entry['said_by']}{added}; first: {entry['first_reason']}"
        went = ""
        if entry["from_step"] is not None and entry["to_step"] is not None:
            went = f", from step {entry['from_step']} back to {entry['to_step']}"
        yield (
            f"    {entry['reason']} ({where}{said}): {format_duration(entry['recovery_s'])} until restarted, "
            f"{format_duration(entry['wasted_s'])} of steps lost{went}"
        )
        after = [_first_step(entry), _regained(entry, known=report["reason"] is None)]
        if any(after):
            yield f"      {', '.join(filter(None, after))}"


def _first_step(entry: Mapping[str, Any]) -> str:
    duration = entry.get("first_step_s")
    return "" if duration is None else f"first step over after {format_duration(duration)}"


def _regained(entry: Mapping[str, Any], *, known: bool) -> str:
    step, duration = entry.get("kept_step"), entry.get("regained_s")
    if step is None or not known:
        return ""
    if duration is None:
        return f"step {step} not regained"
    return f"regained step {step} after {format_duration(duration)}"


def processes(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield which processes are slow, so that the others wait for them."""
    told = report.get("processes")
    if not told or len(told["paces"]) < 2:
        return
    yield f"  processes  {len(told['paces'])} of {told['count']} report their pace"
    slowest, latest = told["straggler"], told["late"]
    if slowest is not None:
        median = told["paces"][str(slowest["process"])]["median_s"]
        yield (
            f"    the slowest is process {slowest['process']}: median step {format_duration(median)}, "
            f"{slowest['ratio']:.2f} times the median of all"
        )
    if latest is not None and latest["share"] >= LATE_SHARE:
        outside = told["paces"][str(latest["process"])]["outside_s"]
        yield (
            f"    process {latest['process']} spends {format_duration(outside)} outside of steps between one step and "
            f"the next ({latest['share'] * 100:.0f} %): the others wait for it"
        )


def checkpoints(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield how long the stages of saves and restores took, and on which process they take longest."""
    told = report.get("checkpoints")
    if not told:
        return
    yield f"  {'checkpoints':<{STAGE_WIDTH}} {'count':>6} {'min':>10} {'mean':>10} {'max':>10} {'deviation':>10}"
    for operation, stages in told.items():
        for stage, found in stages.items():
            name = f"{operation} {stage}".replace("_", " ")
            lengths = [format_duration(found[f"{figure}_s"]) for figure in ("min", "mean", "max", "deviation")]
            if found["count"] < 2:
                lengths[-1] = "-"
            yield f"    {name:<{STAGE_WIDTH - 2}} {found['count']:>6} " + " ".join(f"{one:>10}" for one in lengths)
            slowest = found["slowest"]
            if slowest is not None and slowest["mean_s"] > SLOWER * slowest["median_s"]:
                yield (
                    f"      slowest rank: {slowest['process']} ({format_duration(slowest['mean_s'])} on average, "
                    f"median of all ranks {format_duration(slowest['median_s'])})"
                )


def scheduling(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what attempts waited for before their programs ran, and how often the run was placed again."""
    told = report.get("scheduling")
    if not told:
        return
    parts = [f"attempt 1 {waits}" for waits in [_waits(told["first_s"])] if waits]
    if told["reschedules"] is not None and report["attempts"] > 1:
        times = told["reschedules"]
        parts.append(f"rescheduled {plural(times, 'time')}" if times else "never rescheduled")
    parts += [f"later attempts {waits}" for waits in [_waits(told["later_s"])] if waits]
    if parts:
        yield f"  scheduling  {parts[0]}"
        yield from (f"              {part}" for part in parts[1:])


def _waits(stages: Mapping[str, float]) -> str:
    if not stages:
        return ""
    each = ", ".join(f"{stage.replace('_', ' ')} {format_duration(seconds)}" for stage, seconds in stages.items())
    return f"waited {format_duration(sum(stages.values()))}: {each}"


def compile_cache(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the persistent compilation cache did."""
    told = report.get("compile_cache")
    if not told:
        return
    saved = told["saved_s"]
    misses = "1 miss" if told["misses"] == 1 else f"{told['misses']} misses"
    if not told["hits"]:
        effect = ""
    elif saved < 0:
        effect = f"; compiling would have been {format_duration(-saved)} quicker"
    else:
        effect = f"; saved {format_duration(saved)}"
    yield f"  compilation cache  {plural(told['hits'], 'hit')}, {misses}{effect}"


def window(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield the account of a window."""
    yield ""
    yield f"  window {told['start']:.3f} .. {told['end']:.3f}"
    elapsed = told["elapsed_s"]
    if not elapsed:
        yield "    the job was not running"
        return
    if told.get("reason"):
        yield f"    goodput {told['reason']}"
    for category, name, held in sources(told["seconds"]):
        yield row(f"{category} {name}".strip(), held, elapsed, shares=not told.get("reason"), indent="    ")
