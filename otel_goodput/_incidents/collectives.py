"""What else there may be about collectives that hang: PyTorch's flight recorder, and the status that NCCL's RAS gives.

A process only says where both are; ``otel-goodput stacks`` looks there, and the leader asks RAS about an incident.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from otel_goodput._runtime import files
from otel_goodput._text.redact import shown

RECORDER: Final = "flight_recorder"  # path of the dump, or several, separated as in PATH: which it is is not known
RAS: Final = "ras"  # HOST:PORT
# By the order in which PyTorch reads them; the file is named by one of them and the rank.
_VARIABLES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_OLD: Final = "/tmp/nccl_trace_rank_"  # its default, until 2.8
_NEW: Final = "torch/comm_lib_trace_rank_"  # since, in the user's folder of caches
_RAS: Final = "localhost:28028"
_MAPS: Final = Path("/proc/self/maps")
_MOST: Final = 16 * files.MIB


RAS_S: Final = 3.0  # for NCCL to gather what all ranks say
LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_LINE: Final = 4096
_STATUS: Final = 64 * files.KIB
_WRONG: Final = re.compile(r"\b(?:MISSING|MISMATCH|INCOMPLETE|DEAD|ABORTED|missing|not respond\w*|behind)\b")
WRONG: Final = 3  # lines of the status that are evidence


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


def ras_port(about: Mapping[str, str]) -> int | None:
    """Return the port of NCCL's RAS that a process tells of, if it is on its own machine."""
    host, _, port = about.get(RAS, "").rpartition(":")
    return int(port) if host in LOOPBACK and port.isdecimal() else None


def wrong_in(status: str) -> list[str]:
    """Return what the status of RAS says is wrong, as sentences of evidence."""
    lines = (" ".join(line.split()) for line in status.splitlines() if _WRONG.search(line))
    return [f"NCCL: {line}" for line in dict.fromkeys(lines)][:WRONG]


def ras_status(port: int, seconds: float) -> str | None:
    """Ask the process of NCCL on this machine that listens on `port`; None if none answers as NCCL does.

    It has so many seconds to gather what all ranks say, and as many again to say it.
    """
    until = time.monotonic() + 2 * seconds
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), seconds) as connection:

            def receive() -> bytes:
                connection.settimeout(max(1e-3, until - time.monotonic()))
                return connection.recv(_LINE)

            connection.sendall(b"CLIENT PROTOCOL 2\n")
            while b"\n" not in answer and len(answer) < _LINE and (some := receive()):
                answer += some
            greeting, _, answer = answer.partition(b"\n")
            if not greeting.startswith(b"SERVER PROTOCOL "):
                return None
            connection.sendall(b"TIMEOUT %d\nSTATUS\n" % max(1, round(seconds)))
            with suppress(TimeoutError):
                while time.monotonic() < until and len(answer) < _STATUS and (some := receive()):
                    answer += some
    except (OSError, OverflowError):
        return None
    return "\n".join(map(shown, answer.decode("utf-8", "replace").removeprefix("OK\n").splitlines())) or None
