"""The types that users get: mypy --strict on programs of theirs, against the wheel as it is installed."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel is installed: an environment of its own, which sees the packages of this one, too.

    mypy reads types that are installed only where ``py.typed`` stands, and those of a source tree in any case.
    """
    place = tmp_path_factory.mktemp("types")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (wheel,) = place.glob("otel_goodput-*.whl")
    venv.create(place / "venv", symlinks=True)
    (site,) = (place / "venv").glob("lib/python*/site-packages")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return site


def mypy(site: Path, *programs: Path) -> list[str]:
    """What it says of these, ``NAME:LINE: error: …``, without its notes."""
    options = ("--strict", "--config-file=", "--no-error-summary", "--hide-error-context", "--no-pretty")
    python = site.parents[2] / "bin" / "python"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--python-executable", str(python),
         "--cache-dir", str(site.parents[3] / "cache"), *map(str, programs)],
        capture_output=True, text=True, timeout=240, check=False, cwd=site.parents[3],
        env={"PATH": "", "MYPYPATH": ""},
    )  # fmt: skip
    assert done.returncode in (0, 1) and not done.stderr, done.stdout + done.stderr
    errors = [line for line in done.stdout.splitlines() if ": note: " not in line]
    return [Path(line.partition(":")[0]).name + ":" + line.partition(":")[2] for line in errors]


def expected(program: Path) -> list[str]:
    """By the comments below its lines, from that with the first error on."""
    lines, number = [], 0
    for here, line in enumerate(program.read_text(encoding="utf-8").splitlines(), 1):
        comment = re.fullmatch(r" *# (.* \[[a-z-]+\])", line)
        if comment:
            lines.append(f"{program.name}:{number}: error: {comment[1]}")
        else:
            number = here
    return lines


def test_correct_use_is_taken_and_wrong_use_refused(site: Path) -> None:
    wanted = expected(HERE / "refused.py")
    assert len(wanted) > 20
    assert mypy(site, HERE / "api.py", HERE / "refused.py") == wanted


def test_without_py_typed_nothing_is_known(site: Path, tmp_path: Path) -> None:
    """So that the test above does not pass by a way around it."""
    marker = site / "otel_goodput" / "py.typed"
    program = tmp_path / "program.py"
    program.write_text("import otel_goodput\n")
    marker.unlink()
    try:
        (error,) = mypy(site, program)
    finally:
        marker.touch()
    assert error.startswith("program.py:1: error: ") and error.endswith("py.typed marker  [import-untyped]")
