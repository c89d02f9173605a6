"""Writes what ``otel-goodput collector`` is made of into the package: ``python collector/generator/packaged.py``.

Files are copied, and configurations that belong together laid over each other, one file for each choice.
``--check`` compares only.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from overlay import laid_over

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path("otel_goodput/_tools/collector/sources")
# By the folder in the package: where the files are here.
COPIED = {
    "configs": ("configs/move-broken-queues.sh",),
    "systemd": ("systemd/install.sh.in", "systemd/otelcol-goodput.service"),
    "kubernetes": (
        "kubernetes/base/access.yaml",
        "kubernetes/job/queue.yaml",
        "kubernetes/job/job.yaml",
        "kubernetes/jobset/jobset.yaml",
        "kubernetes/gateway/gateway.yaml",
    ),
}
# By place: configurations that are laid over each other.
PLACES = {
    "local": ("local.yaml",),
    "sidecar": ("gcp-sidecar.yaml", "google-auth.yaml"),
    "classic": ("gcp-sidecar.yaml", "google-auth.yaml", "classic-metrics.yaml"),
    "fleet": ("fleet-sidecar.yaml", "google-auth.yaml", "classic-metrics.yaml"),
    "gateway": ("gateway.yaml", "google-auth.yaml"),
}
TLS = ("fleet", "gateway")
SPOOL = ("sidecar", "classic", "fleet")


def configurations(folder: Path) -> dict[str, bytes]:
    """The merged configurations by name, such as ``fleet-mtls-spool.yaml``."""
    merged = {}
    for place, layers in PLACES.items():
        for tls in ("", "mtls", "token") if place in TLS else ("",):
            for spool in (False, True) if place in SPOOL else (False,):
                above = [f"overlays/{place}-{tls}.yaml"] * bool(tls) + ["overlays/spool.yaml"] * spool
                name = "-".join(filter(None, (place, tls, "spool" * spool)))
                texts = ((folder / each).read_text(encoding="utf-8") for each in (*layers, *above))
                merged[f"{name}.yaml"] = laid_over(*texts).encode()
    return merged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if a file is out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree that is copied within")
    given = parser.parse_args()
    target = given.root / TARGET
    contents = {
        target / folder / Path(name).name: (given.root / "collector" / name).read_bytes()
        for folder, names in COPIED.items()
        for name in names
    }
    merged = configurations(given.root / "collector" / "configs")
    contents |= {target / "configs" / name: content for name, content in merged.items()}
    stale = [path for path, content in contents.items() if not path.exists() or path.read_bytes() != content]
    left = [path for path in target.rglob("*") if path.is_file() and path not in contents]
    for path in sorted(stale + left):
        if given.check:
            sys.stderr.write(
                f"{path.relative_to(given.root)} is out of date; run python collector/generator/packaged.py\n"
            )
        elif path in contents:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents[path])
        else:
            path.unlink()
    return 1 if given.check and (stale or left) else 0


if __name__ == "__main__":
    sys.exit(main())
