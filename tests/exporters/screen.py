"""A terminal's screen, as far as progress lines use it, and a program that runs on a real one."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n\b])|([^\x1b\r\n\b]+)")


class Screen:
    """What stands on it, those lines included that have left it at the top."""

    def __init__(self) -> None:
        self.rows = [""]
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        at = 0
        for token in _TOKEN.finditer(text):
            assert token.start() == at, f"not understood: {text[at : token.start()]!r}"
            at = token.end()
            parameter, letter, control, plain = token.groups()
            if plain:
                line = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = line[: self.column] + plain + line[self.column + len(plain) :]
                self.column += len(plain)
            elif control == "\n":
                self.row += 1
                if self.row == len(self.rows):
                    self.rows.append("")
            elif control:
                self.column = 0 if control == "\r" else max(0, self.column - 1)
            elif letter == "A":
                self.row = max(0, self.row - int(parameter or 1))
            elif letter == "K":
                self.rows[self.row] = "" if parameter == "2" else self.rows[self.row][: self.column]
            else:
                assert letter in "mhl", f"not understood: {token.group()!r}"
        assert at == len(text)

    @property
    def lines(self) -> list[str]:
        return [row.rstrip() for row in self.rows if row.strip()]


def on_a_terminal(
    code: str, *arguments: str, interactive: bool = False, answer: Callable[[str], str] = lambda _: ""
) -> tuple[Screen, int]:
    """Run a program with all its standard streams on a terminal of 200 columns; its screen, and its exit status.

    `answer` gets all that was written so far and returns what is typed then.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    command: Sequence[str] = [sys.executable, "-W", "error", *(["-i"] if interactive else []), "-c", code, *arguments]
    out = ("OTEL_", "PYTHONUNBUFFERED")  # unbuffered, even the parts of one print are written apart
    variables = {name: value for name, value in os.environ.items() if not name.startswith(out)}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs,
        env={**variables, "PYTHONPATH": paths, "TERM": "xterm", "PYTHON_BASIC_REPL": "1"}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    written = b""
    try:
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the last of them has closed it
                break
            if not data:
                break
            written += data
            if typed := answer(written.decode(errors="replace")):
                os.write(ours, typed.encode())
        status = process.wait(60)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    screen = Screen()
    screen.feed(written.decode())
    return screen, status
