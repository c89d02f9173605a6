"""Real processes that take signals: a program of a few lines, what it says, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from waits import PATIENCE_S, Lines

# What every program begins with. `say` is a write(2): nothing is left in a buffer when the process dies.
PRELUDE = """
import atexit, ctypes, faulthandler, os, signal, sys, threading, time
from otel_goodput._disruption import signals as actions
from otel_goodput._disruption.notices import Notices
from otel_goodput._disruption.signals import Signals

libc = ctypes.CDLL(None)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("the awaited never came")
        time.sleep(0.005)

def rest():
    # A signal that comes right before one long sleep would not end it.
    for _ in range(1200):
        time.sleep(0.05)

def native(signum, function):
    # A handler set by native code, of which Python learns nothing.
    wanted = actions._Sigaction(handler=ctypes.cast(function, ctypes.c_void_p).value)
    libc.sigaction(signum, ctypes.byref(wanted), None)

def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True

def take(flush=lambda seconds: say("flushed"), grace=10.0, finish=None):
    notices = Notices(
        lambda reason, moment, about: say("told", reason, about["goodput.notice.source"]), flush, grace_s=grace
    )
    signals = Signals(notices, time.time_ns, grace_s=grace, finish=finish)
    assert signals.install()
    return notices, signals
"""


@dataclass
class Ended:
    """How a program ended: status as ``Popen.returncode`` has it, its lines on stdout, and its stderr."""

    status: int
    lines: list[str]
    errors: str


class Program:
    """A program under way."""

    def __init__(self, body: str, *, strict: bool = True, shell: str = "") -> None:
        command = [sys.executable, *(["-W", "error"] if strict else []), "-c", PRELUDE + body]
        if shell:
            command = ["/bin/sh", "-c", shell + '; exec "$@"', "sh", *command]
        environment = {name: value for name, value in os.environ.items() if name != "OTEL_GOODPUT_STRICT"}
        self.popen = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.lines: list[str] = []
        self._errors: list[str] = []
        assert self.popen.stdout is not None
        self._lines = Lines(self.popen.stdout.fileno(), lambda: self.lines)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.popen.stderr is not None
        self._errors.append(self.popen.stderr.read())

    def wait_for(self, word: str) -> None:
        """Wait until it has printed a line that begins with `word`."""

        def hear(line: str) -> bool:
            self.lines.append(line)
            return line.startswith(word)

        self._lines.until(hear, word)

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def end(self) -> Ended:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while (line := self._lines.next(deadline)) is not None:
                self.lines.append(line)
            self.popen.wait(PATIENCE_S)
        finally:
            self.popen.kill()
            with self.popen:
                self._listener.join(PATIENCE_S)
        return Ended(self.popen.returncode, self.lines, "".join(self._errors))


def signalled(body: str, number: signal.Signals = signal.SIGTERM, *, strict: bool = True, shell: str = "") -> Ended:
    """Start a program, send it a signal once it says ``ready``, and wait for its end."""
    program = Program(body, strict=strict, shell=shell)
    program.wait_for("ready")
    program.send(number)
    return program.end()
