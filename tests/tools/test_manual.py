"""What the command says of itself: help with examples and exit statuses, and completion in a real bash."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from otel_goodput._tools import cli
from otel_goodput._tools.cli import SHELLS
from otel_goodput._tools.commands import COMMANDS, EXIT_STATUSES
from otel_goodput._tools.run import split

from .commands import PATIENCE_S, goodput, succeeded

PARSER = cli.command_parser()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_purpose_examples_and_statuses(name: str) -> None:
    text = succeeded(goodput(name, "--help"))
    described = text.split("\n\n")[1].strip()
    assert described[0].isupper() and described.endswith(".")
    assert "\nexamples:\n  " in text
    for status in (0, 1, 2, 130, *COMMANDS[name].statuses):
        assert f"\n  {status:<4}{EXIT_STATUSES[status]}\n" in text
    assert succeeded(goodput("help", name)) == text


@pytest.mark.parametrize("example", [each for command in COMMANDS.values() for each in command.examples])
def test_examples_are_taken(example: str) -> None:
    words = shlex.split(example)
    if words[0] == "torchrun":
        words = words[words.index("otel_goodput") + 1 :]
    if words[0] == "run":  # what stands behind the program is the program's
        line = split(words[1:])
        assert line.program
        words = ["run", *line.own]
    if words[0] != "eval":
        assert isinstance(PARSER.parse_args(words), argparse.Namespace)


def test_without_a_command_the_commands_are_listed() -> None:
    done = goodput()
    assert (done.returncode, done.stderr) == (2, "")
    assert all(f"\n    {name}" in done.stdout for name in COMMANDS)


def test_help_of_what_is_not_there() -> None:
    done = goodput("help", "nosuch")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nosuch" in done.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rep", {"report", "replay"}),
        ("report --js", {"--json"}),
        ("dashboards g", {"gcp", "gcp-otlp", "grafana"}),
        ("completion ", set(SHELLS)),
        ("report --run job", {"job-1", r"job\ 2"}),
        (r"report --run job\ ", {r"job\ 2"}),
        ("compare job-", {"job-1"}),
        ("compare $", {r"\$\(touch\ run\)"}),
        ("help doc", {"doctor"}),
        ("env nosuch", set()),
    ],
)
def test_bash_completes(line: str, expected: set[str], tmp_path: Path) -> None:
    for name in ("job-1", "job 2", "quoted%2Fname", "$(touch run)"):
        (tmp_path / "goodput" / name).mkdir(parents=True)
    script = succeeded(goodput("completion", "bash"))
    words = ["otel-goodput", *re.split(r"(?<!\\) ", line)]
    shown = '((${#COMPREPLY[@]})) && printf "%s\\n" "${COMPREPLY[@]}"; true'
    call = f"COMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}; _shtab_otel_goodput\n"
    done = subprocess.run(
        ["bash", "--norc", "-c", script + call + shown],
        capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE_S, env={"PATH": "/usr/bin:/bin"}, check=True,
    )  # fmt: skip
    offered = set(done.stdout.splitlines()) - {"-h", "--help"}
    assert done.stderr == "" and offered == expected
    assert not (tmp_path / "run").exists(), "the name of a folder was run"


@pytest.mark.parametrize("shell", [each for each in SHELLS if shutil.which(each)])
def test_shells_take_their_scripts(shell: str, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(succeeded(goodput("completion", shell)))
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, capture_output=True, timeout=PATIENCE_S)


def test_without_shtab_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 1
    assert "completion needs shtab: pip install " in capsys.readouterr().err
