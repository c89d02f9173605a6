"""The magic ``%goodput`` of notebooks, after ``%load_ext otel_goodput``. IPython is not imported."""

from __future__ import annotations

import os
from typing import Any, Final

from otel_goodput import api
from otel_goodput._programs.recording import ALL
from otel_goodput._settings.options import Options, Settings
from otel_goodput.reports.report import Report

NAME: Final = "notebook"  # of a job without one


def load(ipython: Any) -> None:
    """Register the magics with a shell of IPython."""

    def goodput(line: str, cell: str | None = None) -> Report | None:
        """``%goodput`` shows the report; ``%%goodput [NAME]`` records the cell as a job, and then shows its report."""
        return api.report() if cell is None else _record(ipython, line.strip(), cell)

    ipython.register_magic_function(goodput, magic_kind="line_cell", magic_name="goodput")


def _record(ipython: Any, name: str, cell: str) -> Report | None:
    chosen = os.environ.get(Settings.integrations.variable, "").strip()
    options: Options = {} if chosen else {"integrations": ALL}
    api.configure(name or os.environ.get("OTEL_SERVICE_NAME", "").strip() or NAME, **options)
    job = api.job()
    job.__enter__()
    error: BaseException | None = None
    try:
        result = ipython.run_cell(cell)  # shows what the cell raises
        error = result.error_before_exec or result.error_in_exec
    except BaseException as interrupt:
        error = interrupt
        raise
    finally:
        job.__exit__(None if error is None else type(error), error, None)
    return api.report()
