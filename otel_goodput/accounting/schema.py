"""The schema of the account in a snapshot: types and ranges of its JSON, checked before anything is made of it.

Anybody can write a file with a right checksum. What of it depends on other parts, such as an index into a list, is
checked where the parts are put together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from otel_goodput.semconv import CLOCK_STATES, FALLBACK_CLOCKS, PHASES, REASONS, Category

Check = Callable[[Any], None]

_FIELD: Final = 1 << 63  # numbers of the journal fit a signed field of 64 bits
_KEYS: Final = 1 << 64
_LONGEST: Final = 1 << 16  # characters of a text
_BITS: Final = 1 << 32  # of a mask of windows


def whole(least: int = -_FIELD, below: int = _FIELD) -> Check:
    """An integer from `least` up to, not including, `below`; no bool."""

    def check(found: Any) -> None:
        if type(found) is not int or not least <= found < below:
            raise ValueError(f"{found!r:.40} instead of a whole number from {least} up to {below}")

    return check


def optional(inner: Check) -> Check:
    """`inner`, or null."""

    def check(found: Any) -> None:
        if found is not None:
            inner(found)

    return check


def one_of(*values: str) -> Check:
    def check(found: Any) -> None:
        if found not in values:
            raise ValueError(f"{found!r:.40} instead of one of {', '.join(values)}")

    return check


def each(inner: Check, most: int = 1 << 24) -> Check:
    """A list of at most `most` times `inner`."""

    def check(found: Any) -> None:
        if not isinstance(found, list) or len(found) > most:
            raise ValueError(f"{type(found).__name__} instead of a list of at most {most}")
        for one in found:
            inner(one)

    return check


def row(*inner: Check) -> Check:
    """A list with exactly these."""

    def check(found: Any) -> None:
        if not isinstance(found, list) or len(found) != len(inner):
            raise ValueError(f"{type(found).__name__} instead of a list of {len(inner)}")
        for one, check_one in zip(found, inner, strict=True):
            check_one(one)

    return check


def members(known: dict[str, Check]) -> Check:
    """An object with these members; any others are not checked."""

    def check(found: Any) -> None:
        if not isinstance(found, dict):
            raise ValueError(f"{type(found).__name__} instead of an object")
        for name, check_one in known.items():
            if name not in found:
                raise ValueError(f"{name} is missing")
            try:
                check_one(found[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None

    return check


def counts(inner: Check) -> Check:
    """An object with any names, and `inner` as each value."""

    def check(found: Any) -> None:
        if not isinstance(found, dict):
            raise ValueError(f"{type(found).__name__} instead of an object")
        for name, one in found.items():
            text(name)
            inner(one)

    return check


def text(found: Any) -> None:
    if not isinstance(found, str) or len(found) > _LONGEST:
        raise ValueError(f"{type(found).__name__} instead of a text")


def flag(found: Any) -> None:
    if not isinstance(found, bool):
        raise ValueError(f"{found!r:.40} instead of true or false")


def weight(found: Any) -> None:
    """A share or a weighted time; JSON has no distinction between 1 and 1.0."""
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found < _FIELD:
        raise ValueError(f"{found!r:.40} instead of a number from 0 on")


NUMBER: Final = whole()
COUNT: Final = whole(0)
KEY: Final = whole(0, _KEYS)
PHASE: Final = whole(0, len(PHASES))
MASK: Final = whole(0, _BITS)
SHARES: Final = row(weight, weight)
WEIGHTED: Final = row(weight, weight, weight, weight)
BY_CATEGORY: Final = each(row(COUNT, NUMBER))
PARTS: Final = each(row(NUMBER, NUMBER))
EVENT: Final = row(NUMBER, whole(0, 256), whole(0, 256), KEY, NUMBER, COUNT, NUMBER, text)


def nothing(found: Any) -> None:
    if found is not None:
        raise ValueError(f"{found!r:.40} instead of null")


_OF_EXECUTION: Final = (
    {
        **dict.fromkeys(
            ("number", "start", "net_time", "time_after_job", "rolling_time", "binned_time", "wall_time",
             "device_time", "time_since_previous", "ordinal"), NUMBER,
        ),
        **dict.fromkeys(
            ("on_host", "device_observed", "clock_unknown", "failed", "left", "idle", "former", "superseded",
             "limit_known", "compiles"), flag
        ),
        "key": KEY,
        "device_segments": COUNT,
        "histogram_buckets": COUNT,
        "category": optional(COUNT),
        "window_time": each(row(MASK, NUMBER)),
        "time_in_order": optional(each(row(NUMBER, MASK))),
        "rolling_parts": PARTS,
        "bin_parts": PARTS,
        "loop": NUMBER,
        **dict.fromkeys(("limit", "limit_set", "usual_time", "ended_at"), COUNT),
    }
)  # fmt: skip
_STALLED: Final = members({**_OF_EXECUTION, Category.STALLED: nothing})
_EXECUTION: Final = members({**_OF_EXECUTION, Category.STALLED: optional(_STALLED)})
_TIMES: Final = each(COUNT, 2000)
_LONG_ONES: Final = each(row(NUMBER, COUNT), 8)

# What has checks of its own where it is read is not here: bins, overview, step_summary, kept_steps, and the timeline.
ACCOUNT: Final = members(
    {
        "run": members(
            {
                "started_at": optional(COUNT),
                "now": COUNT,
                **dict.fromkeys(("alive", "ended", "clean", "clock_skewed"), flag),
                "window_lengths": each(whole(1), 64),
                "totals": each(NUMBER),
                "custom_names": each(text),
                "notice": optional(one_of(*REASONS)),
                **dict.fromkeys(("recompilations", "loading_overlapped", "device_free_at", "suspended"), COUNT),
                "open_job": optional(KEY),
                "clock_shift": NUMBER,
                "fallback_clock": one_of(*FALLBACK_CLOCKS),
                "clock": optional(one_of(*CLOCK_STATES)),
                "time_between_steps": optional(NUMBER),
                "error": text,
                "ended_by": each(text, 64),
                "startup_before": NUMBER,
                "restored_before": NUMBER,
            }
        ),
        "steps": members(
            {
                **dict.fromkeys(("executed", "lost", "interrupted_time", "attempts", "disruption_count"), COUNT),
                **dict.fromkeys(
                    ("last_step", "previous_step", "job_started_at", "first_step_time", "step_ended_at"),
                    optional(NUMBER),
                ),
                "latest_key": optional(KEY),
                "device_observed": flag,
                "durable_step": NUMBER,
                "current_loop": NUMBER,
                "number_offset": NUMBER,
                **dict.fromkeys(("skipped_batches", "skipped_wall_time", "doubtful_steps"), COUNT),
                "step_limit": COUNT,
                "disruptions": counts(COUNT),
            }
        ),
        "jobs": each(row(NUMBER, flag, flag, flag, each(text))),
        "step_segments": each(
            row(
                COUNT,
                row(
                    NUMBER, COUNT, COUNT, optional(NUMBER), optional(COUNT), NUMBER, each(row(NUMBER, MASK)),
                    each(NUMBER), COUNT, PARTS, COUNT, flag,
                ),
            )
        ),
        "recompiled_functions": counts(COUNT),
        "recent_starts": each(NUMBER),
        **dict.fromkeys(
            ("latest_disruptions", "earlier_disruptions"),
            each(
                row(
                    optional(NUMBER), one_of(*REASONS), NUMBER, NUMBER, optional(NUMBER), optional(NUMBER), NUMBER,
                    NUMBER, optional(NUMBER), optional(NUMBER), optional(NUMBER), optional(text), optional(text),
                    optional(NUMBER), optional(NUMBER),
                ),
                1000,
            ),
        ),
        "windows": each(row(MASK, COUNT, BY_CATEGORY, each(row(COUNT, NUMBER)), NUMBER, BY_CATEGORY, WEIGHTED)),
        "rolling_windows": optional(
            members(
                {
                    "lengths": each(whole(1), 64),
                    "begin": COUNT,
                    "offset": COUNT,
                    "buckets": each(BY_CATEGORY),
                    "kept_before": each(COUNT),
                    "weighted_times": each(WEIGHTED),
                    "split_steps": each(row(COUNT, PARTS)),
                    "times_at_open": each(NUMBER),
                    "corrections": BY_CATEGORY,
                }
            )
        ),
        "pending_saves": each(row(KEY, NUMBER)),
        "checkpoints": row(each(row(NUMBER, NUMBER), 1000), NUMBER),
        "open_restores": each(row(KEY, NUMBER)),
        "resumed": optional(row(NUMBER, NUMBER, flag, COUNT, COUNT, COUNT, flag)),
        "watched": optional(row(COUNT, COUNT)),
        "numbering": each(row(NUMBER, NUMBER, NUMBER, NUMBER), 1000),
        "discarded": BY_CATEGORY,
        "open_phases": each(row(KEY, COUNT)),
        "open_overlapping_phases": each(row(KEY, COUNT)),
        "open_elastic_phases": each(row(KEY, row(NUMBER, COUNT))),
        "open_overlapped_loads": each(KEY),
        "open_windows": row(COUNT, COUNT, MASK, each(KEY)),
        "conditions": members(
            {
                "slice_shares": optional(SHARES),
                "weighted_times": WEIGHTED,
                "shares_between_jobs": each(row(NUMBER, SHARES)),
                "clock_unknown": flag,
            }
        ),
        **dict.fromkeys(("running_steps", "recoverable_steps"), each(row(COUNT, _EXECUTION))),
        "loops": each(row(NUMBER, row(_TIMES, _LONG_ONES, _LONG_ONES, NUMBER, COUNT, _TIMES)), 16),
        "stalled_steps": each(row(COUNT, _STALLED), 1000),
        "open_steps": each(KEY),
        "device_queue": each(row(optional(KEY), optional(COUNT), NUMBER, NUMBER)),
    }
)  # fmt: skip

UNSETTLED: Final = members(
    {
        "events": each(EVENT),
        "waiting_keys": each(row(KEY, NUMBER)),
        "observed_keys": each(KEY),
        "ended_on_host": each(KEY),
        "device_ends": each(row(KEY, NUMBER)),
        "settled_until": NUMBER,
        "clock_unknown": flag,
    }
)

LEDGER: Final = members({"account": ACCOUNT, "unsettled": UNSETTLED, "timeline": members({})})
