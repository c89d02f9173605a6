"""Secrets of a job do not leave it: not in its files, spans and log, and not in what the command makes of them."""

from __future__ import annotations

import base64
import gzip
import json
import re
import sys
from pathlib import Path

import pytest
import warm

from .commands import goodput

HF = "hf" + "_" + "abcdefghijklmnopqrstuvwxyzABCDEF"
GITHUB = "ghp" + "_" + "abcdefghijklmnopqrstuvwxyz0123456789"
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
WANDB = "0123456789abcdef0123456789abcdef01234567"  # a secret only because the environment says so
COMMIT = "c0ffee254729296a45a3885639ac7e10f6d54979"
SECRETS = (HF, GITHUB, AWS, WANDB, "S3CRET")
JOB = f"""
import sys
import otel_goodput as goodput
from opentelemetry import trace
recorder = goodput.configure(
    "job", run_id="r", directory=sys.argv[1], exporters="file", integrations="none", step_sampling=1,
    hyperparameters={{
        "note": "{HF}", "minio": {{"access_key": "S3CRET", "secret_key": "S3CRET"}}, "commit": "{COMMIT}",
        "cmd": "train.py --password S3CRET-in-cmd", "argv": ["train.py", "--api-key", "S3CRET-in-argv"],
    }},
)
with goodput.job():
    with goodput.step(0) as span:
        span.set_attribute("request", "token {GITHUB}")
        span.set_attribute("secret_key", "S3CRET")
        span.set_attribute("argv", ["train.py", "--hf-token", "S3CRET-in-argv"])
        span.set_attribute("commit", "{COMMIT}")
        span.add_event("asked", {{"headers": "S3CRET", "key": "{WANDB}"}})
        with goodput.part("part {HF}"):
            pass
    for name in ("download {GITHUB}", "upload --token S3CRET"):
        try:
            with goodput.custom(name):
                raise RuntimeError("401 for {HF}, {AWS}, {WANDB} at {COMMIT}")
        except RuntimeError:
            pass
    with goodput.custom("download {GITHUB}"):
        pass
    with recorder.tracer_provider.get_tracer("of the user").start_as_current_span("theirs") as theirs:
        theirs.set_attribute("token", "S3CRET-of-their-own")
recorder.shutdown()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the job's runs, and what it wrote to stderr; a second attempt goes on with the same names."""
    folder, errors = tmp_path_factory.mktemp("runs"), ""
    for _ in range(2):
        done = warm.run(
            [sys.executable, "-c", JOB, str(folder)], capture_output=True, text=True, timeout=120,
            env={"WANDB_API_KEY": WANDB, "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        errors += done.stderr
    return folder, errors


def free_of_secrets(text: str) -> str:
    # What spans of others say is theirs.
    left = text.replace("S3CRET-of-their-own", "")
    for one in SECRETS:
        at = left.find(one)
        assert at < 0, left[max(0, at - 100) : at + 100]
    return text


def test_in_its_files(run: tuple[Path, str]) -> None:
    folder, errors = run
    free_of_secrets(errors)
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert len(written) > 5
    for path in written:
        free_of_secrets(path.read_bytes().decode("latin-1"))


def test_in_its_spans(run: tuple[Path, str]) -> None:
    text = "".join(path.read_text() for path in sorted(run[0].rglob("traces-*.jsonl")))
    assert "401 for (hidden), (hidden), (hidden) at " + COMMIT in text
    spans = [
        span
        for line in text.splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    names = {span["name"] for span in spans}
    assert {"theirs", "download (hidden)", "upload --token (hidden)", "part (hidden)"} <= names
    (theirs, *_) = [span for span in spans if span["name"] == "theirs"]
    assert "S3CRET-of-their-own" in json.dumps(theirs), "what others' telemetry sends is not changed"


@pytest.mark.parametrize("command", ["report", "runs", "report --json", "export", "html"])
def test_in_what_the_command_makes_of_it(command: str, run: tuple[Path, str], tmp_path: Path) -> None:
    folder = str(run[0])
    match command:
        case "html":
            done = goodput("report", folder, "--html", str(tmp_path / "page.html"))
            page = (tmp_path / "page.html").read_text()
            packed = re.search(r'id="document">([^<]+)<', page)
            assert packed is not None
            text = page + gzip.decompress(base64.b64decode(packed[1])).decode("latin-1")
            assert COMMIT in text and "(hidden)" in text
        case "export":
            done = goodput("export", folder, "--perfetto", str(tmp_path / "trace.gz"))
            text = gzip.decompress((tmp_path / "trace.gz").read_bytes()).decode("latin-1")
        case _:
            name, *more = command.split()
            done = goodput(name, folder, *more)
            text = done.stdout
    assert done.returncode == 0, done.stderr
    free_of_secrets(text + done.stderr)
    if command == "report --json":
        assert "download (hidden)" in json.loads(text)["seconds"]["custom"], "one name in both attempts"
