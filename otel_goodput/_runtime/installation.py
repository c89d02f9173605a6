"""How this package was installed, and so which command adds an extra to it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from otel_goodput._text.redact import without_credentials

if TYPE_CHECKING:
    from importlib.metadata import Distribution

NAME: Final = "otel-goodput"


def install_command(*extras: str, options: str = "") -> str:
    """Return the command that installs the packages of `extras`, for the way in which this package was installed.

    It names the clone or the wheel that this package was installed from, as long as that is there. It names PyPI's
    project only where the package came from a package index. `options` are pip's. Never raises.
    """
    listed = f"[{','.join(extras)}]"
    try:
        what = _requirement(listed, extras)
    except Exception:  # damaged metadata must not hide the message that this is a part of
        what = [NAME + listed]
    # Quote what a shell could misread; extras are quoted as every manual shows them.
    quoted = (word if word == "-e" else shlex.quote(word) for word in what)
    return " ".join(["pip install", *([options] if options else []), *quoted])


def _requirement(listed: str, extras: tuple[str, ...]) -> list[str]:
    from importlib import metadata  # imported late: it would double what every import of this package brings

    try:
        installed = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:  # the clone is on sys.path
        clone = Path(__file__).resolve().parents[2]
        return ["-e", f"{clone}{listed}"] if (clone / "pyproject.toml").exists() else [NAME + listed]
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    if not origin:
        return [NAME + listed]
    url = str(origin["url"])
    if not url.startswith("file:"):
        shown, vcs = without_credentials(url), origin.get("vcs_info")  # of a repository, with the commit
        return [f"{NAME}{listed} @ {vcs['vcs']}+{shown}@{vcs['commit_id']}" if vcs else f"{NAME}{listed} @ {shown}"]
    path = Path(unquote(urlsplit(url).path))
    if not path.exists():  # a wheel that was removed once it was installed
        return _packages(installed, extras) or [NAME + listed]
    return [*(["-e"] if origin.get("dir_info", {}).get("editable") else []), f"{path}{listed}"]


def _packages(installed: Distribution, extras: tuple[str, ...]) -> list[str]:
    """Return the requirements that belong to `extras` alone."""
    marked = (each.partition(";") for each in installed.requires or ())
    return [
        requirement.strip()
        for requirement, _, marker in marked
        if any(marker.replace('"', "'").strip() == f"extra == '{extra}'" for extra in extras)
    ]
