"""``otel-goodput recover``: the spans that a killed job did not export, without a restart."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from exported import written
from exporters.backends import grpc_backend

from otel_goodput._journal.facts import read_facts
from otel_goodput._journal.rundir import RunDirectory

from .commands import failed, finished, goodput, job, killed, succeeded


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in span.get("attributes", ())}


def test_a_killed_job_is_recovered_once(tmp_path: Path) -> None:
    killed("job", tmp_path)
    first = succeeded(goodput("recover", tmp_path, "--exporters", "file"))
    assert "exported through file" in first
    spans = written(tmp_path / "job")
    names = Counter(span["name"] for span in spans)
    once = dict.fromkeys(("attempt", "job", "training_prep", "checkpoint_save", "look"), 1)
    assert names == {**once, "data_loading": 11, "step": 11}
    assert len({span["spanId"] for span in spans}) == len(spans)
    interrupted = [span for span in spans if attributes(span).get("goodput.interrupted")]
    assert sorted(span["name"] for span in interrupted) == ["job", "step"]
    assert all(span["status"]["code"] == 2 for span in interrupted)

    assert "already recovered" in succeeded(goodput("recover", tmp_path, "--exporters", "file"))
    assert len(written(tmp_path / "job")) == len(spans)
    assert "exported through file" in succeeded(goodput("recover", tmp_path, "--exporters", "file", "--again"))
    assert len(written(tmp_path / "job")) == 2 * len(spans)


def test_all_ranks_of_a_job_are_recovered_each_with_its_role(tmp_path: Path) -> None:
    for rank, role in enumerate(("actor", "learner")):
        killed("job", tmp_path, OTEL_GOODPUT_PROCESS_INDEX=str(rank), OTEL_GOODPUT_PROCESS_COUNT="2",
               OTEL_GOODPUT_ROLE=role)  # fmt: skip
    output = succeeded(goodput("recover", tmp_path, "--exporters", "file"))
    assert "run 'job', process 0: " in output and "run 'job', process 1: " in output
    lines = [json.loads(line) for path in tmp_path.rglob("traces-*.jsonl") for line in path.read_text().splitlines()]
    resources = {
        (of := attributes(one["resource"]))["goodput.process.index"]: (of["goodput.role"], of["process.pid"])
        for line in lines
        for one in line["resourceSpans"]
    }
    facts = [read_facts(RunDirectory(tmp_path / "job"), 0, rank).resource["process.pid"] for rank in range(2)]
    assert resources == {"0": ("actor", str(facts[0])), "1": ("learner", str(facts[1]))}
    assert succeeded(goodput("recover", tmp_path, "--exporters", "file", "--process", "1")) == (
        "run 'job', process 1: already recovered; use --again to export the spans again\n"
    )


def test_over_otlp_by_the_environment(tmp_path: Path) -> None:
    killed("job", tmp_path)
    with grpc_backend() as received:
        output = succeeded(
            goodput(
                "recover",
                OTEL_GOODPUT_DIR=tmp_path,
                OTEL_GOODPUT_EXPORTERS="otlp",
                OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint,
            )
        )
        assert "exported through otlp" in output
        assert Counter(received.span_names())["job"] == 1


def test_an_exporter_that_is_not_reached_is_tried_again(tmp_path: Path) -> None:
    killed("job", tmp_path)
    dead = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_GOODPUT_GRACE_PERIOD": "1"}
    first = goodput("recover", tmp_path, "--exporters", "otlp", **dead)
    assert first.returncode == 1
    assert "could not be exported through otlp" in first.stdout
    assert "Traceback" not in first.stderr
    assert "exported through file" in succeeded(goodput("recover", tmp_path, "--exporters", "file"))


def test_a_living_job_is_left_alone(tmp_path: Path) -> None:
    with job("job", tmp_path, 0, 10, "wait"):
        assert "is still running, so there is nothing to recover" in succeeded(
            goodput("recover", tmp_path, "--exporters", "file")
        )
    assert written(tmp_path / "job") == []


def test_several_runs_and_one_of_them(tmp_path: Path) -> None:
    killed("one", tmp_path)
    killed("two", tmp_path)
    output = succeeded(goodput("recover", tmp_path, "--run", "two", "--exporters", "file"))
    assert "'two'" in output
    assert "'one'" not in output
    assert written(tmp_path / "one") == []
    assert "'one'" in succeeded(goodput("recover", tmp_path, "--exporters", "file"))
    assert written(tmp_path / "one")


def test_a_job_that_ended_by_itself_leaves_only_what_no_exporter_took(tmp_path: Path) -> None:
    finished("job", tmp_path)
    output = succeeded(goodput("recover", tmp_path, "--exporters", "file"))
    assert "exported through file" in output
    assert not [span for span in written(tmp_path / "job") if attributes(span).get("goodput.interrupted")]


def test_what_cannot_be_recovered(tmp_path: Path) -> None:
    assert "holds no run" in failed(goodput("recover", tmp_path))
    killed("job", tmp_path)
    assert "unknown exporter 'nosuch'" in failed(goodput("recover", tmp_path, "--exporters", "nosuch"))
    nowhere = goodput("recover", tmp_path, "--exporters", "none")
    assert nowhere.returncode == 1
    assert "--exporters" in nowhere.stderr
    other = goodput("recover", tmp_path, "--process", "4")
    assert other.returncode == 1
    assert "process 4 left no journal" in other.stderr


def test_a_run_at_a_url(tmp_path: Path) -> None:
    """What is written must not go into the copy that is thrown away; and what was done is remembered."""
    killed("job", tmp_path)
    with grpc_backend() as received:
        there = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.endpoint}
        url = f"file://{tmp_path}"
        assert "exported through otlp" in succeeded(goodput("recover", url, "--exporters", "otlp", **there))
        assert "already recovered" in succeeded(goodput("recover", url, "--exporters", "otlp", **there))
        assert Counter(received.span_names())["job"] == 1
    done = goodput("recover", f"file://{tmp_path}", "--exporters", "file", "--again")
    if done.returncode == 0:
        assert written(tmp_path / "job"), "it says that spans were exported"
    else:
        assert "file" in done.stderr


def test_what_only_one_of_two_exporters_took_goes_to_the_other_next_time(tmp_path: Path) -> None:
    killed("job", tmp_path)
    dead = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_GOODPUT_GRACE_PERIOD": "1"}
    first = goodput("recover", tmp_path, "--exporters", "file,otlp", **dead)
    assert first.returncode == 1
    assert "exported through file" in first.stdout
    assert first.stderr.endswith("run 'job': run this command again once the exporter is reachable\n")
    assert "could not be exported through otlp" in first.stdout
    spans = written(tmp_path / "job")
    with grpc_backend() as received:
        there = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.endpoint}
        output = succeeded(goodput("recover", tmp_path, "--exporters", "file,otlp", **there))
        assert "0 spans exported through file" in output
        assert f"{len(spans)} spans exported through otlp" in output
        assert len(received.span_names()) == len(spans)
        assert "already recovered" in succeeded(goodput("recover", tmp_path, "--exporters", "file,otlp", **there))
    assert len(written(tmp_path / "job")) == len(spans)
