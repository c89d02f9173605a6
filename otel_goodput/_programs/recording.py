"""Begin the recording of a program that does not know of it, and install each integration once its library is there."""

from __future__ import annotations

import os
import sys
from typing import Final

from otel_goodput import api
from otel_goodput._integrations import LIBRARIES
from otel_goodput._live.launches import process_began
from otel_goodput._runtime.guard import containing
from otel_goodput._runtime.installation import install_command
from otel_goodput._runtime.program import ProgramRecorder
from otel_goodput._settings.options import Options, Settings
from otel_goodput._text.redact import shown
from otel_goodput.errors import ConfigurationError

EXTRA: Final = "run"
ALL: Final = "all"


def begin(name: str | None, options: Options) -> ProgramRecorder | None:
    """Record this program from its beginning, in one job, with all integrations unless the user chose some.

    Returns None if nothing is recorded. Raises ConfigurationError if an option is wrong, or wrapt is missing.
    """
    try:
        from wrapt.importer import register_post_import_hook
    except ImportError as error:
        raise ConfigurationError(f"this needs wrapt: {install_command(EXTRA)}") from error
    if options.get("integrations") is None and not os.environ.get(Settings.integrations.variable, "").strip():
        options = {**options, "integrations": ALL}
    recorder = api.begin_program(name, process_began(), options)
    if recorder is not None:
        for library, _ in LIBRARIES.values():
            register_post_import_hook(_look_around, library)
        recorder.say_once(_say)
    return recorder


def leave(error: BaseException | None) -> None:
    """Take note of what ended the program: an error, or nothing. It may go on in other threads."""
    recorder = api.recording_now()
    if recorder is not None:
        recorder.leave(error)


def _look_around(_: object) -> None:
    """Called right after a library was imported; an error here would be one of that import."""
    with containing("looking for libraries"):
        recorder = api.recording_now()
        if recorder is not None:
            recorder.look_around()


def _say(recorder: ProgramRecorder) -> None:
    """Say on standard error which run is recorded, and how to see it."""
    place = recorder.path
    if place is not None and recorder.config.leads and sys.stderr is not None:
        text = f"otel-goodput: recording run {recorder.run_id!r}; to see it: otel-goodput report {shown(str(place))}\n"
        with containing("saying what is recorded"):
            sys.stderr.write(text)
            sys.stderr.flush()
