"""Programs of others that tests run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def located(name: str) -> str | None:
    """Return where a program is: next to this interpreter, where `make` puts it, or on the path; None: nowhere."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
