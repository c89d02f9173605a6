"""What a report says, in words, of the ranks of a job: for which it waited, and what each of them is doing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from otel_goodput._text.quantities import aligned, format_duration, format_moment, percent
from otel_goodput._timeline.run_state import DIED, RUNNING, SILENT
from otel_goodput.semconv import Category, Phase

WAITS_SHOWN: Final = 10
WORTH: Final = 0.005  # share of the time; shorter waits for a rank are not mentioned
LATEST_S: Final = 60.0  # a wait that was over so long before the end of the account goes on
OPEN_SHOWN: Final = 16  # lines of ranks that do the same
LISTED: Final = 8  # ranks of one such line, by their index
QUIET_S: Final = 10.0  # a rank without a sign of life for longer is not heard of


def whose(report: Mapping[str, Any]) -> str:
    """Return whose account it is: ``4 ranks``, or ``process 3 of 8``; empty for a job of one process."""
    if (ranks := report.get("ranks")) is not None:
        missing = ranks["expected"] - ranks["count"]
        return f"{ranks['count']} of {ranks['expected']} ranks" if missing else f"{ranks['count']} ranks"
    if (process := report.get("process")) is not None:
        return f"process {process['index']} of {process['count']}"
    return ""


def only(process: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield why the account is that of one process of several, if nobody requested that."""
    if process is not None and process["reason"] is not None:
        yield f"of process {process['index']} of {process['count']} only: {process['reason']}"


