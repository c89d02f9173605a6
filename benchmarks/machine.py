"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

PACKAGES = ("opentelemetry-api", "opentelemetry-sdk", "jax", "ml-goodput-measurement", "pyperf")


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The CPU's name as the system has it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def load() -> float:
    """Processes that wanted to run in the last minute; beyond the cores, they disturb the figures."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def describe() -> list[tuple[str, str]]:
    """Pairs of what and its value."""
    return [
        ("date", datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")),
        ("CPU", f"{processor()}, {os.cpu_count()} cores, load {load():.1f} at the start"),
        ("system", f"{platform.system()} {platform.release()}"),
        ("Python", f"{platform.python_implementation()} {platform.python_version()}"),
        *((package, version(package) or "not installed") for package in PACKAGES),
    ]
