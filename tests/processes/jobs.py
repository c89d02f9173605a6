"""Starting and ending the processes of a distributed job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import warm
from ports import reserved_port
from waits import Lines

TESTS = Path(__file__).parent.parent


class Job:
    """The processes of one attempt, each of them `module` with its index, their count, a port, and `arguments`."""

    def __init__(self, module: str, directory: Path, count: int, *arguments: object, jax: bool = False) -> None:
        self.directory = directory
        self._held = ExitStack()  # the port is the leader's, who comes to it seconds later
        port = self._held.enter_context(reserved_port())
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
        self.processes = []
        for index in range(count):
            words = map(str, (index, count, port, directory, *arguments))
            with (directory / f"err-{index}").open("ab") as errors:
                self.processes.append(
                    warm.Process(
                        [sys.executable, "-m", module, *words],
                        env=environment,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        text=True,
                        jax=jax,
                    )
                )

    def end(self, timeout: float = 120) -> Any:
        """What the leader printed last, when all have ended well."""
        try:
            outputs = [process.communicate(timeout=timeout)[0] for process in self.processes]
            assert [process.returncode for process in self.processes] == [0] * len(outputs), self.errors()
        finally:
            self.stop()
        return json.loads(outputs[0].splitlines()[-1])  # Gloo talks there too

    def errors(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.directory.glob("err-*")))

    def wait_for_line(self, index: int, line: str) -> None:
        """Wait until the process has printed `line`; it must not have ended before."""
        stream = self.processes[index].stdout
        assert stream is not None
        Lines(stream.fileno(), self.errors).until(line.__eq__, line)

    def kill(self, index: int) -> None:
        """SIGKILL one process; the platform then ends the others."""
        self.processes[index].send_signal(signal.SIGKILL)
        self.processes[index].wait(30)
        time.sleep(0.05)
        self.stop()

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(30)
            if process.stdout is not None:
                process.stdout.close()
        self._held.close()
