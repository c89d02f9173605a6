"""Build the collector of manifest.yaml: ``python collector/builder/build.py``, or ``make collector``.

The builder (ocb) writes the sources. Which modules they are compiled with is in go.mod and go.sum beside this file, so
that the same Go makes the same binary, of modules whose checksums are known. ``--lock`` renews these two after a change
of the manifest. Needs Python alone (toolchain.py), and a network the first time.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from toolchain import BuildError, environment, find_go, run

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent / "bin" / "otelcol-goodput"
LOCK = ("go.mod", "go.sum")
BUILDER = "go.opentelemetry.io/collector/cmd/builder"
# No path of this machine gets into the binary, nor what only a debugger reads.
FLAGS = ("-trimpath", "-mod=readonly", "-buildvcs=false", "-ldflags=-s -w -buildid=")


def components(text: str) -> list[tuple[str, str]]:
    """Module and version of each component of a manifest."""
    return re.findall(r"^\s*- gomod: (\S+) (v\S+)", text, re.MULTILINE)


def release(text: str) -> str:
    """The collector's release, by which the builder is chosen."""
    match = re.search(r"^  version: (\S+)", text, re.MULTILINE)
    if match is None:
        raise BuildError("manifest.yaml: dist has no version")
    return match[1]


def unlocked(manifest: str, lock: str) -> list[str]:
    """The components that the lock does not have at the manifest's version."""
    return [f"{module} {version}" for module, version in components(manifest) if f"\t{module} {version}\n" not in lock]


def build(output: Path, *, lock: bool) -> None:
    """Write the binary to `output` in one piece, or with `lock` the lock."""
    manifest = (HERE / "manifest.yaml").read_text(encoding="utf-8")
    locked = (HERE / "go.mod").read_text(encoding="utf-8")
    missing = unlocked(manifest, locked)
    if missing and not lock:
        raise BuildError(f"go.mod lacks {', '.join(missing)}: run this with --lock")
    go = find_go()
    environ = {**environment(), "GOFLAGS": "-mod=mod -buildvcs=false"}
    with tempfile.TemporaryDirectory(prefix="otelcol-") as directory:
        sources = Path(directory) / "sources"
        print(f"Sources, from the builder of {release(manifest)}.", flush=True)
        run(
            [go, "run", f"{BUILDER}@v{release(manifest)}", "--config", str(HERE / "manifest.yaml"),
             "--skip-get-modules", "--skip-compilation"],
            environ, Path(directory),
        )  # fmt: skip
        if lock:
            for name in LOCK:  # what stays is locked as it was
                shutil.copyfile(HERE / name, sources / name)
            wanted = [f"-require={module}@{version}" for module, version in components(manifest)]
            run([go, "mod", "edit", *wanted], environ, sources)
            run([go, "mod", "tidy", "-compat=1.25"], environ, sources)
            for name in LOCK:
                shutil.copyfile(sources / name, HERE / name)
            return
        for name in LOCK:
            shutil.copyfile(HERE / name, sources / name)
        print("Compiling: minutes the first time, seconds later.", flush=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        made = output.with_name(f".{output.name}.{os.getpid()}")
        try:
            run([go, "build", *FLAGS, "-o", str(made), "."], environ, sources)
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
