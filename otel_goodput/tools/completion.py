"""Scripts that complete ``otel-goodput`` in a shell, made of the command's own arguments."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

SHELLS: Final = ("bash", "zsh", "fish")
_PROGRAM: Final = "otel-goodput"
_RUNS: Final = "$(_otel_goodput_runs)"
# Prints the ids of the runs in the folder that the commands read unless told otherwise. A folder whose name has a "%"
# has another name than its run.
_BASH: Final = """\
_otel_goodput_runs() {
    local run
    for run in "${OTEL_GOODPUT_DIR:-goodput}"/*/; do
        run="${run%/}"; run="${run##*/}"
        case "$run" in "*"|*%*) ;; *) printf '%s\\n' "$run" ;; esac
    done
}
_otel_goodput() {
    local IFS=$'\\n' command="" words="" word number
    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
    current="${current//\\\\/}"
    for ((number = 1; number < COMP_CWORD; number++)); do
        case "${COMP_WORDS[number]}" in -*) ;; *) command="${COMP_WORDS[number]}"; break ;; esac
    done
    case "$command:$previous" in
@CASES@
    esac
    # Not compgen -W: it would expand the words, and run what the name of a folder says.
    COMPREPLY=()
    while read -r word; do
        case "$word" in "$current"*) printf -v word %q "$word"; COMPREPLY+=("$word") ;; esac
    done <<< "$words"
}
complete -o bashdefault -o default -F _otel_goodput otel-goodput
"""
_FISH: Final = """\
function __otel_goodput_runs
    set -l place goodput
    set -q OTEL_GOODPUT_DIR; and set place $OTEL_GOODPUT_DIR
    for run in $place/*/
        string match -q -- '*%*' $run; or basename $run
    end
end
"""


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the script for `shell`, one of `SHELLS`. Where nothing else fits, the shell completes names of files."""
    if shell == "fish":
        return _FISH + "".join(f"{line}\n" for line in _fish(parser))
    text = _BASH.replace("@CASES@", "\n".join(_bash(parser)))
    if shell == "zsh":
        return f"#compdef {_PROGRAM}\nautoload -U +X compinit bashcompinit\ncompinit\nbashcompinit\n{text}"
    return text


def commands_of(parser: argparse.ArgumentParser) -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """Return the subcommands of `parser` by name: what each is for, and its parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {each.dest: each.help or "" for each in action._choices_actions}
            return {name: (told.get(name, ""), each) for name, each in action.choices.items()}
    return {}


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield what `parser` and its subcommands take, without what is hidden."""
    for action in parser._actions:
        if action.help != argparse.SUPPRESS:
            yield action
    for _, below in commands_of(parser).values():
        yield from _actions(below)


def _names_run(action: argparse.Action) -> bool:
    return action.dest == "run_id" or (action.metavar in ("A", "B") and not action.option_strings)


def _values(action: argparse.Action) -> list[str]:
    return [str(each) for each in action.choices or ()]


def _bash(parser: argparse.ArgumentParser) -> Iterator[str]:
    commands = commands_of(parser)
    top = [each for action in parser._actions for each in action.option_strings]
    yield _case(":*", [*commands, *top])
    for name, (_, command) in commands.items():
        words: list[str] = []
        for action in _actions(command):
            words += action.option_strings or ([_RUNS] if _names_run(action) else _values(action))
            if action.option_strings and action.nargs != 0:
                values = [_RUNS] if _names_run(action) else _values(action)
                yield _case("|".join(f"{name}:{each}" for each in action.option_strings), values)
        yield _case(f"{name}:*", list(dict.fromkeys([*words, *(commands if name == "help" else ())])))


def _case(pattern: str, words: list[str]) -> str:
    listed = "\n".join(words)
    return f'        {pattern}) words="{listed}" ;;'


def _fish(parser: argparse.ArgumentParser) -> Iterator[str]:
    commands = commands_of(parser)
    for name, (purpose, _) in commands.items():
        yield f"complete -c {_PROGRAM} -n __fish_use_subcommand -f -a {name} -d {_text(purpose)}"
    for action in parser._actions:
        if action.option_strings:
            yield f"complete -c {_PROGRAM} -n __fish_use_subcommand {_flags(action)} -d {_text(action.help)}"
    for name, (_, command) in commands.items():
        seen = f"complete -c {_PROGRAM} -n '__fish_seen_subcommand_from {name}'"
        if name == "help":
            yield f"{seen} -f -a {_text(' '.join(commands))}"
        for action in _actions(command):
            values = "(__otel_goodput_runs)" if _names_run(action) else " ".join(_values(action))
            takes = "" if action.nargs == 0 else f" -x -a {_text(values)}" if values else " -r"
            if action.option_strings:
                yield f"{seen} {_flags(action)}{takes} -d {_text(action.help)}"
            elif values:
                yield f"{seen} -f -a {_text(values)}"


def _flags(action: argparse.Action) -> str:
    return " ".join(f"-l {each[2:]}" if each.startswith("--") else f"-s {each[1:]}" for each in action.option_strings)


def _text(text: str | None) -> str:
    """Quote `text` for fish, which unlike a POSIX shell reads a backslash within single quotes."""
    return "'" + (text or "").replace("%%", "%").replace("\\", "\\\\").replace("'", "\\'") + "'"
