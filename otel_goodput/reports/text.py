"""A report in words, made from its JSON: the figures, notes on those that look doubtful, and what usually helps."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from otel_goodput._journal.notes import Note
from otel_goodput._text.quantities import format_duration, format_moment, percent, plural
from otel_goodput._text.redact import shown
from otel_goodput._timeline.run_state import DIED, FAILED, RUNNING, SILENT
from otel_goodput.reports import incidents, loader, own_times, ranks_text, usage
from otel_goodput.reports.rolling import length_of, shorter
from otel_goodput.semconv import CATEGORIES, Category, ClockState

# With fewer steps, or if the median step takes at least this share of the cadence, nothing is suspected.
DISPATCH_STEPS: Final = 20
DISPATCH_SHARE: Final = 0.05

UNKNOWN_CLOCK: Final = Note(
    "clock",
    "Steps run asynchronously on a device, and it is not known when the device finishes them: the step times are only "
    "the time to dispatch the work. Call goodput.observe(loss) in each step, with an output that is not donated. If "
    "the loop itself waits for its results, set OTEL_GOODPUT_DEVICE_CLOCK=host.",
    CATEGORIES,
)
DISPATCH_ONLY: Final = Note(
    "dispatch",
    "Steps are far shorter than the time from one to the next. If the loop does not wait for the device, the step "
    "times are only the time to dispatch the work, and the device's time counts in other categories: call "
    "goodput.observe(loss), or wait for the result inside the step. If the steps really are that short, ignore this "
    "note.",
    CATEGORIES,
)
SKEWED_CLOCKS: Final = Note(
    "clocks",
    "An attempt began before the last sign of life of the previous one: the hosts' clocks differ. The time between "
    "the two counts as 0. Synchronize the clocks, for example with NTP.",
    (Category.INFRASTRUCTURE_RECOVERY,),
)

SKIPPED: Final = (
    "The first {0} steps after a restore took less than a tenth of the time of the next one. If the loop only skipped "
    "batches there, they are counted as steps by mistake: the run has no earlier steps to compare them with. Skip them "
    "before the loop: write `for step, batch in goodput.steps(itertools.islice(loader, {0}, None), start={0}):`."
)


def doubts(report: Mapping[str, Any]) -> Iterator[Note]:
    """Yield the notes that the figures of a report (as JSON) call for."""
    if report.get("reason"):
        yield UNKNOWN_CLOCK
    elif dispatch_only(report):
        yield DISPATCH_ONLY
    if report.get("doubtful_steps"):
        yield Note("skipped batches", SKIPPED.format(report["doubtful_steps"]))
    if long := report.get("long_steps"):
        yield Note(
            "long steps",
            f"One step in {long['every']:,} takes {format_duration(long['long_s'])}, the others take "
            f"{format_duration(long['usual_s'])}. If it evaluates or saves, wrap that code in custom() or "
            "checkpoint_save().",
            (Category.PRODUCTIVE,),
        )
    longest = ", ".join(
        f"{one['count']} x {one['name'] or one['phase']} (longest {format_duration(one['longest_s'])})"
        for one in (report.get("long_phases") or ())[:3]
    )
    if longest:
        text = f"Phases that took far longer than usual: {longest}. Their time stays in its category."
        yield Note("long phases", text)
    if report["skewed_clocks"]:
        yield SKEWED_CLOCKS


def dispatch_only(report: Mapping[str, Any]) -> bool:
    """Return whether the step times look like asynchronous dispatch, although no asynchronous runtime was detected."""
    times, cadence = report.get("step_time"), report.get("step_cadence_s")
    if not times or not cadence or report.get("observed_steps") or times["count"] < DISPATCH_STEPS:
        return False
    # A step of the job has no waiting for ranks in it; if those of some rank are long, that one waits in them.
    paces = report["processes"]["paces"].values() if "ranks" in report and report.get("processes") else ()
    if any(pace["median_s"] >= DISPATCH_SHARE * (pace["median_s"] + pace["outside_s"]) for pace in paces):
        return False
    by_host = report.get("clock", ClockState.HOST) == ClockState.HOST
    return by_host and bool(times["median_s"] < DISPATCH_SHARE * cadence)


# By source of badput: how the time was spent, and what usually helps.
EXPLAINED: Final[Mapping[str, tuple[str, str]]] = {
    Category.ACCELERATOR_INIT: (
        "initializing accelerators",
        "check how the runtime starts, and the network between hosts",
    ),
    Category.TRAINING_PREP: ("setting up model and data", "find out what the program does before the first step"),
    Category.PROGRAM_STARTUP: ("compiling", "a persistent compilation cache saves most of it after a restart"),
    Category.DATA_LOADING: ("waiting for data", "prefetch batches or give the input pipeline more workers"),
    Category.CHECKPOINT_SAVE: ("saving checkpoints", "save asynchronously or less often"),
    Category.CHECKPOINT_RESTORE: ("restoring checkpoints", "read them from faster or nearer storage"),
    Category.CUSTOM: ("in custom phases", "run this phase less often, or in the background"),
    Category.WASTED_PROGRESS: ("on steps that were lost", "save checkpoints more often"),
    Category.STALLED: (
        "in steps that stalled",
        "find out what the slowest steps waited for: network, storage or another process",
    ),
    Category.INFRASTRUCTURE_RECOVERY: ("waiting to be restarted", "check scheduling and spare capacity"),
    Category.ELASTIC_SLICE_DOWN: ("waiting after slices were lost", "find out why slices are lost"),
    Category.ELASTIC_SCALE_UP: ("waiting for slices to come back", "scale up less often"),
    Category.ELASTIC_REINITIALIZATION: (
        "setting up again after slices changed",
        "a persistent compilation cache saves most of it",
    ),
    Category.IN_FLIGHT: ("in a step that has not ended", "if it takes much longer than the others, it is hanging"),
    Category.OTHER: ("outside all phases", "wrap the code between steps in custom() to see what takes the time"),
}
# The same if no compilation was seen: start-up is then the excess time of the first steps (rule R5).
_UNCOMPILED: Final[Mapping[str, tuple[str, str]]] = {
    Category.PROGRAM_STARTUP: (
        "before steps reached their usual speed",
        "find out what the first step after a start does that later steps do not",
    ),
    Category.ELASTIC_REINITIALIZATION: (
        "setting up again after slices changed",
        "find out what the program sets up again",
    ),
}
WORTH: Final = 0.02  # share of the time; nobody should look for less


def sources(seconds: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """Return (category, custom name or '', seconds) of each category that has time, the largest first."""
    flat = [(name, "", held) for name, held in seconds.items() if name != Category.CUSTOM]
    flat += [(Category.CUSTOM, name, held) for name, held in seconds.get(Category.CUSTOM, {}).items()]
    return sorted((source for source in flat if source[2]), key=lambda source: -source[2])


def sentence(report: Mapping[str, Any]) -> str:
    """Return the closing sentences of a report (as JSON) whose elapsed time is not 0.

    On a loss whose figure is doubtful nobody should act yet, so the largest one that is not is named as well.
    """
    return " ".join((*ranks_text.hung(report), _largest_loss(report)))


def _largest_loss(report: Mapping[str, Any]) -> str:
    if report["goodput"] is None:
        return "No advice: it is not known when the device finished its steps. See the note above."
    losses = [source for source in sources(report["seconds"]) if source[0] != Category.PRODUCTIVE]
    if not losses:
        return "All time was productive."
    elapsed = report["elapsed_s"]
    doubtful = {category for warning in report.get("warnings", ()) for category in warning["doubts"]}
    category, name, held = losses[0]
    if held < WORTH * elapsed:
        which = f"{category} {name}".strip()
        return f"Nothing here is worth an hour: the largest loss, {which}, is {percent(held, elapsed)} of the time."
    spent, advice = _spent(losses[0], report)
    if category not in doubtful:
        where = f" ({text})" if category == Category.DATA_LOADING and (text := loader.waits(report)) else ""
        return f"The largest loss: {spent}{where}; {advice}."
    text = f"The largest loss: {spent}; before acting on it, see the note above."
    certain = next((loss for loss in losses if loss[0] not in doubtful and loss[2] >= WORTH * elapsed), None)
    if certain is not None:
        spent, advice = _spent(certain, report)
        text += f" The largest loss that is certain: {spent}; {advice}."
    return text


def _spent(loss: tuple[str, str, float], report: Mapping[str, Any]) -> tuple[str, str]:
    """Return how the time of a loss was spent, and what usually helps."""
    category, name, held = loss
    doing, advice = EXPLAINED[category]
    if not report.get("compilations_seen", True):
        doing, advice = _UNCOMPILED.get(category, (doing, advice))
    doing = f"in {name!r}" if name else doing
    spent = f"{format_duration(held)} ({percent(held, report['elapsed_s'])}) was spent {doing} ({category})"
    return f"{spent}{ranks_text.share_of(loss, report)}", advice


_RATIOS: Final = {
    "scheduling_goodput": "scheduling goodput",
    "program_goodput": "program goodput (MFU)",
    "productivity_goodput": "ML productivity goodput",
}


def render(report: Mapping[str, Any]) -> str:
    """Return the text of a report (as JSON)."""
    return "".join(f"{shown(line)}\n" for line in _lines(report))


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    elapsed, warnings = report["elapsed_s"], [warning["text"] for warning in report.get("warnings", ())]
    yield title(report)
    yield from end(report)
    if not elapsed:
        yield "  no job has started yet: nothing to account for"
        yield from noted(warnings)
        return
    yield ""
    yield f"  goodput {_goodput(report)}"
    yield from rolling(report)
    yield from ranks_text.verdict(report)
    for name, words in _RATIOS.items():
        if report.get(name) is not None:
            yield f"  {words} {report[name] * 100:.1f} %"
    yield from budget(report)
    for what in ("excluded", "suspended"):
        if report[f"{what}_s"]:
            yield f"  {format_duration(report[f'{what}_s'])} {what}, not counted"
    yield from noted(warnings)
    yield ""
    yield from table(report["seconds"], elapsed, shares=report["goodput"] is not None)
    if report["overlapped_data_loading_s"]:
        parallel = format_duration(report["overlapped_data_loading_s"])
        yield f"  in parallel: another {parallel} of data loading overlapped with steps and cost no time"
    yield ""
    of_ranks = ranks_text.now, ranks_text.lost, own_times.section
    for section in (
        *of_ranks,
        incidents.section,
        loader.section,
        steps,
        disruptions,
        processes,
        checkpoints,
        scheduling,
        compile_cache,
        usage.section,
    ):
        yield from section(report)
    for partition in report["windows"]:
        yield from window(partition)
    yield ""
    yield f"  {sentence(report)}"


def headline(report: Mapping[str, Any]) -> str:
    """Return the title and the goodput in one line."""
    if not report["elapsed_s"]:
        return title(report)
    used = report.get("error_budget_used")
    return f"{title(report)}: {_goodput(report)}" + ("" if used is None else f"; {used:.0%} of the error budget used")


def _goodput(report: Mapping[str, Any]) -> str:
    elapsed = report["elapsed_s"]
    if report["goodput"] is None:
        return f"{report.get('reason') or 'not known'}; elapsed time {format_duration(elapsed)}"
    return f"{percent(report['goodput'] * elapsed, elapsed)} of {format_duration(elapsed)}"


def title(report: Mapping[str, Any]) -> str:
    """Return the title of a report: job, run, number of attempts, start and state."""
    name = report.get("job_name") or report.get("run_id") or "timeline"
    parts = [f"Goodput of {name}"]
    if report.get("run_id") and report["run_id"] != name:
        parts.append(f"run {report['run_id']}")
    if whose := ranks_text.whose(report):
        parts.append(whose)
    if report["attempts"]:
        parts.append(plural(report["attempts"], "attempt"))
    if report.get("started_at"):
        parts.append(f"since {format_moment(report['started_at'])}")
    if "run_id" in report:
        parts.append(report.get("state") or RUNNING)
    elif "ended" in report:
        parts.append("ended" if report["ended"] else "not ended")
    return ", ".join(parts)


def noted(texts: Iterable[str]) -> Iterator[str]:
    """Yield notes, wrapped, each behind an empty line."""
    wrapper = textwrap.TextWrapper(100, "  note: ", " " * 8, break_long_words=False, break_on_hyphens=False)
    for text in texts:
        yield ""
        yield from wrapper.wrap(shown(text))


WIDTH: Final = 24
STAGE_WIDTH: Final = 28
SLOWER: Final = 1.05  # times the median of all processes: a slowest one that is nearer to it is not called slow
LATE_SHARE: Final = 0.05  # of the cadence; a process that is late by less is not mentioned
DISRUPTIONS_SHOWN: Final = 10
FUNCTIONS_SHOWN: Final = 5
LONG_S: Final = 600.0  # from here on times are in minutes and hours


def table(seconds: Mapping[str, Any], elapsed: float, *, shares: bool) -> Iterator[str]:
    """Yield the time of each category, productive time first, and the sum; percentages only if `shares`."""
    losses = [source for source in sources(seconds) if source[0] != Category.PRODUCTIVE]
    total = 0.0
    for category, name, held in ((Category.PRODUCTIVE, "", seconds.get(Category.PRODUCTIVE, 0.0)), *losses):
        total += held
        yield row(f"{category} {name}".strip(), held, elapsed, shares=shares)
    yield row("sum", total, elapsed, shares=shares)


def row(name: str, seconds: float, elapsed: float, *, shares: bool, indent: str = "  ") -> str:
    """Return one row of the table of categories; of a run of more than ten minutes nobody counts milliseconds."""
    share = f"  {percent(seconds, elapsed):>8}" if shares else ""
    length = f"{seconds:.3f} s" if elapsed < LONG_S else format_duration(seconds) if seconds else "0 s"
    return f"{indent}{name:<{WIDTH}} {length:>14}{share}"


def end(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield when and in which step a run died or fell silent, or what failed; nothing if it is running or has ended."""
    state, last = report.get("state"), report.get("last_sign_of_life")
    if state == FAILED and (error := exception(report)):
        yield f"  the job failed: {error}"
    if state not in (DIED, SILENT) or last is None:
        return
    step, open_for = report.get("last_step"), report.get("last_step_open_s")
    where = "" if step is None else f", between steps; the last one was step {step}"
    if open_for is not None:
        where = f", {format_duration(open_for)} into step {step}"
    what = "no sign of life since"
    if state == DIED:
        what = f"the {'job' if 'ranks' in report else 'process'} died at"
    yield f"  {what} {format_moment(last)}{where}"