def verdict(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield for which ranks the job waited most, and what they did; of one process, why it is not the job's account."""
    for line in only(report.get("process")):
        yield f"  {line}"
    if (ranks := report.get("ranks")) is None:
        return
    longest = _longest(report)
    if (one := ranks["waiting_for"]) is not None and report.get("state") != RUNNING:
        at = max(each["last_sign_of_life"] for each in ranks["open"])
        yield f"  at the end the job waited for {_place(one)}: {_doing(one['category'], one['name'])}, {_for(one, at)}"
    for one in longest[:1]:
        yield f"  {percent(one['seconds'], report['elapsed_s'])} of the time the job waited for {_who(one, report)}"
    if not ranks["together"] and not ranks["roles"]:
        yield "  the ranks do not step together: this is the sum of their accounts, weighted by devices"
    for name, part in ranks["roles"].items():
        if part["elapsed_s"]:
            goodput = part["reason"] if part["goodput"] is None else percent(part["goodput"], 1)
            yield f"  role {name or '(none)'}: goodput {goodput} of {format_duration(part['elapsed_s'])}"
    if not longest and not ranks["missing"] and ranks["together"]:
        yield "  the job waited for none of its ranks"


def share_of(loss: tuple[str, str, float], report: Mapping[str, Any]) -> str:
    """Return for which rank the job waited most of a loss (category, custom name, seconds); empty if for none."""
    category, name, held = loss
    of_it = [one for one in _longest(report) if (one["category"], one["name"]) == (category, name or one["name"])]
    if not of_it or of_it[0]["seconds"] < held / 2:
        return ""
    return f", {100 * min(1.0, of_it[0]['seconds'] / held):.0f} % of it for {_place(of_it[0])}"


def hung(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield which rank a job waited for as it died, if it did for long."""
    ranks = report.get("ranks") or {"waiting_for": None}
    if (one := ranks["waiting_for"]) is None or report.get("state") != DIED:
        return
    at = max(each["last_sign_of_life"] for each in ranks["open"])
    if at - one["since"] >= QUIET_S:
        yield f"Find out why {_place(one)} did not go on: the others waited for it {_for(one, at)} until the job died."


def lost(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of the times for which the job waited for its ranks."""
    if not (longest := _longest(report)):
        return
    rows = [("lost to ranks", "", "time", "share", "goodput without it")]
    for one in longest:
        without = "-" if one["goodput_without"] is None else percent(one["goodput_without"], 1)
        length, share = format_duration(one["seconds"]), percent(one["seconds"], report["elapsed_s"])
        rows.append((f"  {_place(one)}", _doing(one["category"], one["name"]), length, share, without))
    yield from (f"  {line}".rstrip() for line in aligned(rows, {2, 3, 4}))
    yield ""


def now(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what each rank is doing, those that do the same in one line, and for whom the job waits."""
    ranks = report.get("ranks")
    if ranks is None or not ranks["open"]:
        return
    at = max(one["last_sign_of_life"] for one in ranks["open"])
    running = report.get("state") == RUNNING
    yield f"  open {'now' if running else 'at the end'} ({format_moment(at)})"
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for one in ranks["open"]:
        quiet = at - one["last_sign_of_life"] > QUIET_S
        alone = quiet or (ranks["waiting_for"] or {}).get("rank") == one["rank"]
        key = (one["state"], one["phase"], one["name"], one["step"], one["rank"] if alone else None)
        alike.setdefault(key, []).append(one)
    groups = sorted(alike.values(), key=lambda group: (len(group), group[0]["rank"]))
    for group in groups[:OPEN_SHOWN]:
        yield f"    {_group(group, at)}"
    if len(groups) > OPEN_SHOWN:
        yield f"    and {sum(map(len, groups[OPEN_SHOWN:]))} more ranks"
    if running or ranks["waiting_for"] is not None:
        yield f"    {_waiting(ranks, at, running=running)}"
    yield ""


def _longest(report: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    ranks = report.get("ranks") or {"waits": ()}
    return [one for one in ranks["waits"][:WAITS_SHOWN] if one["seconds"] >= WORTH * report["elapsed_s"]]


def _doing(category: str, name: str) -> str:
    return f"{category} {name}" if category == Category.CUSTOM else category


def _place(one: Mapping[str, Any]) -> str:
    return f"rank {one['rank']}" + (f" on {one['host']}" if one["host"] else "")


def _who(one: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """Return for whom the job waited: ``rank 5, data_loading on host n3, since 2026-11-27 11:02:12 UTC``."""
    host = f" on host {one['host']}" if one["host"] else ""
    end = (report.get("started_at") or 0.0) + report["elapsed_s"]
    goes_on = end - one["until"] <= LATEST_S
    when = f"since {format_moment(one['since'])}" if goes_on else f"last at {format_moment(one['until'])}"
    return f"rank {one['rank']}, {_doing(one['category'], one['name'])}{host}, {when}"


def _group(group: Sequence[Mapping[str, Any]], at: float) -> str:
    """Return what ranks are doing that do the same."""
    one = group[0]
    if len(group) == 1:
        pid = "" if one["pid"] is None else f", pid {one['pid']}"
        who = f"{_place(one)}{pid}"
    else:
        which = ", ".join(str(each["rank"]) for each in group[:LISTED])
        more = f" and {len(group) - LISTED} more" if len(group) > LISTED else ""
        who = f"{len(group)} ranks ({which}{more})"
    phase, step = one["phase"], one["step"]
    doing = "outside all phases" if phase is None else _doing(phase, one["name"])
    if phase == Phase.STEP:
        doing = f"in step {step}"
    elif step is not None:
        doing += f" in step {step}"
    if one["since"] is not None:
        doing += f" for {format_duration(max(0.0, at - min(each['since'] for each in group)))}"
    sign = max(each["last_sign_of_life"] for each in group)
    if one["state"] not in (RUNNING, DIED, SILENT):
        return f"{who}: {one['state']}"
    if one["state"] == DIED:
        return f"{who}: died at {format_moment(sign)}, {doing}"
    quiet = at - sign > QUIET_S or one["state"] == SILENT
    return f"{who}: {doing}" + (f"; no sign of life since {format_moment(sign)}" if quiet else "")


def _waiting(ranks: Mapping[str, Any], at: float, *, running: bool) -> str:
    """Return for whom the job waits; nobody is named while that is not known."""
    quiet = [one for one in ranks["open"] if one["state"] == RUNNING and at - one["last_sign_of_life"] > QUIET_S]
    if quiet:
        signs = min(one["last_sign_of_life"] for one in quiet)
        return f"the account ends at {format_moment(signs)}: what {_names(quiet)} did since is not known"
    if (one := ranks["waiting_for"]) is not None:
        waits = "waits" if running else "waited"
        return f"the job {waits} for {_place(one)}: {_doing(one['category'], one['name'])}, {_for(one, at)}"
    if ranks["missing"]:
        return "whether the job waits for a rank that left no journal here is not known"
    steps = {one["step"] for one in ranks["open"] if one["state"] == RUNNING and one["phase"] == Phase.STEP}
    if len(steps) == 1 and all(one["phase"] == Phase.STEP for one in ranks["open"] if one["state"] == RUNNING):
        return "all are in the same step: which of them the others wait for in it is not known"
    return "the job waits for none of them"


def _for(one: Mapping[str, Any], at: float) -> str:
    return f"for {format_duration(max(0.0, at - one['since']))}"


def _names(ranks: Iterable[Mapping[str, Any]]) -> str:
    which = [str(one["rank"]) for one in ranks]
    more = f" and {len(which) - LISTED} more" if len(which) > LISTED else ""
    return f"rank{'s' if len(which) > 1 else ''} {', '.join(which[:LISTED])}{more}"
