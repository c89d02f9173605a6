"""A dashboard of Cloud Monitoring with all runs there were: which go on, have ended, or are gone, and their figures."""

from __future__ import annotations

from typing import Any, Final

from boards.board import COLUMNS, Unit
from boards.cloud import LAST, RECALLED, TRACES, Scope, heading, laid_out, last, table, tile
from boards.slots import SILENCE, WINDOW
from boards.standing import STATES
from otel_goodput import semconv

IN_A_ROW: Final = 3
HEIGHT: Final = 5


def dashboard(scope: Scope) -> str:
    """The JSON that ``gcloud monitoring dashboards create --config-from-file`` takes."""
    runs = scope.runs
    state, alike = runs.state(), f"on ({', '.join(scope.words.run)})"
    states = {
        word: (f"{runs.elapsed()} and {alike} ({state} == {value})", Unit.SECONDS) for value, word in enumerate(STATES)
    }
    ratios = {f"Goodput, last {WINDOW}": WINDOW, "Goodput, whole run": semconv.WINDOW_RUN}
    figures = {
        **{
            title: (runs.of_run("min", semconv.RATIO, {semconv.GOODPUT_WINDOW: of}), Unit.SHARE)
            for title, of in ratios.items()
        },
        "Last sign of life, ago": (runs.silent(), Unit.SECONDS),
        "Highest step": (runs.of_run("max", semconv.STEP_MAX), Unit.COUNT),
        "Disruptions": (runs.disruptions(), Unit.COUNT),
        "At risk": (runs.of_run("max", semconv.AT_RISK), Unit.SECONDS),
    }
    titled = {f"{word.capitalize()}: elapsed time": query for word, query in states.items()}
    tiles = [
        *_rows("What is the state of each run?", titled),
        *_rows("How well did each run use its time?", figures),
    ]
    text = (
        f"A run is {STATES[2]} if it has reported nothing for {SILENCE:g} s and had not ended: it died, or its metrics "
        f"do not arrive. {LAST} Runs that were silent for {RECALLED} are not listed."
    )
    texts = {"What the tables say": (2, text), "Traces of a run": (2, TRACES)}
    return laid_out(f"otel_goodput: all runs{scope.suffix}", scope.pinned[:1], tiles, texts)


def _rows(title: str, tables: dict[str, tuple[str, Unit]]) -> list[dict[str, Any]]:
    width = COLUMNS // IN_A_ROW
    tiles = [tile(COLUMNS, 1, heading(title))]
    for name, (query, unit) in tables.items():
        widget = {"title": name, **table([last({"prometheusQuery": query}, unit)])}
        tiles.append(tile(width, HEIGHT, widget))
    return tiles
