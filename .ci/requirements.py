"""What `make test` installs in addition to this package, a requirement a line: what `make lock` locks.

Extras of this package are taken apart, for a lock has hashes, and this package has none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
GROUPS = ("test", "demo", "types")


def requirements(pyproject: dict[str, Any]) -> list[str]:
    """All of the package's own, of its extras, of the groups, and what builds it."""
    project = pyproject["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    lists += [pyproject["dependency-groups"][group] for group in GROUPS]
    lists += [pyproject["build-system"]["requires"], ["editables>=0.5"]]  # which hatchling asks for with --editable
    own = re.compile(rf"{re.escape(project['name'])}\b")
    return sorted({each for one in lists for each in one if not own.match(each)})


if __name__ == "__main__":
    print("\n".join(requirements(tomllib.loads(PYPROJECT.read_text(encoding="utf-8")))))
