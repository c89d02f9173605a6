"""The programs of docs/recipes.md and docs/pytorch.md that are whole files: each is run as it is printed there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 300
_NAMED = re.compile(r"^```python\n(# (\w+\.py)\n.*?)^```$", re.DOTALL | re.MULTILINE)
_IMPORTED = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)

PAGES = ("docs/recipes.md", "docs/pytorch.md")
# Names of files, by page.
ON: dict[str, list[str]] = {
    page: [name for _, name in _NAMED.findall((ROOT / page).read_text(encoding="utf-8"))] for page in PAGES
}
# By the name of its file.
RECIPES: dict[str, str] = {
    name: text for page in PAGES for text, name in _NAMED.findall((ROOT / page).read_text(encoding="utf-8"))
}


def lacking(text: str) -> list[str]:
    """Packages that a program imports and that are not here."""
    return [name for name in dict.fromkeys(_IMPORTED.findall(text)) if importlib.util.find_spec(name) is None]


def perform(name: str, folder: Path, start: Callable[..., Any] = subprocess.run) -> str:
    """Run a recipe in `folder`, by `start`, which is called as subprocess.run is. Gives what it printed.

    Raises:
        RuntimeError: it failed, it printed no report, or it left more than the one run that it is.
    """
    (folder / name).write_text(RECIPES[name], encoding="utf-8")
    environ = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [environ.get("PYTHONPATH")])])
    done = start(
        [sys.executable, name], cwd=folder, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    runs = sorted(path.parent.name for path in folder.glob("**/goodput/*/run.json"))
    if done.returncode or not re.search(r"^Goodput of .* ended$", done.stdout, re.MULTILINE) or len(runs) != 1:
        raise RuntimeError(f"{name}: status {done.returncode}, runs {runs}\n{done.stdout}{done.stderr}")
    return done.stdout
