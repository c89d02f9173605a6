"""The dashboard of Google's own goodput series."""

from __future__ import annotations

from boards.board import Across, Board, Bound, Panel, Query, Section, Unit, View
from boards.slots import EACH, EACH_S, TARGET, TARGET_PERCENT, WINDOW, WINDOW_S
from otel_goodput._metrics import workload_series
from otel_goodput.semconv import Category


def board() -> Board:
    return Board(
        "otel_goodput: Google's workload series",
        "The series that Google's own goodput dashboards read, here by job and replica.",
        [
            Section("How much of the time makes progress?", _now()),
            Section("Where did the time go?", _losses()),
            Section("How fast are the steps, and what interrupted them?", _steps()),
            Section("What share of the slices is in use?", _slices()),
        ],
    )


_PARTITION = {workload_series.BADPUT_SOURCE: workload_series.OVERLAPPED_LOADING_SOURCE}
_CUMULATIVE = {workload_series.WINDOW_TYPE: workload_series.CUMULATIVE}
_TOTAL = {workload_series.GOODPUT_SOURCE: workload_series.TOTAL}


def _now() -> list[Panel]:
    elapsed = Query(workload_series.ELAPSED_TIME, only=_CUMULATIVE)
    rolling = Panel(
        f"Goodput, last {EACH}",
        "Productive time of a rolling window, percent; with several jobs chosen, that of the worst.",
        View.FIGURE,
        Unit.PERCENT,
        [
            Query(
                workload_series.INTERVAL_GOODPUT, only=_TOTAL | {workload_series.WINDOW_SIZE: EACH_S}, across=Across.MIN
            )
        ],
        width=2,
        bound=Bound(TARGET_PERCENT, below=True),
        repeated=True,
    )
    return [
        Panel(
            "Goodput, whole run",
            "Productive time over elapsed time, of the jobs that are chosen. A quotient of two series, so it "
            "is there even while rolling windows have none because the steps' clock is unknown: do not trust it then.",
            View.FIGURE,
            Unit.SHARE,
            [Query(workload_series.GOODPUT_TIME, only=_TOTAL, share_of=elapsed)],
            width=2,
            bound=Bound(TARGET, below=True),
        ),
        rolling,
        Panel("Elapsed", "Since the run's first start.", View.FIGURE, Unit.SECONDS, [elapsed], width=2),
        Panel(
            "Disruptions",
            "Restarts and rollbacks so far.",
            View.FIGURE,
            Unit.COUNT,
            [Query(workload_series.DISRUPTIONS, only=_CUMULATIVE)],
            width=2,
        ),
        Panel(
            "Highest step",
            "Highest step kept; with several jobs chosen, that of the slowest.",
            View.FIGURE,
            Unit.COUNT,
            [Query(workload_series.MAX_STEP, across=Across.MIN)],
            width=2,
        ),
    ]


def _losses() -> list[Panel]:
    size = {workload_series.WINDOW_SIZE: WINDOW_S}
    return [
        Panel(
            f"Where did the last {WINDOW} go?",
            "Productive time and its losses, percent; data loading that overlaps steps is no loss and is left out.",
            View.STACK,
            Unit.PERCENT,
            [
                Query(
                    workload_series.INTERVAL_GOODPUT,
                    Category.PRODUCTIVE,
                    only=_TOTAL | size,
                    across=Across.MEAN,
                ),
                Query(
                    workload_series.INTERVAL_BADPUT,
                    only=size,
                    but=_PARTITION,
                    by=(workload_series.BADPUT_SOURCE,),
                    across=Across.MEAN,
                ),
            ],
            width=8,
        ),
        Panel(
            "Which losses were there, whole run?",
            "The largest loss first.",
            View.TABLE,
            Unit.SECONDS,
            [Query(workload_series.BADPUT_TIME, but=_PARTITION, by=(workload_series.BADPUT_SOURCE,))],
        ),
        Panel(
            "Is goodput rising or falling?",
            "By the window's length in seconds.",
            View.LINES,
            Unit.PERCENT,
            [
                Query(
                    workload_series.INTERVAL_GOODPUT,
                    only=_TOTAL,
                    by=(workload_series.WINDOW_SIZE,),
                    across=Across.MIN,
                )
            ],
            width=6,
        ),
        Panel(
            "How much of the elapsed time was productive?",
            "The distance between the lines is what was lost.",
            View.LINES,
            Unit.SECONDS,
            [
                Query(workload_series.ELAPSED_TIME, "elapsed", only=_CUMULATIVE),
                Query(workload_series.GOODPUT_TIME, Category.PRODUCTIVE, only=_TOTAL),
            ],
            width=6,
        ),
    ]


def _steps() -> list[Panel]:
    return [
        Panel(
            "Are recent steps slower than usual?",
            "The deviation is how far the recent steps' 90th percentile is above the usual time.",
            View.LINES,
            Unit.SECONDS,
            [
                Query(workload_series.PERFORMANCE, "ideal step time", across=Across.MAX),
                Query(workload_series.STEP_DEVIATION, "deviation", across=Across.MAX),
            ],
            width=6,
        ),
        Panel(
            "How often was it disrupted?",
            "Restarts and rollbacks.",
            View.LINES,
            Unit.COUNT,
            [Query(workload_series.DISRUPTIONS, "disruptions", only=_CUMULATIVE)],
            width=6,
        ),
    ]


def _slices() -> list[Panel]:
    series = {"stepping": workload_series.STEPPING_SLICES, "available": workload_series.AVAILABLE_SLICES}
    return [
        Panel(
            f"Slices {state}",
            "Time-weighted share of the slices, whole run and rolling windows.",
            View.LINES,
            Unit.SHARE,
            [
                Query(
                    one,
                    by=(workload_series.WINDOW_TYPE, workload_series.WINDOW_SIZE),
                    across=Across.MIN,
                )
            ],
            width=6,
        )
        for state, one in series.items()
    ]
