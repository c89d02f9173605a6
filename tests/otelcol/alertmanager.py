"""A real Alertmanager with the configuration that is shipped, whose receivers are on loopback."""

from __future__ import annotations

import json
import socketserver
import subprocess
import threading
import urllib.request
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from types import TracebackType

import pytest
import yaml
from ports import kept_address
from programs import located
from waits import until

from .collector import COLLECTOR

CONFIG = COLLECTOR / "alerts" / "alertmanager.yaml"
PATIENCE_S = 30.0


def program() -> str:
    """Alertmanager next to this interpreter or on the path; the test is skipped where there is none."""
    executable = located("alertmanager")
    if executable is None:
        pytest.skip("alertmanager is not here; go install github.com/prometheus/alertmanager/cmd/alertmanager@v0.28.1")
    return executable


class Mailbox:
    """A mail server that keeps what it is given; a context manager."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="mailbox")

    def __enter__(self) -> Mailbox:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[socketserver.BaseRequestHandler]:
        messages = self.messages

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(b"220 here\r\n")
                while line := self.rfile.readline():
                    command = line.strip().upper()
                    if command == b"DATA":
                        self.wfile.write(b"354 go on\r\n")
                        lines = []
                        while (text := self.rfile.readline().rstrip(b"\r\n")) != b".":
                            lines.append(text)
                        messages.append(message_from_bytes(b"\r\n".join(lines)))
                    self.wfile.write(b"221 bye\r\n" if command == b"QUIT" else b"250 ok\r\n")
                    if command == b"QUIT":
                        return

        return Handler


class Alertmanager:
    """Alertmanager at `address`, a context manager. All four receivers get everything, at `receiver` and `mail`."""

    def __init__(self, directory: Path, receiver: str, mail: str) -> None:
        directory.mkdir(parents=True)
        self.address = kept_address()
        self._log = directory / "alertmanager.log"
        config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
        config["route"] |= {"group_wait": "1s", "group_interval": "1s"}
        everything = config["route"]["routes"][-1]
        config["route"]["routes"] += [everything | {"receiver": name} for name in ("mail", "webhook")]
        for route in config["route"]["routes"]:
            route["continue"] = True
        slack, pagerduty, email, webhook = config["receivers"]
        del slack["slack_configs"][0]["api_url_file"], pagerduty["pagerduty_configs"][0]["routing_key_file"]
        slack["slack_configs"][0]["api_url"] = f"{receiver}/slack"
        pagerduty["pagerduty_configs"][0] |= {"routing_key": "key", "url": f"{receiver}/pagerduty"}
        del email["email_configs"][0]["auth_username"], email["email_configs"][0]["auth_password_file"]
        email["email_configs"][0] |= {"smarthost": mail, "require_tls": False}
        webhook["webhook_configs"][0]["url"] = f"{receiver}/webhook"
        path = directory / "alertmanager.yml"
        path.write_text(json.dumps(config))  # JSON is YAML too
        self._command = [
            program(),
            f"--config.file={path}",
            f"--storage.path={directory / 'data'}",
            f"--web.listen-address={self.address}",
            "--cluster.listen-address=",
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Alertmanager:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        until(self._ready, PATIENCE_S, lambda: self._log.read_text()[-4000:], pause=0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def log(self) -> str:
        return self._log.read_text()

    def _ready(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self.log()
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