def rolling(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the goodput of each rolling window, and what it lost most to."""
    ends = "" if report.get("state", RUNNING) == RUNNING else " of the run"
    for one in shorter(report):
        which, elapsed = f"the last {length_of(one['window'])}{ends}", one["elapsed_s"]
        if one["goodput"] is None:
            yield f"  goodput of {which}: {one['reason'] or 'no time has passed'}"
            continue
        losses = [source for source in sources(one["seconds"]) if source[0] != Category.PRODUCTIVE]
        lost = "".join(f"{f'{name} {custom}'.strip()} ({percent(held, elapsed)})" for name, custom, held in losses[:1])
        yield f"  goodput {percent(one['goodput'], 1)} of {which}{lost and f'; most was lost to {lost}'}"


def budget(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield how much of the error budget of the run's objective is used, if it has one."""
    if report.get("error_budget_used") is not None:
        allowed = (1 - report["objective"]) * report["elapsed_s"]
        used = f"{report['error_budget_used']:.0%} of it is used"
        yield f"  error budget of the objective {report['objective'] * 100:g} %: {format_duration(allowed)}; {used}"


def steps(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what became of the steps and how long they took, recompilations, progress at risk and slices."""
    yield from _indented("steps    ", _about_steps(report))
    if report["at_risk_s"]:
        yield f"  at risk  {format_duration(report['at_risk_s'])} of progress since the last durable checkpoint"
    elif report["at_risk_s"] is not None:
        yield "  at risk  nothing: the last durable checkpoint holds all progress"
    if slices := report.get("slice_efficiency"):
        yield "  slices   " + ", ".join(f"{state} {share * 100:.1f} %" for state, share in slices.items())


def _indented(name: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield lines behind a name, which only the first one has."""
    for at, line in enumerate(lines):
        yield f"  {' ' * len(name) if at else name}{line}"


def _about_steps(report: Mapping[str, Any]) -> Iterator[str]:
    yield _fates(report)
    if by_rank := report.get("kept_by_rank"):
        yield f"of the rank that has completed most; each rank has kept {by_rank['fewest']} to {by_rank['most']}"
    given, counted = report.get("last_step_given"), report.get("last_step")
    if given != counted:
        yield f"the loop numbers the latest step {given}; this report counts it as step {counted}"
    if report.get("skipped_batches"):
        yield f"batches skipped after a restore: {report['skipped_batches']} (counted as data_loading)"
    if report.get("in_flight_step") is not None:
        open_for = report.get("in_flight_step_s")
        since = "" if open_for is None else f" (for {format_duration(open_for)} so far)"
        yield f"step {report['in_flight_step']} is in flight{since}"
    if times := report.get("step_time"):
        median, p90, longest = (format_duration(times[name]) for name in ("median_s", "p90_s", "max_s"))
        yield f"net time: median {median}, p90 {p90}, max {longest}"
        yield f"ideal {format_duration(report['ideal_step_time_s'])}: the mean step time without outliers"
        deviation = report["step_time_deviation_s"]
        where = "above" if deviation > 0 else "below"
        length = format_duration(abs(deviation))
        yield f"deviation {length}: how far the p90 of the last 100 steps is {where} the usual step time"
    if report.get("first_step_s") is not None:
        whose = "the latest start" if report["attempts"] > 1 else "the start"
        yield f"first step finished {format_duration(report['first_step_s'])} after {whose}"
    if report["recompilations"]:
        functions = report.get("recompiled") or {}
        named = [f"{name} {times}" for name, times in list(functions.items())[:FUNCTIONS_SHOWN]]
        if len(functions) > FUNCTIONS_SHOWN:
            named.append(f"{len(functions) - FUNCTIONS_SHOWN} more")
        which = f": {', '.join(named)}" if named else ""
        yield f"{plural(report['recompilations'], 'recompilation')}{which}"


def _fates(report: Mapping[str, Any]) -> str:
    if not report["started_steps"]:
        return "none started"
    counts = {**report["steps"], "pending": report["pending_steps"]}
    parts = [f"{counts[fate]} {fate}" for fate in ("kept", "lost", "pending") if counts[fate] or fate != "pending"]
    top = report["max_productive_step"]
    reached = "" if top is None else f"; highest kept step: {top}"
    return f"{report['started_steps']} started = {' + '.join(parts)}{reached}"


def disruptions(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield how often and why the run was interrupted."""
    count = report["disruptions"]
    if not count:
        yield "  disruptions  none"
        return
    reasons = ", ".join(f"{number} {reason}" for reason, number in report["disruption_reasons"].items())
    yield f"  disruptions  {count}: {reasons}"
    for entry in report["disruption_list"][-DISRUPTIONS_SHOWN:]:
        yield from _disruption(entry, known=report["reason"] is None)


def _disruption(entry: Mapping[str, Any], *, known: bool) -> Iterator[str]:
    """Yield the lines about one disruption; `known`: whether it is known which steps are kept."""
    where = "without a restart" if entry["attempt"] is None else f"attempt {entry['attempt']}"
    if entry.get("said_by") is not None:
        added = "" if entry["note"] is None else f", “{entry['note']}”"
        where += f"; set by {entry['said_by']}{added}; originally {entry['first_reason']}"
    who = "" if entry.get("process") is None else f" (process {entry['process']})"
    if not entry.get("process_known", True):
        who = " (process not known)"
    ended = entry.get("died_at") or entry.get("time")
    when = "" if ended is None else f" at {format_moment(ended)}"
    cause = "; ".join(filter(None, (exception(entry), entry.get("ended_by"))))
    yield f"    {entry['reason']}{who}{when} ({where}){f': {cause}' if cause else ''}"
    costs = [f"{format_duration(entry[name])} {what}" for name, what, always in _COSTS if always or entry.get(name)]
    went = ""
    if entry["from_step"] is not None and entry["to_step"] is not None:
        back = entry["to_step"] <= entry["from_step"]
        went = f"; {'went back' if back else 'went on'} from step {entry['from_step']} to {entry['to_step']}"
    yield f"      cost {format_duration(entry['cost_s'])}: {', '.join(costs)}{went}"
    after = []
    if entry.get("first_step_s") is not None:
        after.append(f"first step finished after {format_duration(entry['first_step_s'])}")
    if (step := entry.get("kept_step")) is not None and known:
        regained = entry.get("regained_s")
        reached = "not reached again yet" if regained is None else f"reached again after {format_duration(regained)}"
        after.append(f"step {step} {reached}")
    if after:
        yield f"      {', '.join(after)}"


def exception(fields: Mapping[str, Any]) -> str:
    """Return ``type: message`` of the exception in `fields`, or an empty text."""
    return ": ".join(filter(None, (fields.get("error_type"), fields.get("error_message"))))


# What a disruption cost, by kind, and whether that is shown even if it took no time.
_COSTS: Final = (
    ("recovery_s", "down", True),
    ("wasted_s", "in lost steps", True),
    ("startup_s", "start-up", False),
    ("restored_s", "restoring", False),
)


def processes(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield which processes are slow, so that the others wait for them."""
    processes = report.get("processes")
    if not processes or len(processes["paces"]) < 2:
        return
    paces, slowest, latest = processes["paces"], processes["straggler"], processes["late"]
    yield f"  processes  {len(paces)} of {processes['count']} report step times"
    if slowest is not None and slowest["ratio"] > SLOWER:
        which, ratio = slowest["process"], slowest["ratio"]
        median = format_duration(paces[str(which)]["median_s"])
        yield f"    the slowest is process {which}: median step {median}, {ratio:.2f} times the median of all"
    if latest is not None and latest["share"] >= LATE_SHARE:
        which, share = latest["process"], f"{latest['share'] * 100:.0f} % of the time per step"
        outside = f"{format_duration(paces[str(which)]['outside_s'])} between one step and the next, outside both"
        yield f"    process {which} spends {outside} ({share}): the others wait for it"


def checkpoints(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield how long the stages of saves and restores took, and on which process they take longest."""
    operations = report.get("checkpoints") or {}
    if operations:
        yield f"  {'checkpoints':<{STAGE_WIDTH}} {'count':>6} {'min':>10} {'mean':>10} {'max':>10} {'std dev':>10}"
    for operation, stages in operations.items():
        for stage, figures in stages.items():
            name = f"{operation} {stage}".replace("_", " ")
            lengths = [format_duration(figures[f"{figure}_s"]) for figure in ("min", "mean", "max", "deviation")]
            if figures["count"] < 2:
                lengths[-1] = "-"
            yield f"    {name:<{STAGE_WIDTH - 2}} {figures['count']:>6} " + " ".join(f"{one:>10}" for one in lengths)
            slowest = figures["slowest"]
            if slowest is not None and slowest["mean_s"] > SLOWER * slowest["median_s"]:
                mean, median = format_duration(slowest["mean_s"]), format_duration(slowest["median_s"])
                which = f"slowest process: {slowest['process']}"
                yield f"      {which} ({mean} on average, median of all processes {median})"


def scheduling(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what attempts waited for before their programs ran, and how often the run was placed again."""
    waits = report.get("scheduling")
    if not waits:
        return
    parts = [_waits("attempt 1", waits["first_s"])]
    if (times := waits["reschedules"]) is not None and report["attempts"] > 1:
        parts.append(f"rescheduled {plural(times, 'time')}" if times else "never rescheduled")
    parts.append(_waits("later attempts", waits["later_s"]))
    yield from _indented("scheduling  ", filter(None, parts))


def _waits(who: str, stages: Mapping[str, float]) -> str:
    each = ", ".join(f"{stage.replace('_', ' ')} {format_duration(seconds)}" for stage, seconds in stages.items())
    return f"{who} waited {format_duration(sum(stages.values()))}: {each}" if stages else ""


def compile_cache(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the persistent compilation cache did."""
    cache = report.get("compile_cache")
    if not cache:
        return
    misses = "1 miss" if cache["misses"] == 1 else f"{cache['misses']} misses"
    effect, saved = "", cache["saved_s"]
    if cache["hits"] and saved < 0:
        effect = f"; fetching took {format_duration(-saved)} longer than compiling would have"
    elif cache["hits"] and saved:  # PyTorch does not tell
        effect = f"; saved {format_duration(saved)} of compilation"
    yield f"  compilation cache  {plural(cache['hits'], 'hit')}, {misses}{effect}"


def window(partition: Mapping[str, Any]) -> Iterator[str]:
    """Yield the account of a window."""
    first, last = format_moment(partition["start"]), format_moment(partition["end"])
    day, _, clock = last.partition(" ")
    until = clock if first.startswith(day) else last  # the day only if it is another one
    length = format_duration(partition["end"] - partition["start"])
    yield ""
    yield f"  window {first.removesuffix(' UTC')} to {until} ({length})"
    elapsed = partition["elapsed_s"]
    if not elapsed:
        yield "    the job was not running"
        return
    productive = partition["seconds"].get(Category.PRODUCTIVE, 0.0)
    yield f"    goodput {partition.get('reason') or f'{percent(productive, elapsed)} of {format_duration(elapsed)}'}"
    for category, name, held in sources(partition["seconds"]):
        yield row(f"{category} {name}".strip(), held, elapsed, shares=not partition.get("reason"), indent="    ")
