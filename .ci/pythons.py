"""Run the suite on every supported Python that is here, or with the oldest versions that pyproject.toml lets in.

Which were not run is named, and why. Exit status 1 where one failed that is supported or was asked for by name.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from requirements import GROUPS, PYPROJECT, requirements, tomllib

ROOT = Path(__file__).parents[1]
SUPPORTED = ("3.10", "3.11", "3.12", "3.13")
UNCLAIMED = ("3.14",)  # tried where it is here; what fails there fails nothing
LOWEST = SUPPORTED[0]
# What needs the collector, Prometheus or kustomize is run by `make test`: a Python's version is nothing to them.
LEFT_OUT = ("tests/otelcol", "tests/collector")


class Outcome(NamedTuple):
    version: str
    passed: bool
    summary: str


def interpreter(version: str) -> tuple[str, str]:
    """A Python of that version, on PATH, of pyenv, or one that uv has or can get; else "", and why there is none."""
    pyenv = sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python3")))
    for name in (shutil.which(f"python{version}"), *pyenv):
        if name and _is(name, version):
            return name, ""
    why = ""
    for word in ("find", "install", "find"):
        done = subprocess.run(
            [sys.executable, "-m", "uv", "python", word, version], capture_output=True, text=True, check=False
        )
        path = done.stdout.strip()
        if word == "find" and done.returncode == 0 and _is(path, version):
            return path, ""
        if word == "install" and done.returncode:
            why = (done.stderr.strip().splitlines() or [""])[-1].strip()  # the innermost cause
            break
    return "", f"it is not here, and uv cannot get it: {why}"


def _is(name: str, version: str) -> bool:
    """Whether it runs and is what its name says: what pyenv puts on PATH may be neither."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([name, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def run(version: str, python: str, arguments: list[str], *, lowest: bool) -> Outcome:
    """The suite, mypy and vermin in an environment of its own."""
    place = ROOT / f".venv-{'lowest' if lowest else version}"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--clear", "--seed", "--python", python, str(place)], check=True, cwd=ROOT)
    own = place / "bin/python"
    install = [*uv, "pip", "install", "--quiet", "--python", str(own), "--editable", ".", "vermin>=1.6"]
    if lowest:
        # Named one by one: what comes by way of an extra is not "direct", and would be the newest.
        install += ["--resolution", "lowest-direct", *requirements(tomllib.loads(PYPROJECT.read_text("utf-8")))]
    else:
        install += [word for group in GROUPS for word in ("--group", group)]
    done = subprocess.run(install, check=False, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        why = done.stderr.strip().splitlines() or ["it cannot be installed"]
        return Outcome(version, False, f"not installed: {why[-1].strip()}")
    if not lowest and (why_not := read(version, place)):
        return Outcome(version, False, why_not)
    ignored = [f"--ignore={folder}" for folder in LEFT_OUT]
    tests = [str(own), "-m", "pytest", "-n", "auto", "--dist", "worksteal", "-q", *ignored, *arguments]
    environment = {**os.environ, "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    log = place / "pytest.log"
    with (
        log.open("w", buffering=1, encoding="utf-8") as whole,
        subprocess.Popen(tests, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        closing = ""
        for line in process.stdout:
            whole.write(line)
            if re.match(r"FAILED|ERROR|SKIPPED", line):
                sys.stdout.write(line)
                sys.stdout.flush()
            if re.search(r"\b(passed|failed|error)", line):
                closing = line.strip(" =\n")
    closing_line = closing or "it did not come to its closing line"
    return Outcome(
        version, process.returncode == 0, closing_line if process.returncode == 0 else f"{closing_line}; see {log}"
    )


def read(version: str, place: Path) -> str:
    """What mypy (for that version) and vermin find in the package, by an environment's tools; "" if nothing."""
    for name, options in (("mypy", ("--python-version", version)), ("vermin", _VERMIN)):
        check = [str(place / "bin" / name), *options]
        checked = subprocess.run(check, check=False, cwd=ROOT, capture_output=True, text=True)
        if checked.returncode:
            lines = (checked.stdout + checked.stderr).strip().splitlines()
            return f"{name}: {lines[-1]}"
    return ""


_VERMIN = ("-q", "--target=3.10-", "--no-tips", "--violations", "otel_goodput")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--lowest", action="store_true", help="the oldest versions, on the oldest Python")
    parser.add_argument("--python", action="append", choices=SUPPORTED + UNCLAIMED, help="only this one (repeatable)")
    options, arguments = parser.parse_known_args()
    outcomes = []
    absent: list[tuple[str, str]] = []
    for version in [LOWEST] if options.lowest else options.python or SUPPORTED + UNCLAIMED:
        python, why = interpreter(version)
        if not python:
            absent.append((version, why))
            continue
        print(f"Python {version} ({python}) ...", flush=True)
        outcome = run(version, python, arguments, lowest=options.lowest)
        unclaimed = version in UNCLAIMED and not options.python
        print(f"Python {version}: {outcome.summary}{' (it is not claimed)' if unclaimed else ''}", flush=True)
        if not unclaimed:
            outcomes.append(outcome)
    for version, why in absent:
        # The tests need the interpreter; whether the code is of that version can be read with another one.
        place = next((ROOT / f".venv-{one.version}" for one in reversed(outcomes)), None)
        other = "no other Python was run to check it with" if place is None else read(version, place)
        print(f"Python {version}: NOT RUN, {why}; {other or 'mypy and vermin find nothing'}", flush=True)
        if place is not None and other and version not in UNCLAIMED:
            outcomes.append(Outcome(version, False, other))
    return int(not outcomes or not all(one.passed for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
