"""The page of the command: what its parsers say, as Markdown."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator

from otel_goodput._tools.cli import command_parser
from otel_goodput._tools.commands import EXIT_STATUSES

WIDTH = 100  # of the blocks of text


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """(name, brief, parser) of each subcommand of `parser`, with those of subcommands behind them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            briefs = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, each in action.choices.items():
                yield name, briefs[name], each
                yield from ((f"{name} {below}", brief, one) for below, brief, one in commands(each))


def options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The arguments of `parser`, without ``--help`` and subcommands."""
    hidden = (argparse._HelpAction, argparse._SubParsersAction)
    return [one for one in parser._actions if not isinstance(one, hidden)]


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def called(action: argparse.Action, formatter: argparse.HelpFormatter) -> str:
    """An argument as it is written in a command line."""
    if not action.option_strings:
        return str(action.metavar or action.dest)
    value = "" if action.nargs == 0 else formatter._format_args(action, action.dest.upper())
    return f"{action.option_strings[-1]} {value}".strip()


def entry(name: str, brief: str, parser: argparse.ArgumentParser) -> str:
    """The section of one command. Its exit statuses are left to the table of all."""
    formatter = parser._get_formatter()
    description = parser.description or brief[:1].upper() + brief[1:] + "."
    laid_out = "\n " in description  # for the terminal
    text = f"### {name}\n\n{_block(description) if laid_out else cell(description) + chr(10)}\n"
    if taken := options(parser):
        text += "| argument |  |\n| --- | --- |\n"
        for action in taken:
            needed = " Required." if action.required and action.option_strings else ""
            meaning = cell(formatter._expand_help(action)) if action.help else ""
            text += f"| `{cell(called(action, formatter))}` | {meaning}{'.' if needed else ''}{needed} |\n"
        text += "\n"
    epilog, _, _ = (parser.epilog or "").partition("exit status:")
    return text + (f"{_block(epilog)}\n" if epilog.strip() else "")


def _block(text: str) -> str:
    return f"```text\n{textwrap.dedent(text).strip()}\n```\n"


def command_line() -> str:
    return "".join(entry(*one) for one in commands(command_parser()))


def statuses() -> str:
    return "| status |  |\n| --- | --- |\n" + "".join(
        f"| {status} | {what} |\n" for status, what in EXIT_STATUSES.items()
    )
