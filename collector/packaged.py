"""Copies what ``otel-goodput collector`` is made of into the package: ``python collector/packaged.py``.

``--check`` compares only.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = Path("otel_goodput/tools/collector/sources")
# By the folder in the package: where the files are here.
COPIED = {
    "configs": (
        "configs/local.yaml",
        "configs/gcp-sidecar.yaml",
        "configs/google-auth.yaml",
        "configs/classic-metrics.yaml",
        "configs/fleet-sidecar.yaml",
        "configs/gateway.yaml",
        "configs/move-broken-queues.sh",
        "configs/overlays/spool.yaml",
        "configs/overlays/fleet-mtls.yaml",
        "configs/overlays/fleet-token.yaml",
        "configs/overlays/gateway-mtls.yaml",
        "configs/overlays/gateway-token.yaml",
    ),
    "systemd": ("systemd/otelcol-goodput.service",),
    "kubernetes": (
        "kubernetes/base/access.yaml",
        "kubernetes/job/queue.yaml",
        "kubernetes/job/job.yaml",
        "kubernetes/jobset/jobset.yaml",
        "kubernetes/gateway/gateway.yaml",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if a file is out of date")
    parser.add_argument("--root", type=Path, default=HERE.parent, help="the tree that is copied within")
    given = parser.parse_args()
    target = given.root / TARGET
    contents = {
        target / folder / Path(name).name: (given.root / "collector" / name).read_bytes()
        for folder, names in COPIED.items()
        for name in names
    }
    stale = [path for path, content in contents.items() if not path.exists() or path.read_bytes() != content]
    left = [path for path in target.rglob("*") if path.is_file() and path not in contents]
    for path in sorted(stale + left):
        if given.check:
            sys.stderr.write(f"{path.relative_to(given.root)} is out of date; run python collector/packaged.py\n")
        elif path in contents:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents[path])
        else:
            path.unlink()
    return 1 if given.check and (stale or left) else 0


if __name__ == "__main__":
    sys.exit(main())
