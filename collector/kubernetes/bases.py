"""Writes the bases of the overlays next to them: ``python collector/kubernetes/bases.py``; ``--check`` compares only.

A copy of an overlay's directory builds anywhere then, without the rest of this tree. It needs kustomize, or kubectl.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
BASE, NAMES = "base.yaml", "names.yaml"
HEAD = "# Written by ../../bases.py from {}: change those, or put a patch into kustomization.yaml.\n"


class Stand(NamedTuple):
    """The bases of an overlay: directories next to this file, laid over each other in this order."""

    resources: tuple[str, ...]
    components: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        return *self.resources, *self.components


OVERLAYS = {
    "example": Stand(("job",), ("spool",)),
    "fleet": Stand(("jobset",), ("gateway",)),
}
# What is generated has a suffix made of its content; an overlay that changes the content has to know it by its name.
_SUFFIX = re.compile(r"\b(goodput|otelcol-sidecar|otelcol-gateway)-[bcdfghkmt2456789]{10}\b")


def written(root: Path) -> dict[str, str]:
    """What every file is to hold, by its path from `root`.

    Raises:
        RuntimeError: kustomize is not here, or refuses a manifest.
    """
    files: dict[str, str] = {}
    for name, stand in OVERLAYS.items():
        head = HEAD.format(", ".join(f"../../{part}" for part in stand.parts))
        files[f"overlays/{name}/{BASE}"] = head + _SUFFIX.sub(r"\1", _built(root, stand))
        # Where kinds that kustomize does not know name other objects.
        known = [path.read_text(encoding="utf-8") for part in stand.parts if (path := root / part / NAMES).exists()]
        if known:
            entries = "".join(text.partition("nameReference:\n")[2] for text in known)
            files[f"overlays/{name}/{NAMES}"] = f"{head}nameReference:\n{entries}"
    return files


def _built(root: Path, stand: Stand) -> str:
    with tempfile.TemporaryDirectory() as place:
        lines = ["apiVersion: kustomize.config.k8s.io/v1beta1", "kind: Kustomization"]
        for key, parts in stand._asdict().items():
            # kustomize takes no directory by its absolute path.
            lines += [f"{key}:", *(f"  - {os.path.relpath(root / part, Path(place).resolve())}" for part in parts)]
        lines = [line for line in lines if not (line == "components:" and not stand.components)]
        (Path(place) / "kustomization.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        done = subprocess.run([*_kustomize(), place], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def _kustomize() -> list[str]:
    kustomize = shutil.which("kustomize", path=str(Path(sys.executable).parent)) or shutil.which("kustomize")
    if kustomize:
        return [kustomize, "build"]
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise RuntimeError("neither kustomize nor kubectl is here")
    return [kubectl, "kustomize"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if a file is out of date")
    parser.add_argument("--directory", type=Path, default=HERE, help="where job, jobset and overlays are")
    given = parser.parse_args()
    try:
        contents = written(given.directory.resolve())
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    stale = 0
    for name, text in contents.items():
        path = given.directory / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale = 1
        if given.check:
            sys.stderr.write(f"{name} is not what its parts say; run python collector/kubernetes/bases.py\n")
        else:
            path.write_text(text, encoding="utf-8")
    return stale if given.check else 0


if __name__ == "__main__":
    sys.exit(main())
