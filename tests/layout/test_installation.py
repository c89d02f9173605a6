"""What `make` installs: the lock names all of it, by hashes, and nothing is asked of another user."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / ".ci" / "requirements.lock"


def wanted() -> set[str]:
    command = [sys.executable, str(ROOT / ".ci" / "requirements.py")]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return {normal(re.split(r"[^\w.-]", line)[0]) for line in output.splitlines()}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_names_every_dependency_with_hashes() -> None:
    entries = re.findall(r"^(\S+?)(?:\[[^]]*\])?==(\S+)(.*(?:\n .*)*)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    locked = {normal(name) for name, _, _ in entries}
    assert len(wanted()) > 25 and wanted() - locked == set()
    assert [name for name, _, rest in entries if "--hash=sha256:" not in rest] == []


def test_what_is_wanted_is_what_pyproject_says() -> None:
    """A name that stands there and is not this package's own is asked for."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    groups = re.search(r"\[dependency-groups\](.*?)\neveryday", text, re.DOTALL)
    extras = re.search(r"\ndependencies = .*?\n\[project\.scripts\]", text, re.DOTALL)
    assert groups and extras
    names = {normal(name) for name in re.findall(r'"([A-Za-z][\w.-]*)(?:\[[^]]*\])?[>=;" ]', extras[0] + groups[1])}
    assert names - {"otel-goodput"} <= wanted()


@pytest.mark.parametrize("target", [".prometheus", ".made"])
def test_make_never_calls_sudo_and_says_which_package_is_missing(target: str, tmp_path: Path) -> None:
    """As somebody who is not root, on a machine that lacks both packages and has no network."""
    tools, venv, log = tmp_path / "tools", tmp_path / "venv", tmp_path / "asked"
    tools.mkdir()
    (venv / "bin").mkdir(parents=True)
    python = tools / "python3"
    fakes = {
        "sudo": f'echo "$@" >>{log}',
        "apt-get": "exit 1",
        "id": "echo 1000",
        "python3": f'case "$2" in *ensurepip*) [ "$1" != -c ] || case "$2" in import*) exit 1;; esac;; esac; '
        f'exec {sys.executable} "$@"',
    }
    for name, line in fakes.items():
        (tools / name).write_text(f"#!/bin/sh\n{line}\n")
        (tools / name).chmod(0o755)
    for name in ("sh", "mktemp", "chmod", "rm", "touch", "env", "cat"):
        (tools / name).symlink_to(next(path for each in os.defpath.split(":") if (path := Path(each, name)).exists()))
    if target == ".prometheus":
        (venv / ".made").touch()
    make = next(path for each in os.environ["PATH"].split(":") if (path := Path(each, "make")).exists())
    done = subprocess.run(
        [str(make), f"VENV={venv}", f"PYTHON={python}", f"{venv}/{target}"],
        cwd=ROOT, env={"PATH": str(tools), "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0 and not log.exists()
    package = "prometheus" if target == ".prometheus" else r"python3\.\d+-venv"
    assert re.search(rf"install (Debian's package )?{package}", done.stderr), done.stderr
