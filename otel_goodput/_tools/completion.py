"""``otel-goodput completion``: scripts that complete the command in a shell, by shtab."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

from otel_goodput._runtime.installation import install_command
from otel_goodput.errors import ConfigurationError

SHELLS: Final = ("bash", "zsh", "fish")
# What each shell calls for the ids of the runs in the folder that the commands read by default. A folder whose name has
# a "%" has another name than its run. Names are quoted, and never expanded: they may hold anything.
_RUNS: Final = {"bash": "_otel_goodput_runs", "zsh": "_otel_goodput_runs", "fish": "(__otel_goodput_runs)"}
_PREAMBLE: Final[Any] = {  # by shell; shtab says `str`, and takes this
    "bash": """\
_otel_goodput_runs() {
    local run current="${1//\\\\/}"
    for run in "${OTEL_GOODPUT_DIR:-goodput}"/*/; do
        run="${run%/}"; run="${run##*/}"
        case "$run" in "*"|*%*) ;; "$current"*) printf '%q\\n' "$run" ;; esac
    done
}
""",
    "zsh": """\
_otel_goodput_runs() {
    local -a runs=("${OTEL_GOODPUT_DIR:-goodput}"/*(N/:t))
    compadd -- ${runs:#*%*}
}
""",
    "fish": """\
function __otel_goodput_runs
    set -l place goodput
    set -q OTEL_GOODPUT_DIR; and set place $OTEL_GOODPUT_DIR
    for run in $place/*/
        string match -q -- '*%*' $run; or basename $run
    end
end
""",
}


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the script for `shell`, one of `SHELLS`. Where nothing else fits, the shell completes names of files.

    Raises:
        ConfigurationError: the extra is not installed.
    """
    try:
        import shtab
    except ImportError as error:
        raise ConfigurationError(f"completion needs shtab: {install_command('completion')}") from error
    for action in _actions(parser):
        if action.dest == "topic":
            action.choices = list(commands_of(parser))
        elif action.dest == "run_id" or (action.metavar in ("A", "B") and not action.option_strings):
            action.complete = _RUNS  # type: ignore[attr-defined]
        elif action.choices is None and action.nargs != 0:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    text: str = shtab.complete(parser, shell, preamble=_PREAMBLE)
    return f"{text}\n"


def commands_of(parser: argparse.ArgumentParser) -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """Return the subcommands of `parser` by name: what each is for, and its parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            purposes = {each.dest: each.help or "" for each in action._choices_actions}
            return {name: (purposes.get(name, ""), each) for name, each in action.choices.items()}
    return {}


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield what `parser` and its subcommands take."""
    yield from parser._actions
    for _, below in commands_of(parser).values():
        yield from _actions(below)
