"""``otel-goodput env``: every variable, the value in force, where it came from; secrets never."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import otel_goodput
from otel_goodput._settings.envvars import STANDARD
from otel_goodput._settings.options import ENVVARS, OF_VARIABLE
from otel_goodput._text.redact import redact, secrets

from .commands import goodput, succeeded


def rows(**variables: str) -> dict[str, dict[str, Any]]:
    answer = json.loads(succeeded(goodput("env", "--json", **variables)))
    return {row["name"]: row for row in answer["variables"]}


def test_every_variable_with_its_default() -> None:
    listed = rows()
    assert list(listed) == [variable.name for variable in (*ENVVARS, *STANDARD)]
    for variable in (*ENVVARS, *STANDARD):
        row = listed[variable.name]
        assert (row["type"], row["default"], row["brief"]) == (variable.type, variable.default, variable.brief)
        assert (row["source"], row["ignored"]) == ("default", None)
        assert row["value"] == ("goodput" if variable.name == "OTEL_GOODPUT_DIR" else variable.default)


def test_text_for_people() -> None:
    text = succeeded(goodput("env", OTEL_GOODPUT_STEP_SAMPLING="7", OTEL_GOODPUT_WINDOWS="never"))
    assert "OTEL_GOODPUT_STEP_SAMPLING = 7  [environment]" in text
    assert "OTEL_GOODPUT_WINDOWS = 1h,24h  [default]" in text
    assert "ignored: 'never': " in text
    for variable in (*ENVVARS, *STANDARD):
        assert f"\n{variable.name} = " in f"\n{text}"
        assert variable.brief in text


GOOD = {
    "OTEL_GOODPUT_RUN_ID": "run 7",
    "OTEL_GOODPUT_DIR": "/data/runs",
    "OTEL_GOODPUT_EXPORTERS": "file,otlp",
    "OTEL_GOODPUT_PROCESSES": "0,4",
    "OTEL_GOODPUT_STEP_SAMPLING": "1",
    "OTEL_GOODPUT_STEP_TRACES": "own",
    "OTEL_GOODPUT_TRACE_SPANS": "2000",
    "OTEL_GOODPUT_WINDOWS": "90s,2h",
    "OTEL_GOODPUT_GRACE_PERIOD": "2.5",
    "OTEL_GOODPUT_SUBMITTED_AT": "2026-01-01T00:00:00Z",
    "OTEL_GOODPUT_STRICT": "yes",
    "OTEL_SDK_DISABLED": "true",
    "OTEL_SERVICE_NAME": "job",
    "OTEL_RESOURCE_ATTRIBUTES": "team=vision,tier=gold",
    "OTEL_METRIC_EXPORT_INTERVAL": "1000",
    "OTEL_BSP_SCHEDULE_DELAY": "100",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
}

WRONG = {
    "OTEL_GOODPUT_EXPORTERS": ("file,floppy", "floppy"),
    "OTEL_GOODPUT_PROCESSES": ("some", "leader, all"),
    "OTEL_GOODPUT_STEP_SAMPLING": ("0", "between 1 and 999,999,999 (1: every step)"),
    "OTEL_GOODPUT_STEP_TRACES": ("mine", "one of shared, own"),
    "OTEL_GOODPUT_TRACE_SPANS": ("7", "between 100 and 999,999,999 (0: no limit)"),
    "OTEL_GOODPUT_WINDOWS": ("1h,0.5s", "at least one second"),
    "OTEL_GOODPUT_GRACE_PERIOD": ("-1", "seconds"),
    "OTEL_GOODPUT_SUBMITTED_AT": ("2026-01-01T00:00:00", "time zone"),
    "OTEL_GOODPUT_STRICT": ("perhaps", "neither true nor false"),
    "OTEL_SDK_DISABLED": ("perhaps", "neither true nor false"),
    "OTEL_METRIC_EXPORT_INTERVAL": ("0", "above 0"),
    "OTEL_BSP_SCHEDULE_DELAY": ("2.5", "whole number"),
    "OTEL_EXPORTER_OTLP_PROTOCOL": ("http/json", "http/protobuf"),
}


def test_values_of_the_environment() -> None:
    listed = rows(**GOOD)
    for name, value in GOOD.items():
        row = listed[name]
        assert (row["value"], row["source"], row["ignored"]) == (value, "environment", None)


def test_wrong_values_are_marked_and_the_default_is_in_force() -> None:
    listed = rows(**{name: value for name, (value, _) in WRONG.items()})
    for name, (value, problem) in WRONG.items():
        row = listed[name]
        assert (row["value"], row["source"]) == (row["default"], "default")
        assert repr(value) in row["ignored"]
        assert problem in row["ignored"]


def test_one_wrong_attribute_does_not_spoil_the_others() -> None:
    row = rows(OTEL_RESOURCE_ATTRIBUTES="team=vision,tier")["OTEL_RESOURCE_ATTRIBUTES"]
    assert (row["value"], row["source"]) == ("team=vision,tier", "environment")
    assert "'tier' is not key=value" in row["ignored"]


def test_the_scheduler_names_the_run() -> None:
    row = rows(JOBSET_NAME="llm")["OTEL_GOODPUT_RUN_ID"]
    assert (row["value"], row["source"], row["note"]) == ("llm", "environment", "from JOBSET_NAME")
    assert rows(JOBSET_NAME="llm", OTEL_GOODPUT_RUN_ID="mine")["OTEL_GOODPUT_RUN_ID"]["value"] == "mine"


def test_variables_of_another_version() -> None:
    text = succeeded(goodput("env", OTEL_GOODPUT_EXPORTER="file", OTEL_GOODPUT_XYZ="1"))
    assert "OTEL_GOODPUT_EXPORTER is set, but there is no such variable; did you mean OTEL_GOODPUT_EXPORTERS?" in text
    assert "OTEL_GOODPUT_XYZ is set, but there is no such variable\n" in text


def test_every_variable_is_read_somewhere() -> None:
    package = Path(otel_goodput.__file__).parent
    sources = [path for path in package.rglob("*.py") if path.name not in ("envvars.py", "options.py")]
    readers = [path for path in sources if path.relative_to(package).as_posix() != "doctor/settings.py"]
    texts = [path.read_text(encoding="utf-8") for path in readers]
    for variable in ENVVARS:
        name = OF_VARIABLE.get(variable.name)
        wanted = rf"\bconfig\.{name}\b|\bself\.{name}\b" if name else variable.name
        assert any(re.search(wanted, text) for text in texts), variable.name


SECRET = "hunter2-is-the-token"


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_secrets_are_not_printed(form: tuple[str, ...]) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{SECRET},x-key={SECRET}",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://me:{SECRET}@collector:4317?key={SECRET}",
        "OTEL_GOODPUT_DIR": f"simplecache::s3://me:{SECRET}@bucket/runs",
        "OTEL_GOODPUT_SUBMITTED_AT": f"http://me:{SECRET}@nowhere",
    }
    text = succeeded(goodput("env", *form, **variables))
    assert "hunter2" not in text
    assert "(hidden)" in text
    assert "https://***@collector:4317?***" in text
    assert "simplecache::s3://***@bucket/runs" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:pw@host:1/x", "http://***@host:1/x"),
        ("http://pw@host", "http://***@host"),
        ("http://me:p/w@host/x", "http://***@host/x"),
        ("http://me:p@w@host/x", "http://***@host/x"),
        ("see http://me:pw@a/b and s3://me:pw@c", "see http://***@a/b and s3://***@c"),
        ("http://host/x?sig=pw", "http://host/x?***"),
        ("gs://bucket/model@v2", "gs://bucket/model@v2"),
        ("http://localhost:4317", "http://localhost:4317"),
        ("me@host is no URL", "me@host is no URL"),
        ("proxy me:pw@host:1 refuses", "proxy ***@host:1 refuses"),
        ("registry/image:tag@sha256:abc", "registry/image:tag@sha256:abc"),
        ("to /o?X-Goog-Signature=pw&alt=media", "to /o?X-Goog-Signature=(hidden)&alt=media"),
        ("AWSAccessKeyId=pw&Signature=pw", "AWSAccessKeyId=(hidden)&Signature=(hidden)"),
        ("X-Amz-Security-Token=pw&sig=pw", "X-Amz-Security-Token=(hidden)&sig=(hidden)"),
        ("AccountName=me;AccountKey=pw", "AccountName=me;AccountKey=(hidden)"),
        ("authorization: Bearer pwpwpw==", "authorization: (hidden)"),
        ("refused Bearer pwpwpw.pw-pw", "refused Bearer (hidden)"),
        ("refused Basic dXNlcjpwYXNz", "refused Basic (hidden)"),
        ("a bearer token is missing", "a bearer token is missing"),
        ("basic authentication is not offered", "basic authentication is not offered"),
        ("jwt eyJhbGciOiJI.eyJzdWIi.pwpw", "jwt (hidden)"),
        ("'tier' is not key=value, step=5", "'tier' is not key=value, step=5"),
        ("two\nlines", "two?lines"),
    ],
)
def test_credentials_are_redacted(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_headers_are_redacted() -> None:
    hidden = secrets({
        "OTEL_EXPORTER_OTLP_HEADERS": "a=Bearer%20tok%2Fen, b=other",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "justthesecret",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://harmless",
    })  # fmt: skip
    text = redact("a=Bearer%20tok%2Fen; Bearer tok/en; tok/en; other; justthesecret; http://harmless", hidden)
    for secret in ("tok", "other", "justthesecret"):
        assert secret not in text
    assert "http://harmless" in text
