"""The laptop's services: what Compose and Prometheus say of them, and that each finds what it is given and asks for."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from .places import COMPOSE, mounts, services
from .stories import promtool
from .written import COLLECTOR

FILE = COMPOSE / "compose.yaml"


def refused(text: str) -> str:
    """Why the text is no Compose file; empty where it is one."""
    compose_spec = pytest.importorskip("compose_spec", reason="the types of Compose's specification are not here")
    try:
        compose_spec.PyCompose.from_yaml(text)
    except ValueError as error:
        return str(error)
    return ""


def test_it_is_a_compose_file() -> None:
    assert refused(FILE.read_text(encoding="utf-8")) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [("cap_drop", "cap_drob"), ("unless-stopped", "unless-stoped"), (":9090:9090", ":x:9090"), ("512m", "[1]")],
)
def test_what_is_none_is_found(old: str, new: str) -> None:
    text = FILE.read_text(encoding="utf-8")
    assert old in text
    assert refused(text.replace(old, new)) != ""


@pytest.mark.parametrize("name", [*services()])
def test_each_is_pinned_and_for_this_machine_only(name: str) -> None:
    service = services()[name]
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"])
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service.get("network_mode") is None


@pytest.mark.parametrize("name", ["collector", "prometheus", "grafana"])
def test_every_file_that_is_mounted_is_here(name: str) -> None:
    mounted = mounts(name)
    assert mounted
    assert [str(path) for path in mounted.values() if not path.is_file()] == []


@pytest.mark.parametrize("name", [*services()])
def test_each_can_do_little_harm(name: str) -> None:
    service = services()[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {*service} & {"privileged", "cap_add", "user", "devices", "pid", "ipc"} == set()
    assert service["mem_limit"] and service["restart"] == "unless-stopped"
    assert all(":ro" in each or not each.startswith(".") for each in service.get("volumes", []))


def test_who_opens_grafana_may_look_and_no_more() -> None:
    given = services()["grafana"]["environment"]
    assert given["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "${GRAFANA_ROLE:-Viewer}"
    assert given["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert (given["GF_AUTH_BASIC_ENABLED"], given["GF_AUTH_DISABLE_LOGIN_FORM"]) == ("false", "true")
    assert not [key for key in given if "PASSWORD" in key]


def test_a_job_s_default_endpoints_are_the_collector_s() -> None:
    given = yaml.safe_load((COMPOSE / "collector.yaml").read_text(encoding="utf-8"))
    inside = [each["endpoint"].rpartition(":")[2] for each in given["receivers"]["otlp"]["protocols"].values()]
    assert [f"127.0.0.1:{port}:{port}" for port in inside] == services()["collector"]["ports"]


def test_what_is_laid_over_the_configuration_is_there() -> None:
    below = yaml.safe_load((COLLECTOR / "configs" / "local.yaml").read_text(encoding="utf-8"))
    above = yaml.safe_load((COMPOSE / "collector.yaml").read_text(encoding="utf-8"))
    assert {*above["receivers"]} <= {*below["receivers"]}
    assert {*above["exporters"]} - {*below["exporters"]} == {"otlp_grpc/jaeger"}
    assert {*above["service"]["pipelines"]} & {*below["service"]["pipelines"]} == set()
    arguments = [each.removeprefix("--config=") for each in services()["collector"]["command"]]
    assert arguments == [*mounts("collector")]  # in this order: the later wins


def test_prometheus_takes_what_it_is_given(tmp_path: Path) -> None:
    (configured,) = (each for each in services()["prometheus"]["command"] if each.startswith("--config.file="))
    for target, source in mounts("prometheus").items():
        (tmp_path / Path(target).name).write_bytes(source.read_bytes())
    file = tmp_path / Path(configured).name
    done = subprocess.run(
        [promtool(), "check", "config", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "13 rules found" in done.stdout) == (0, True), done.stdout + done.stderr


def test_what_one_asks_another_listens_for() -> None:
    above = yaml.safe_load((COMPOSE / "collector.yaml").read_text(encoding="utf-8"))
    scraped = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"]
    port = above["exporters"]["prometheus"]["endpoint"].rpartition(":")[2]
    assert [job["static_configs"][0]["targets"] for job in scraped] == [[f"collector:{port}"]]
    assert all(job["honor_labels"] for job in scraped)
    sources = yaml.safe_load((COMPOSE / "grafana" / "datasources.yaml").read_text(encoding="utf-8"))["datasources"]
    hosts = {each["type"]: re.fullmatch(r"http://(\w+):(\d+)", each["url"]) for each in sources}
    for kind, modes in hosts.items():
        assert modes is not None, kind
        host, port = modes.groups()
        assert f"127.0.0.1:{port}:{port}" in services()[host]["ports"]


def test_grafana_finds_dashboard_and_datasource() -> None:
    provider = yaml.safe_load((COMPOSE / "grafana" / "dashboards.yaml").read_text(encoding="utf-8"))["providers"][0]
    inside = {Path(target): source for target, source in mounts("grafana").items()}
    shown = {target: source for target, source in inside.items() if target.parent == Path(provider["options"]["path"])}
    home = services()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(home) in shown
    assert {path.name for path in shown.values()} == {path.name for path in COLLECTOR.glob("dashboards/*.grafana.json")}
    sources = yaml.safe_load((COMPOSE / "grafana" / "datasources.yaml").read_text(encoding="utf-8"))["datasources"]
    for path in shown.values():
        variables = json.loads(path.read_text(encoding="utf-8"))["templating"]["list"]
        hidden_by_kind = {each["query"]: each.get("hide") for each in variables if each["type"] == "datasource"}
        assert {kind for kind, hidden in hidden_by_kind.items() if not hidden} == {
            each["type"] for each in sources if each.get("isDefault")
        }
        # For links to traces.
        assert {kind for kind, hidden in hidden_by_kind.items() if hidden} in (set(), {"tempo", "jaeger"})
    assert "jaeger" in {each["type"] for each in sources}
