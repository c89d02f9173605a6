"""A real Jaeger, which keeps what it gets by OTLP in memory, and what its API answers."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from exporters.google.jobs import inherited
from ports import kept_address
from programs import located
from waits import until

PATIENCE_S = 30.0


def program() -> str:
    """Jaeger next to this interpreter or on the path; the test is skipped where there is none."""
    executable = located("jaeger")
    if executable is None:
        pytest.skip("jaeger is not here; Go's module github.com/jaegertracing/jaeger has it, as cmd/jaeger")
    return executable


class Jaeger:
    """Listens for OTLP over gRPC at :attr:`grpc` (host:port); a context manager."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.grpc, self._http = kept_address(), kept_address()
        self._log, self._config = directory / "jaeger.log", directory / "jaeger.json"
        self._config.write_text(json.dumps(self._configuration()))  # JSON is YAML too
        self._process: subprocess.Popen[bytes] | None = None

    def _configuration(self) -> dict[str, Any]:
        store = {"traces": "memory"}
        return {
            "extensions": {
                "jaeger_storage": {"backends": {"memory": {"memory": {"max_traces": 1000}}}},
                "jaeger_query": {
                    "storage": store,
                    "http": {"endpoint": self._http},
                    "grpc": {"endpoint": kept_address()},
                },
            },
            "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": self.grpc}}}},
            "exporters": {"jaeger_storage_exporter": {"trace_storage": store["traces"]}},
            "service": {
                "extensions": ["jaeger_storage", "jaeger_query"],
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}},
            },
        }

    def __enter__(self) -> Jaeger:
        command = [program(), f"--config={self._config}"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=inherited(), start_new_session=True)
        until(self._ready, PATIENCE_S, lambda: self._log.read_text()[-3000:])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def get(self, path: str, **parameters: str) -> Any:
        """The data that its API gives."""
        url = f"http://{self._http}/api/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return json.load(answer)["data"]

    def _ready(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log.read_text()[-3000:]
        try:
            self.get("services")
        except (OSError, urllib.error.URLError):
            return False
        return True
