"""What ``opentelemetry-instrument`` loads: it records a program if ``OTEL_GOODPUT_RUN_NAME`` asks for that.

It is called before the program, in every process that inherits the variables: launchers are not recorded, but what they
launch; nor are processes that a recorded program starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from otel_goodput._programs import recording
from otel_goodput._runtime.guard import report_once
from otel_goodput._settings.envvars import OTEL_GOODPUT_RUN_NAME
from otel_goodput._text.redact import shown
from otel_goodput.errors import ConfigurationError

try:
    from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
except ImportError:  # only that package's command loads this module
    BaseInstrumentor = object

# Programs that start others, by the name of the script or the module.
LAUNCHERS: Final = frozenset(
    {
        *("torchrun", "torch.distributed.run", "torch.distributed.launch", "deepspeed", "horovodrun"),
        *("accelerate", "accelerate.commands.launch", "opentelemetry-instrument"),
    }
)


class GoodputInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Records the program if its environment says so."""

    def instrumentation_dependencies(self) -> Collection[str]:
        return ()

    def _instrument(self, **_: Any) -> None:
        name = os.environ.get(OTEL_GOODPUT_RUN_NAME.name, "").strip()
        if not name or not is_program(sys.orig_argv):
            return
        try:
            recording.begin(name, {})
        except ConfigurationError as error:
            report_once("instrumentor", "nothing is recorded: %s", shown(str(error)))
        del os.environ[OTEL_GOODPUT_RUN_NAME.name]  # processes that the program starts are a part of it

    def _uninstrument(self, **_: Any) -> None:
        return None


def is_program(command: Sequence[str]) -> bool:
    """Whether a command line of Python runs a program of the user's: no launcher, and no child of multiprocessing."""
    words = iter(command[1:])
    for word in words:
        if word in ("-X", "-W"):
            next(words, None)
        elif word == "-c":
            return False
        elif word == "-m":
            return next(words, "") not in LAUNCHERS
        elif not word.startswith("-"):
            return Path(word).name not in LAUNCHERS
    return False
