"""Converts snapshots of older formats to the current one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from otel_goodput.accounting.device import NEVER
from otel_goodput.accounting.overlay import widened
from otel_goodput.accounting.rules import IN_FLIGHT, PRODUCTIVE, WASTED_PROGRESS
from otel_goodput.accounting.windows import EXCLUDED
from otel_goodput.semconv import ClockState

Head = dict[str, Any]


def _from_3(head: Head) -> Head:
    """Convert format 3: it had only the host clock, one device segment per step, and steps once lost stayed lost."""
    steps = {**head["course"], "latest": None, "previous": None}
    forfeited = [[WASTED_PROGRESS, steps.pop("lost_time")]]
    ends = {state[1]: state[3] for _, state in head["running"]}
    return {
        **head,
        "format": 4,
        "cursor": {**head["cursor"], "shift": 0, "freed": 0, "fallback": ClockState.HOST, "clock": None},
        "course": steps,
        "forfeited": forfeited,
        "lenses": [[*state[:5], [[WASTED_PROGRESS, state[5]]], state[6]] for state in head["lenses"]],
        "rolling": head["rolling"] and _rolling_from_3(head["rolling"]),
        "overlay": head["slices"],
        "running": [[at, _execution_from_3(state)] for at, state in head["running"]],
        "spared": [],
        "device": [[key, None, 0, NEVER if ends[key] is None else ends[key]] for key in head["device"]],
    }


def _rolling_from_3(rolling: Head) -> Head:
    gains = [[PRODUCTIVE, rolling["kept"]], [WASTED_PROGRESS, rolling["wasted"]]]
    sums = rolling.get("slices", [()] * len(rolling["lows"]))
    return {**rolling, "gains": gains, "beside": [widened(known) for known in sums]}


def _execution_from_3(state: list[Any]) -> Head:
    number, key, start, device_end, on_device, on_host, net, failed, superseded, shares, pieces = state
    return {
        "number": number,
        "key": key,
        "start": start,
        "net": net,
        "beyond": 0,
        "on_host": on_host,
        "segments": int(on_device),
        "timed": device_end is not None,
        "blurred": False,
        "failed": failed,
        "left": False,
        "idle": False,
        "doomed": superseded,
        # Format 3 did not store how much of this time is in closed buckets of rolling windows.
        "marked": net,
        "fate": None,
        "shares": shares,
        "pieces": pieces,
        "parts": (),
    }


def _from_4(head: Head) -> Head:
    """Convert format 4, which remembered nothing for an overview of the run."""

    def execution(placed: list[Any]) -> list[Any]:
        at, state = placed
        unknown = {"binned": 0, "busy": 0, "profile": 0, "wall": -1, "outside": -1, "ordinal": -1, "spots": ()}
        return [at, {**state, **unknown}]

    progress = head["progress"]
    rolling = head["rolling"]
    if rolling:
        # The open bucket had the changes of totals without steps, and its share of the steps' time beside them.
        hidden = head["lenses"][0]
        steps = {PRODUCTIVE: progress["total"] - hidden[4]}
        for sign, forfeited in ((1, head["forfeited"]), (-1, hidden[5])):
            for fate, duration in forfeited:
                steps[fate] = steps.get(fate, 0) + sign * duration
        unmarked = 0
        for _, state in head["running"]:
            visible = state["net"] - dict(map(tuple, state["shares"])).get(EXCLUDED, 0)
            steps[IN_FLIGHT] = steps.get(IN_FLIGHT, 0) + visible
            unmarked += visible - state["marked"]
        gains = dict(map(tuple, rolling["gains"]))
        gains[IN_FLIGHT] = gains.get(IN_FLIGHT, 0) + unmarked
        for category, duration in steps.items():
            gains[category] = gains.get(category, 0) - duration
        rolling = {**rolling, "gains": list(gains.items())}
    return {
        **head,
        "format": 5,
        "rolling": rolling,
        "cursor": {**head["cursor"], "_between": None},
        "stretches": [[at, [*state, ()]] for at, state in head["stretches"]],
        "running": [execution(placed) for placed in head["running"]],
        "spared": [execution(placed) for placed in head["spared"]],
        "earlier": [],
        "bins": None,
        "summary": None,
        "landmarks": None,
    }


UPGRADES: Final[Mapping[int, Callable[[Head], Head]]] = {3: _from_3, 4: _from_4}
