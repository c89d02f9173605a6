"""What the processes of a run used, where that was sampled, as a report has it: as JSON, and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final

from otel_goodput._journal.usage import AttemptUsage, merged
from otel_goodput._journal.usage_now import UNKNOWN, reasons
from otel_goodput._text.durations import NS

SHOWN: Final = 5  # processes whose clocks were held down


def to_json(usages: Sequence[AttemptUsage]) -> dict[str, Any] | None:
    """Return the fields of a report's JSON; None if nothing was sampled."""
    whole = [(one.machine, merged(one.usages)) for one in usages if one.usages]
    if not whole:
        return None
    alls = [usage for _, usage in whole]
    lasted = sum(usage.length for usage in alls)
    known = sum(usage.accelerator_time for usage in alls)
    bits = reduce(or_, (usage.throttled for usage in alls))
    memory = max(usage.accelerator_memory for usage in alls)
    energy = sum(usage.accelerator_energy for usage in alls)
    return {
        "processes": len({one.process for one in usages}),
        "cores": sum(usage.process_cpu for usage in alls) / lasted,
        "memory_bytes": max(usage.process_memory for usage in alls),
        "machine_cpu": sum(usage.machine_cpu for usage in alls)
        / sum(usage.length * machine.cores for machine, usage in whole),
        "machine_memory_bytes": max(usage.machine_memory for usage in alls),
        "accelerator_memory_bytes": None if memory == UNKNOWN else memory,
        "accelerator_busy": sum(usage.accelerator_busy for usage in alls) / known if known else None,
        "accelerator_watts": energy / 1000 / (known / NS) if known and energy else None,
        "throttled": sum(usage.throttled_time for usage in alls) / known if known else None,
        "throttle_reasons": list(reasons(bits)),
        "throttled_processes": sorted({one.process for one in usages if any(each.throttled for each in one.usages)}),
    }


def section(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the processes used."""
    usage = report.get("usage")
    if usage is None:
        return
    each = "" if usage["processes"] == 1 else f" in each of {usage['processes']} processes"
    yield (
        f"  usage  {usage['cores']:.1f} cores, at most {_gib(usage['memory_bytes'])}{each}; "
        f"of the machine {_percent(usage['machine_cpu'])} of its cores"
    )
    parts = []
    if usage["accelerator_busy"] is not None:
        parts.append(f"busy {_percent(usage['accelerator_busy'])} of the time")
    if usage["accelerator_watts"] is not None:
        parts.append(f"{usage['accelerator_watts']:.0f} W each")
    if usage["accelerator_memory_bytes"] is not None:
        parts.append(f"at most {_gib(usage['accelerator_memory_bytes'])}")
    if parts:
        yield f"    accelerators  {', '.join(parts)}"
    if usage["throttle_reasons"]:
        share = "" if not usage["throttled"] else f" {_percent(usage['throttled'])} of the time"
        yield f"    clocks held down{share} ({', '.join(usage['throttle_reasons'])}){_who(usage)}"


def _who(usage: Mapping[str, Any]) -> str:
    """Of few of many processes."""
    some = usage["throttled_processes"]
    if 2 * len(some) > usage["processes"]:
        return ""
    which = ", ".join([*map(str, some[:SHOWN]), *(["…"] if some[SHOWN:] else [])])
    return f": process{'es' if len(some) > 1 else ''} {which}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
