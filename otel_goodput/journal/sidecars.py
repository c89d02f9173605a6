"""Small JSON files beside the journal: what processes tell each other and a later start, read with suspicion.

They are objects with a checksum of all their other members; those of older versions have none. It does not mind how the
JSON is set, so that a person may look at a file with an editor.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from otel_goodput import files

IDENTITY: Final = 64 * files.KIB  # of run.json
NOTES: Final = 256 * files.KIB

CHECK: Final = "check"
_BEYOND: Final = 2**63


def checked_json(said: dict[str, Any], indent: int | None = None) -> bytes:
    """What to write so that :func:`read_json` gives it back."""
    return json.dumps({**said, CHECK: _check(said)}, indent=indent).encode()


def read_json(path: Path, most: int = files.SMALL) -> Any:
    """What a file of ours says, without its checksum.

    Raises:
        OSError: it cannot be read, or holds more than `most` bytes.
        ValueError: it is no JSON, or not what was written.
    """
    try:
        found = json.loads(files.read(path, most))
        if isinstance(found, dict) and CHECK in found and found.pop(CHECK) != _check(found):
            raise ValueError("its checksum is wrong")
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return found


def _check(said: dict[str, Any]) -> str:
    return f"{crc32(json.dumps(said, sort_keys=True, separators=(',', ':')).encode()):08x}"


def whole(found: Any, below: int = _BEYOND) -> int:
    """A whole number from 0 on, less than `below`.

    Raises:
        ValueError: it is none.
    """
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise ValueError(f"a {type(found).__name__} is no number")
    if not 0 <= found < below:  # nor what is not a number; and one of a thousand digits is not made a float
        raise ValueError("a number is out of range")
    return int(found)
