"""What else there may be about collectives that hang: PyTorch's flight recorder, and the status that NCCL's RAS gives.

A process only says where both are; ``otel-goodput stacks`` looks there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from otel_goodput._runtime import files

RECORDER: Final = "flight_recorder"  # path of the dump, or several, separated as in PATH: which it is is not known
RAS: Final = "ras"  # HOST:PORT
# By the order in which PyTorch reads them; the file is named by one of them and the rank.
_VARIABLES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_OLD: Final = "/tmp/nccl_trace_rank_"  # its default, until 2.8
_NEW: Final = "torch/comm_lib_trace_rank_"  # since, in the user's folder of caches
_RAS: Final = "localhost:28028"
_MAPS: Final = Path("/proc/self/maps")
_MOST: Final = 16 * files.MIB


def about(process: int) -> dict[str, str]:
    """Return where to look, for this process. Reads what memory is mapped: not for every tick."""
    there: dict[str, str] = {}
    rank = _rank(process)
    if rank is not None:
        there[RECORDER] = os.pathsep.join(f"{prefix}{rank}" for prefix in _prefixes(os.environ))
    if os.environ.get("NCCL_RAS_ENABLE", "1") != "0" and _has_nccl():
        there[RAS] = os.environ.get("NCCL_RAS_ADDR") or _RAS
    return there


def _prefixes(environ: Mapping[str, str]) -> list[str]:
    if given := next(filter(None, map(environ.get, _VARIABLES)), None):
        return [given]
    return [f"{environ.get('XDG_CACHE_HOME') or Path('~/.cache').expanduser()}/{_NEW}", _OLD]


def _rank(process: int) -> int | None:
    """Return the rank by PyTorch; None if its distributed part is not in use."""
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_initialized():
            return None
        return int(distributed.get_rank())
    except Exception:  # it is being imported, or has changed
        return process


def _has_nccl() -> bool:
    try:
        return b"libnccl" in files.read_named(_MAPS, _MOST)
    except OSError:
        return False
