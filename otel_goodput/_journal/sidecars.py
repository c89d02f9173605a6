"""Small JSON files beside the journal, for other processes and later starts. Their content is not trusted.

Each is a JSON object with a checksum of all its other members. The checksum does not depend on the formatting, so an
editor may reformat a file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from otel_goodput._runtime import files

IDENTITY: Final = 64 * files.KIB  # bytes; run.json
NOTES: Final = 256 * files.KIB

CHECK: Final = "checksum"
_BEYOND: Final = 2**63


def checked_json(said: dict[str, Any], indent: int | None = None) -> bytes:
    """Serialize `said` with its checksum, for :func:`read_json`."""
    return json.dumps({**said, CHECK: _check(said)}, indent=indent).encode()


def read_json(path: Path, most: int = files.SMALL) -> dict[str, Any]:
    """Read a file written with :func:`checked_json`; returns its content without the checksum.

    Raises:
        OSError: it cannot be read, or has more than `most` bytes.
        ValueError: it is no JSON object, or its checksum is wrong or missing.
    """
    try:
        found = json.loads(files.read(path, most))
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")
        if found.pop(CHECK, None) != _check(found):
            raise ValueError("its checksum is wrong")
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return found


def _check(said: dict[str, Any]) -> str:
    return f"{crc32(json.dumps(said, sort_keys=True, separators=(',', ':')).encode()):08x}"


def whole(found: Any, below: int = _BEYOND) -> int:
    """Convert to an integer from 0 up to, not including, `below`.

    Raises:
        ValueError: it is not such a number.
    """
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise ValueError(f"a {type(found).__name__} is not a number")
    if not 0 <= found < below:  # also False for NaN; compares huge integers without converting them to float
        raise ValueError("a number is out of range")
    return int(found)
