"""Starting training jobs in processes of their own, and hearing what becomes of them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import warm
from waits import PATIENCE_S, Lines

from .training import Account

TESTS = Path(__file__).parents[2]
# What gRPC's core writes to stderr past all of Python's logging.
GRPC = re.compile(r"[IWE]\d{4} [\d:.]+ +\d+ \w+\.cc:\d+\]|=== Source Location Trace|src/core/")


@dataclass
class End:
    """How a job ended: exit status, what is on stderr, its own account.

    From the end of its training on it took the recorder `stopping` seconds to stop, and the process `seconds` to end.
    """

    status: int
    stopping: float
    seconds: float
    errors: str
    account: Account

    @property
    def warnings(self) -> list[str]:
        """The lines on stderr, without those of gRPC's core."""
        return [line for line in self.errors.splitlines() if line and not GRPC.match(line)]


def inherited() -> dict[str, str]:
    """Our environment without proxies: what is tested is on this machine."""
    return {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}


class Job:
    """``exporters.google.training`` in a directory, with options for it; a context manager that leaves nobody behind.

    `environ` are further variables; what is None there is unset.
    """

    def __init__(self, directory: Path, environ: Mapping[str, str | None] | None = None, **options: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._stderr = directory / f"stderr-{len(list(directory.glob('stderr-*')))}"
        variables = {**inherited(), "OTEL_GOODPUT_DIR": str(directory / "runs"), **(environ or {})}
        variables["PYTHONPATH"] = f"{TESTS}{os.pathsep}{os.environ['PYTHONPATH']}"
        with self._stderr.open("wb") as errors:
            self._process = warm.Process(
                # Google's libraries announce for which versions of Python there will be no more of them.
                [sys.executable, "-W", "ignore::FutureWarning", "-m", "exporters.google.training", json.dumps(options)],
                env={name: value for name, value in variables.items() if value is not None},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                extras="GRPC_ENABLE_FORK_SUPPORT" not in (environ or {}),  # gRPC reads it when it is imported
            )
        assert self._process.stdout is not None
        self._lines = Lines(self._process.stdout.fileno(), lambda: self.errors)
        self._trained = 0.0  # when its training was over

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its children, too
        self._process.communicate()

    @property
    def errors(self) -> str:
        """What is on stderr so far."""
        return self._stderr.read_text()

    def wait_for(self, word: str) -> Any:
        """Wait for this line; returns what came with it. Other lines are passed over."""

        def is_answer(line: str) -> bool:
            kind = json.loads(line)[0]
            if kind == "trained":
                self._trained = time.monotonic()
            return bool(kind == word)

        return json.loads(self._lines.until(is_answer, word))[1]

    def go_on(self) -> None:
        """After a pause."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def die(self) -> int:
        """Its exit status, where it is not to end well."""
        return self._process.wait(PATIENCE_S)

    def end(self) -> End:
        """Until it has ended by itself."""
        account = self.wait_for("over")
        stopping = time.monotonic() - self._trained
        status = self._process.wait(PATIENCE_S)
        return End(status, stopping, time.monotonic() - self._trained, self.errors, account)
