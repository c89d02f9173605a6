"""Starts jobs, kills them, and asks for the account of what they left."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import warm
from waits import PATIENCE_S

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun

from .witness import NS, Account, Life, possible_accounts, read_diary, total_ns

JOB = Path(__file__).with_name("job.py")
# Google's libraries announce for which versions of Python there will be no more of them.
STRICT = ("-W", "error", "-W", "ignore::FutureWarning")


@dataclass
class Process:
    """A job under way."""

    popen: warm.Process
    notices: int  # descriptor from which its notices are read
    diary: Path
    errors: Path

    def wait_for(self, word: str) -> None:
        """Wait until it has written `word` (c: configured, j: job, s: shutdown, a: about to configure)."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            readable, _, _ = select.select([self.notices], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"the job never told {word!r}: {self.errors.read_text()}"
            received = os.read(self.notices, 1).decode()
            assert received, f"the job ended before it told {word!r}: {self.errors.read_text()}"
            if received == word:
                return

    def end(self) -> int:
        """Its exit status, once it has ended."""
        status = self.popen.wait(PATIENCE_S)
        os.close(self.notices)
        return status


@dataclass
class Run:
    """A run over its lives, in a directory of its own."""

    base: Path
    run_id: str = "run"
    lives: list[Life] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return self.base / "runs"

    @property
    def folder(self) -> Path:
        return self.directory / self.run_id

    def start(self, **options: Any) -> Process:
        """Begin another life."""
        number = len(self.lives)
        diary = self.base / f"diary-{number}"
        errors = self.base / f"stderr-{number}"
        notices, notify = os.pipe()
        whole = {
            "directory": str(self.directory),
            "run_id": self.run_id,
            "diary": str(diary),
            "checkpoint": str(self.base / "checkpoint"),
            "notify": notify,
            **options,
        }
        environment = {**os.environ, **self.environment}
        try:
            with errors.open("wb") as stream:
                popen = warm.Process(
                    [sys.executable, *STRICT, "-m", "crash.job", json.dumps(whole)],
                    env={**environment, "PYTHONPATH": f"{JOB.parents[1]}{os.pathsep}{environment['PYTHONPATH']}"},
                    pass_fds=[notify],
                    stdout=stream,
                    stderr=stream,
                    stdin=subprocess.DEVNULL,
                    extras="gcp" in options.get("exporters", ""),
                )
        finally:
            os.close(notify)
        return Process(popen, notices, diary, errors)

    def kill(self, process: Process, with_signal: int = signal.SIGKILL) -> None:
        """Kill this life and note it down."""
        process.popen.send_signal(with_signal)
        status = process.end()
        assert status == -with_signal, f"it ended by itself ({status}): {process.errors.read_text()}"
        self.mark_dead(process, dead=time.time_ns())

    def mark_dead(self, process: Process, dead: int | None, ending: str = "crash") -> None:
        self.lives.append(read_diary(process.diary, dead))
        self.lives[-1].ending = ending

    def live_and_die(self, delay: float, **options: Any) -> None:
        """A life that is killed `delay` seconds after its job began."""
        process = self.start(**options)
        process.wait_for("j")
        time.sleep(delay)
        self.kill(process)

    def live(self, status: int = 0, **options: Any) -> Process:
        """A life that ends its job by itself, well where the exit `status` is 0."""
        process = self.start(**options)
        status_seen = process.end()
        assert status_seen == status, f"it ended with {status_seen}: {process.errors.read_text()}"
        self.mark_dead(process, dead=None, ending="crash" if status else "restart")
        return process

    # --- what is left of it -------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        return RecordedRun(RunDirectory(self.folder)).report().to_json()

    def command(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`otel-goodput` with these arguments."""
        return warm.run(
            [sys.executable, *STRICT, "-m", "otel_goodput", *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=check,
            timeout=PATIENCE_S,
        )

    def report_of_command(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.command("report", str(self.directory), "--json").stdout)
        return answer

    def check(self, report: dict[str, Any]) -> Account:
        """The report says what the diaries say; returns the account that it agrees with."""
        assert total_ns(report) == round(report["elapsed_s"] * NS), "the categories sum to the elapsed time, exactly"
        tried = [(list(account.differences(report)), account) for account in possible_accounts(self.lives)]
        differences, account = min(tried, key=lambda one: len(one[0]))
        assert not differences, f"{self.base}: " + "; ".join(differences)
        return account


def delays(seed: int, count: int, least: float = 0.05, most: float = 0.6) -> list[float]:
    """Random moments, s."""
    source = random.Random(seed)
    return [source.uniform(least, most) for _ in range(count)]
