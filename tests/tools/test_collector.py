"""``otel-goodput collector`` as people type it: right, and wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from otel_goodput._tools.collector.command import TARGETS
from overlay import laid_over

from .commands import goodput, succeeded

K8S = ("k8s", "job", "--project", "my-project", "--image", "i:1", "--dir", "gs://b/g")


@pytest.mark.parametrize("place", TARGETS)
def test_the_head_says_what_it_is_and_how_it_was_written(place: str) -> None:
    text = succeeded(goodput("collector", "config", place))
    assert text.startswith(f"# {TARGETS[place].brief}\n# Written by: otel-goodput collector config {place}\n")
    head = text.partition("\nextensions:")[0]
    assert ("roles/" in head) == ("GOOGLE_CLOUD_PROJECT" in head) == (place != "local")
    assert all(line.startswith("#") for line in head.splitlines())
    assert max(map(len, head.splitlines())) < 120


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (("config",), "PLACE"),
        (("config", "cloud"), "'cloud'"),
        (("config", "sidecar", "--project", "My Project"), "invalid project id value: 'My Project'"),
        (("config", "sidecar", "--project", 'a"b-project'), "invalid project id"),
        (("config", "sidecar", "--queue-dir", "relative"), "absolute path"),
        (("config", "sidecar", "--queue-dir", "/with space"), "absolute path"),
        (("config", "sidecar", "--queue-dir", "/a${env:HOME}"), "absolute path"),
        (("config", "local", "--project", "my-project"), "local has no --project"),
        (("config", "local", "--spool"), "local has no --spool"),
        (("config", "gateway", "--spool"), "gateway has no --spool"),
        (("config", "sidecar", "--gateway", "host", "--tls", "mtls"), "sidecar has no --gateway and no --tls"),
        (("config", "gateway", "--listen", "4317"), "HOST:PORT"),
        (("config", "gateway", "--listen", "0.0.0.0:70000"), "HOST:PORT"),
        (("config", "fleet", "--gateway", "http://host"), "HOST[:PORT]"),
        (("systemd",), "PLACE"),
        (("systemd", "cloud"), "'cloud'"),
        (("systemd", "local", "--project", "my-project"), "local has no --project"),
        (("systemd", "gateway", "--spool"), "gateway has no --spool"),
        (("systemd", "classic", "--queue-dir", "/q"), "--queue-dir"),
        (("k8s", "job"), "--project"),
        (("k8s", "job", "--project", "my-project"), "job needs --image and --dir"),
        (("k8s", "gateway", "--project", "my-project", "--image", "i:1"), "gateway has no --image"),
        ((*K8S, "--hosts", "4"), "job has no --hosts"),
        ((*K8S, "--namespace", "Training"), "invalid name"),
        ((*K8S, "--name", "on"), "invalid name"),
        ((*K8S, "--name", "a" * 33), "invalid name"),
        ((*K8S, "--accelerators", "nvidia.com/gpu"), "KIND=NUMBER"),
        ((*K8S, "--image", "a b"), "container image"),
        ((*K8S, "--dir", "goodput"), "path or URL"),
    ],
)
def test_wrong_use_is_reported(arguments: tuple[str, ...], refusal: str) -> None:
    done = goodput("collector", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert refusal in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("what", ["config", "systemd", "k8s"])
def test_help_has_examples_that_work(what: str) -> None:
    text = succeeded(goodput("collector", what, "--help"))
    examples = text.partition("examples:\n")[2].replace("\\\n", " ").splitlines()
    commands = [line.partition(">")[0].split()[1:] for line in examples if line.strip().startswith("otel-goodput")]
    assert len(commands) >= 2
    for command in commands:
        words = [word.replace("IMAGE", "registry.example/i:1") for word in command if word != "--output"]
        yaml.safe_load_all(succeeded(goodput(*(word for word in words if word != "config.yaml"))))


def test_a_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    options = ("collector", "config", "classic", "--project", "my-project")
    done = goodput(*options, "--output", path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert path.read_text(encoding="utf-8") == succeeded(goodput(*options))
    assert path.stat().st_mode & 0o777 == 0o600
    lost = goodput(*options, "--output", tmp_path / "no" / "config.yaml")
    assert lost.returncode == 1 and f"{tmp_path}/no'" in lost.stderr


def test_output_is_no_directory_and_a_dash_is_standard_output(tmp_path: Path) -> None:
    options = ("collector", "config", "local", "--output")
    assert succeeded(goodput(*options, "-")).startswith("# ")
    done = goodput(*options, tmp_path)
    assert (done.returncode, done.stdout) == (1, "") and str(tmp_path) in done.stderr


def test_a_folder_may_end_with_a_slash() -> None:
    config = yaml.safe_load(
        succeeded(goodput("collector", "config", "sidecar", "--queue-dir", "/q/", "--spool", "/s/"))
    )
    assert config["extensions"]["file_storage"]["directory"] == "/q"
    assert config["exporters"]["file/spool"]["path"] == "/s/goodput.otlp.json"


def test_comments_stay_and_the_heads_of_layers_go() -> None:
    below = "# head\na: # of a\n  # of b\n  b: {c: 1, d: 'x, y'} # of d\n  e: [1, 2]\n\n# of f\nf:\n  - 1 # one\n"
    above = "# other head\na:\n  b:\n    c: 2 # two\n  e: [3]\ng: >-\n  a: text\n  # no comment\n"
    merged = laid_over(below, above)
    assert merged == (
        "a: # of a\n  # of b\n  b: # of d\n    c: 2 # two\n    d: 'x, y'\n  e: [3]\n\n# of f\nf:\n  - 1 # one\n"
        "g: >-\n  a: text\n  # no comment\n"
    )
    assert yaml.safe_load(merged) == {
        "a": {"b": {"c": 2, "d": "x, y"}, "e": [3]}, "f": [1], "g": "a: text # no comment",
    }  # fmt: skip


def test_what_it_cannot_read_is_no_silent_loss() -> None:
    with pytest.raises(ValueError, match="not an entry"):
        laid_over("a: 1\n", "? complex\n: 2\n")
