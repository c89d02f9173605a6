"""What an attempt ran on and with is recorded once it is known, without a secret, within a bound, whatever it is."""

from __future__ import annotations

import argparse
import json
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from recorded import Recording

import otel_goodput as goodput
from otel_goodput._journal.facts import FactSheet, flat, read_facts, safe
from otel_goodput._journal.records import NewerVersion
from otel_goodput._journal.rundir import FACTS, RunDirectory, bound
from otel_goodput._journal.sidecars import checked_json
from otel_goodput._settings import config
from otel_goodput._text.redact import HIDDEN
from otel_goodput.errors import ConfigurationError
from otel_goodput.version import __version__


def read_back(given: dict[Any, Any], tmp_path: Path) -> dict[str, Any]:
    """The hyperparameters as they are read back."""
    run = RunDirectory(tmp_path)
    run.make()
    sheet = FactSheet(config.read("job"), 2, 7)
    sheet.describe(Resource({}))
    sheet.add(given)
    sheet.keep(run)
    path = run.file("facts", 2, 0)
    assert path.stat().st_size <= FACTS == bound(path.name) and stat.S_IMODE(path.stat().st_mode) == 0o600
    return dict(read_facts(run, 2, 0).hyperparameters)


def test_a_recorder_tells_them(record: Callable[..., Recording], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/home/somebody/train.py", "--password", "hunter2"])
    monkeypatch.setenv("OTEL_GOODPUT_GRACE_PERIOD", "7")
    recording = record(
        hyperparameters={"model": {"layers": 12, "width": 768}, "lr": 3e-4, "api_key": "abcdef"},
        resource_attributes={"team": "vision", "db.password": "hunter2"},
    )
    with goodput.job():
        pass
    goodput.shutdown()
    run = RunDirectory(recording.folder)
    facts = read_facts(run, 0, 0)
    assert facts.hyperparameters == {"model.layers": 12, "model.width": 768, "lr": 3e-4, "api_key": HIDDEN}
    assert facts.program == "train.py" and facts.attempt == 0 and facts.started_at > 10**18
    assert facts.resource["team"] == "vision" and facts.resource["db.password"] == HIDDEN
    assert facts.resource["goodput.run.id"] == "run"
    assert facts.versions["otel_goodput"] == __version__ and {"python", "opentelemetry-sdk"} <= facts.versions.keys()
    assert facts.settings["OTEL_GOODPUT_GRACE_PERIOD"] == ("7", "environment")
    assert facts.settings["OTEL_GOODPUT_RUN_ID"] == ("run", "configure()")
    assert b"hunter2" not in run.file("facts", 0, 0).read_bytes()


def test_a_processor_on_the_users_own_provider_tells_them(tmp_path: Path) -> None:
    provider = TracerProvider()
    processor = goodput.GoodputSpanProcessor(job_name="job", run_id="run", directory=tmp_path)
    provider.add_span_processor(processor)
    with provider.get_tracer("mine").start_as_current_span("step", attributes={"goodput.phase": "step"}):
        pass
    provider.shutdown()
    facts = read_facts(RunDirectory(tmp_path / "run"), 0, 0)
    assert facts.resource["telemetry.sdk.name"] == "opentelemetry"
    assert facts.settings["OTEL_GOODPUT_DIR"] == (str(tmp_path), "configure()")


def test_nothing_is_imported(tmp_path: Path) -> None:
    before = set(sys.modules)
    read_back({"a": 1}, tmp_path)
    assert not {name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names


def test_the_keeper_imports_nothing() -> None:
    """Else a child that is forked meanwhile could never import it: its configure() and its end would hang."""
    script = """
import sys
from otel_goodput._settings import config
from otel_goodput._journal.facts import FactSheet, encode
import opentelemetry.sdk.trace
sys.modules["numpy"] = sys  # a library without a version: its distribution is asked
sheet = FactSheet(config.read("job"), 0, 1)
before = set(sys.modules)
encode(sheet.gathered())
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "given",
    [
        {"password": "hunter2"},
        {"db": {"PASSWORD": "hunter2"}},
        {"dbPassword": "hunter2"},
        {"api_key": "hunter2"},
        {"apiKey": "hunter2"},
        {"OPENAI-API-KEY": "hunter2"},
        {"client_secret": "hunter2"},
        {"hf_token": "hunter2"},
        {"token": "hunter2"},
        {"wandb": {"authToken": "hunter2"}},
        {"credentials": {"user": "me", "code": "hunter2"}},
        {"headers": {"x-custom": "hunter2"}},
        {"aws_secret_access_key": "hunter2"},
        {"private_key": "hunter2"},
        {"data": "https://me:hunter2@example.org/data"},
        {"data": "gs://bucket/data?token=hunter2"},
        {"data": "https://example.org/data?X-Goog-Signature=hunter2"},
        {"args": "--api-key=hunter2"},
        {"header": "Authorization: Bearer hunter2hunter2"},
        {"config": "{'password': 'hunter2', 'user': 'me'}"},
        {"config": '{"token": "hunter2"}'},
        {"list": [{"password": "hunter2"}]},
        {"list": [["a", {"secret": "hunter2"}]]},
        {"note": "ghp_hunter2hunter2hunter2hunter2"},
        {"note": "hf_hunter2hunter2hunter2"},
        {"note": "sk-proj-hunter2hunter2hunter2"},
        {"pem": "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----"},
        {"https://me:hunter2@example.org": 1},
        {"namespace": argparse.Namespace(password="hunter2")},
    ],
)
def test_no_secret(given: dict[str, Any], tmp_path: Path) -> None:
    assert "hunter2" not in json.dumps(read_back(given, tmp_path))


def test_what_is_no_secret_is_shown(tmp_path: Path) -> None:
    shown = {
        "max_tokens": 2048, "tokenizer": "bpe", "vocab.token_count": 5, "first_pass": 3, "n_heads": 8, "author": "me",
        "compass": "north", "key_dim": 64, "use_secret": False, "path": "gs://bucket/data", "none": None, "flag": True,
    }  # fmt: skip
    assert read_back(shown, tmp_path) == shown


@dataclass
class Optimizer:
    name: str
    decay: float
    api_key: str = "hunter2"


class Odd:
    def __repr__(self) -> str:
        return "Odd " + "x" * 100_000


class Raises:
    def __repr__(self) -> str:
        raise RuntimeError("not now")


def test_anything_else_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    facts = read_back(
        {
            "optimizer": Optimizer("adam", 0.1), "layers": [1, 2, 3], "blocks": [{"width": 1}, {"width": 2}], 3: 4,
            "array": np.zeros((2, 3)), "scalar": np.float32(0.5), "nan": float("nan"), "huge": 10**40, "raw": b"abc",
            "odd": Odd(), "function": test_no_secret, "bad": "a\udcff\x1b[2J", "empty": {}, "long": list(range(1000)),
        },
        tmp_path,
    )  # fmt: skip
    assert facts["optimizer.name"] == "adam" and facts["optimizer.api_key"] == HIDDEN
    assert facts["layers"] == "[1, 2, 3]" and facts["blocks.1.width"] == 2 and facts["3"] == 4
    assert facts["array"] == "ndarray float64 (2, 3)" and facts["scalar"] == 0.5 and facts["nan"] == "nan"
    assert facts["huge"] == "an integer of 133 bits" and facts["raw"] == "3 bytes"
    assert len(facts["odd"]) < 1100 and facts["odd"].endswith("(100004 characters)")
    assert facts["function"] == "test_no_secret" and facts["bad"] == "a??[2J" and facts["empty"] == "{}"
    assert facts["long"].endswith("(1000 in all)]")
    monkeypatch.setenv("OTEL_GOODPUT_STRICT", "")
    assert read_back({"fine": 1, "bad": Raises()}, tmp_path) is not None


def test_a_cycle_and_very_many_end(tmp_path: Path) -> None:
    cycle: dict[str, Any] = {"a": 1}
    cycle["self"] = cycle
    assert read_back(cycle, tmp_path)["a"] == 1
    many, left_out = flat({str(number): number for number in range(10_000)}, 2000)
    assert len(many) == 2000 and left_out == 8000
    facts = read_back({f"name {number}": "x" * 900 for number in range(1000)}, tmp_path)
    assert 10 < len(facts) < 1000 and "name 0" in facts
    assert read_facts(RunDirectory(tmp_path), 2, 0).dropped["hyperparameters"] == 1000 - len(facts)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4),
    max_leaves=20,
))  # fmt: skip
def test_whatever_is_given_can_be_written(given: Any) -> None:
    facts, _ = flat({"given": given}, 100)
    for name, value in facts.items():
        one = safe(name, value)
        assert json.loads(json.dumps({name: one}, allow_nan=False).encode("utf-8")) == {name: one}


def test_a_wrong_argument_raises() -> None:
    with pytest.raises(ConfigurationError, match="hyperparameters must be a mapping"):
        goodput.configure("job", hyperparameters=["lr"])  # type: ignore[arg-type]


def test_what_is_read_is_not_believed(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.make()
    path = run.file("facts", 0, 0)
    empty = (
        "resource",
        "versions",
        "settings",
        "hyperparameters",
        "dropped",
        "exporters",
        "scheduling",
        "compile_cache",
    )
    right = {"format": 1, "attempt": 0, "process": 0, "started_at": 1, "program": "", **{name: {} for name in empty}}
    path.write_bytes(
        checked_json({**right, "hyperparameters": {"a": None, "b": "\ud800"}, "scheduling": {"queued": 1.5}})
    )
    facts = read_facts(run, 0, 0)
    assert facts.hyperparameters == {"a": None, "b": "?"} and facts.scheduling == {"queued": 1.5}
    missing = {name: value for name, value in right.items() if name != "program"}
    wrong: list[dict[str, Any]] = [
        {}, missing, {**right, "process": 1}, {**right, "started_at": "x"}, {**right, "dropped": {"a": -1}},
        {**right, "resource": 3}, {**right, "versions": {"a": 1}}, {**right, "settings": {"a": [1, 2]}},
        {**right, "settings": {"c": "z"}}, {**right, "hyperparameters": {"a": [1]}}, {**right, "program": None},
        {**right, "scheduling": {"queued": True}}, {**right, "scheduling": {"queued": float("inf")}},
    ]  # fmt: skip
    for members in wrong:
        path.write_bytes(checked_json(members))
        with pytest.raises(ValueError, match=r"\w"):
            read_facts(run, 0, 0)
    path.write_bytes(b"[]")
    with pytest.raises(ValueError, match="no JSON object"):
        read_facts(run, 0, 0)
    path.write_bytes(checked_json({**right, "format": 2}))
    with pytest.raises(NewerVersion):
        read_facts(run, 0, 0)


def test_it_is_written_again_when_there_is_more(tmp_path: Path) -> None:
    """Not before the resource is known, or two seconds have gone by; and only if there is more."""
    run = RunDirectory(tmp_path)
    run.make()
    sheet = FactSheet(config.read("job"), 0, 1)
    known: list[bool] = []
    sheet.describe(Resource({}), lambda: bool(known))
    sheet.keep(run)
    assert not run.file("facts", 0, 0).exists()
    known.append(True)
    sheet.keep(run)
    first = run.file("facts", 0, 0).stat().st_ino
    sheet.keep(run, last=True)
    assert run.file("facts", 0, 0).stat().st_ino == first
    sheet.add({"lr": 1})
    sheet.keep(run)
    assert read_facts(run, 0, 0).hyperparameters == {"lr": 1}
    sheet.watch(lambda: {"queued": 1_500_000_000})
    sheet.keep(run)
    assert read_facts(run, 0, 0).scheduling == {"queued": 1.5}
