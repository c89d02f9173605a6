"""The collector is started as Kubernetes, Compose and systemd start it, with the real binary and what they give it.

Only ports are others here, so that all can run at once on one machine, and Google is the emulator: its authenticator is
not in our binary.

Longer than other files: each place is started in the same few ways, and reading them together shows what differs.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import grpc
import pytest
import yaml
from emulators.google import GoogleEmulator
from exporters.backends import grpc_backend
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from ports import kept_address
from tools.commands import goodput, succeeded
from waits import until

from collector import places

from .collector import COLLECTOR, OVERLAYS, Collector, binary, validated
from .flat import without_credentials

AUTH = "google-auth.yaml"
GATEWAY = ("OTELCOL_GOODPUT_GATEWAY", "OTELCOL_GOODPUT_GATEWAY_PORT")
NS = 10**9


class Place(NamedTuple):
    """How one starts the collector.

    `options` and `environ` name `folders`, with what is mounted in them: the text by the file's name. Who asks for its
    health and who sends to it know its ports `health` (0: nobody asks) and `otlp`. It is given `wait_s` seconds between
    the job's end and SIGTERM, and then `grace_s` seconds.
    """

    options: list[str]
    environ: Mapping[str, str]
    folders: Mapping[str, Mapping[str, str]]
    health: int
    otlp: int
    wait_s: float
    grace_s: float

    def under(self, root: Path) -> Place:
        """With the folders at another root, where they are made."""

        def moved(text: str) -> str:
            return re.sub("|".join(map(re.escape, self.folders)), lambda match: f"{root}{match[0]}", text)

        for folder, files in self.folders.items():
            (root / folder[1:]).mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (root / folder[1:] / name).write_text(text, encoding="utf-8")
        environ = {name: moved(value) for name, value in self.environ.items()}
        return self._replace(options=[moved(each) for each in self.options], environ=environ)

    def configs(self) -> list[str]:
        assert all(each.startswith("--config=") for each in self.options)
        return [each.removeprefix("--config=") for each in self.options]

    def without_auth(self) -> list[str]:
        """The configurations, with the emulator's overlay in place of the credentials."""
        return [str(OVERLAYS / "emulator.yaml") if each.endswith(AUTH) else each for each in self.configs()]


def kubernetes(name: str) -> Place:
    """`gateway` is the one of the overlay `fleet`."""
    is_sidecar, pod = name != "gateway", _pod(name)
    (container,) = (each for each in [*pod["initContainers"], *pod["containers"]] if each["name"] == "collector")
    name = name if is_sidecar else "overlays/fleet"
    data = {each["metadata"]["name"]: each["data"] for each in places.of_kind(name, "ConfigMap")}
    environ = {key: value for each in container["envFrom"] for key, value in data[each["configMapRef"]["name"]].items()}
    for key, value in places.environment(container).items():  # of the downward API, any word
        environ[key] = "sample" if value.startswith(("metadata.", "spec.", "status.")) else value
    volumes = {each["name"]: each for each in pod["volumes"]}
    folders = {
        each["mountPath"]: data[volumes[each["name"]]["configMap"]["name"]] if each["name"] == "config" else {}
        for each in container["volumeMounts"]
    }
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    if is_sidecar:
        otlp = urlsplit(places.environment(places.trainer(name))["OTEL_EXPORTER_OTLP_ENDPOINT"]).port or 0
    else:
        otlp = places.of_kind(name, "Service")[0]["spec"]["ports"][0]["port"]
    health = ports[container["readinessProbe"]["httpGet"]["port"]]
    wait_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace_s = pod["terminationGracePeriodSeconds"] - wait_s
    return Place(container["args"], environ, folders, health, otlp, wait_s, grace_s)


def queues(name: str) -> Place:
    """What looks after the queues of that collector."""
    (container,) = (each for each in _pod(name)["initContainers"] if each["name"] == "queues")
    place = kubernetes(name)
    return place._replace(options=container["command"], environ=places.environment(container))


def _pod(name: str) -> dict[str, Any]:
    return places.gateway() if name == "gateway" else places.pod(name)


def systemd() -> Place:
    unit = places.settings(places.UNIT.read_text(encoding="utf-8"))
    environ = dict(each.split("=", 1) for each in unit["Environment"])
    for key, (value,) in places.settings((places.SYSTEMD / "environment").read_text(encoding="utf-8")).items():
        environ[key] = value
    _, *words = unit["ExecStart"][0].split()
    options = [option for word in words for option in environ.get(word.removeprefix("$"), word).split()]
    state = f"/var/lib/{unit['StateDirectory'][0]}"
    environ = {key: value.replace("%S", "/var/lib") for key, value in environ.items()}
    page = (COLLECTOR.parent / "docs/collector/vm.md").read_text(encoding="utf-8").replace("\\\n", "")
    (installed,) = re.findall(r"install -m 644 -D -t (/etc/\S+) (.+)", page)
    files = {Path(each).name: (COLLECTOR / each).read_text(encoding="utf-8") for each in installed[1].split()}
    (wait,), (grace,) = unit["ExecStop"], unit["TimeoutStopSec"]
    wait_s = float(wait.removeprefix("/bin/sleep "))
    return Place(options, environ, {installed[0]: files, state: {}}, 0, 4317, wait_s, float(grace))


def compose() -> Place:
    service = places.services()["collector"]
    folders: dict[str, dict[str, str]] = {service["working_dir"]: {}}
    for target, source in places.mounts("collector").items():
        folders.setdefault(str(Path(target).parent), {})[Path(target).name] = source.read_text(encoding="utf-8")
    inside = int(service["ports"][0].rpartition(":")[2])
    grace_s = float(service["stop_grace_period"].removesuffix("s"))
    return Place(service["command"], service["environment"], folders, 0, inside, 0, grace_s)


def google_places() -> dict[str, Place]:
    """The gateway before those who send to it."""
    return {**{name: kubernetes(name) for name in ("gateway", *places.BUILT)}, "systemd": systemd()}


def effective(place: Place, **environ: str) -> Any:
    """The whole configuration, as the collector sees it."""
    done = subprocess.run(
        [binary(), "print-config", *(f"--config={each}" for each in place.without_auth())],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **place.environ, **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


def resource(name: str, **more: str) -> dict[str, Any]:
    values = {"service.name": "places", "service.instance.id": name, **more}
    return {"attributes": [{"key": key, "value": {"string_value": value}} for key, value in values.items()]}


def tell(address: str, name: str, value: int, *, as_sidecar: bool = False) -> None:
    """A span and a point, as a job's client sends them. Of a phase, so that no gateway takes it for a routine step.

    `as_sidecar`: as a gateway is sent it, a span alone, which knows its place.
    """
    now = time.time_ns()
    ids = {"trace_id": os.urandom(16), "span_id": os.urandom(8)}
    phase = {"key": "goodput.phase", "value": {"string_value": "checkpoint_save"}}
    span = {**ids, "name": name, "start_time_unix_nano": now - NS, "end_time_unix_nano": now, "attributes": [phase]}
    point = {"start_time_unix_nano": now - 60 * NS, "time_unix_nano": now, "as_int": value}
    metric = {"name": "told", "sum": {"aggregation_temporality": 2, "is_monotonic": True, "data_points": [point]}}
    placed = {"gcp.project_id": "PROJECT", "location": "global"} if as_sidecar else {}
    about = resource(name, **placed)
    spans = {"resource": about, "scope_spans": [{"spans": [span]}]}
    metrics = {"resource": resource(name), "scope_metrics": [{"metrics": [metric]}]}
    with grpc.insecure_channel(address) as channel:
        TraceServiceStub(channel).Export(ExportTraceServiceRequest(resource_spans=[spans]), timeout=10)
        if not as_sidecar:
            MetricsServiceStub(channel).Export(ExportMetricsServiceRequest(resource_metrics=[metrics]), timeout=10)


def arrived(google: GoogleEmulator, name: str) -> tuple[int, list[float]]:
    """How many spans of this place have arrived, and the last value of each of its series."""
    spans = sum(span.name == name for span in [*google.otlp_spans])
    series = {**google.series, **google.otlp_series}
    of_place = [of for key, of in series.items() if name in dict(key.resource_labels).values()]
    return spans, [points[-1].value for points in of_place]


@pytest.fixture
def google() -> Iterator[GoogleEmulator]:
    with GoogleEmulator(projects=["PROJECT", "example-project"]) as emulator:
        yield emulator


def test_what_a_job_says_last_arrives_in_the_time_that_is_given_for_it(google: GoogleEmulator, tmp_path: Path) -> None:
    """Wherever it runs, and from a client that sends its last values right after those before."""
    there = {name: place.under(tmp_path / name) for name, place in google_places().items()}
    collectors: dict[str, Collector] = {}
    with ExitStack() as running, ThreadPoolExecutor(len(there)) as pool:
        for name, place in there.items():
            environ = {**place.environ, "GOOGLE_EMULATOR": google.endpoint.removeprefix("http://")}
            if name == "overlays/fleet":
                environ |= zip(GATEWAY, collectors["gateway"].grpc.split(":"), strict=True)
            collector = Collector(tmp_path / name, *place.without_auth(), environ=environ)
            collectors[name] = running.enter_context(collector)

        def whole(name: str) -> float:
            """From its job's last words on: the seconds that its end took."""
            for value in (1, 2):
                tell(collectors[name].grpc, name, value)
            begin = time.monotonic()
            until(lambda: arrived(google, name) == (2, [2]))
            assert time.monotonic() - begin < there[name].wait_s, name
            return collectors[name].stop()

        futures = {name: pool.submit(whole, name) for name in there if name != "gateway"}
        took = {name: future.result() for name, future in futures.items()}
        took["gateway"] = collectors["gateway"].stop()  # what it sends for the fleet has arrived
    assert {name for name, seconds in took.items() if seconds > there[name].grace_s} == set()
    assert google.refusals == []
    lines = [
        line for collector in collectors.values() for line in collector.log.splitlines() if '"level":"error"' in line
    ]
    # What was under way to the next try, at the end, is on the disk.
    assert [line for line in lines if "interrupted due to shutdown" not in line] == []


@pytest.mark.parametrize("name", [*places.BUILT, "gateway", "systemd"])
def test_it_is_asked_where_it_answers(name: str, tmp_path: Path) -> None:
    place = google_places()[name].under(tmp_path)
    config = effective(place, GOOGLE_EMULATOR="127.0.0.1:1")
    host, _, port = config["extensions"]["health_check"]["endpoint"].rpartition(":")
    assert (host, int(port)) == ("0.0.0.0", place.health) if place.health else ("localhost", 13133)
    host, _, port = config["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"].rpartition(":")
    assert (host, int(port)) == ("0.0.0.0" if name == "gateway" else "localhost", place.otlp)
    disk = config["extensions"]["file_storage"]
    assert disk["directory"] == disk["compaction"]["directory"]
    assert disk["directory"] in {f"{tmp_path}{folder}" for folder, files in place.folders.items() if not files}


@pytest.mark.parametrize("name", [*places.BUILT, "gateway", "systemd"])
def test_our_binary_lacks_the_authenticator_only(name: str, tmp_path: Path) -> None:
    place = google_places()[name].under(tmp_path)
    errors = validated(*place.configs(), environ=place.environ).stderr
    assert re.findall(r'unknown type: "(\w+)"', errors) == ["googleclientauth"], errors
    assert errors.count("'") == 2, errors  # one complaint, of the extensions
    done = validated(*place.without_auth(), environ={**place.environ, "GOOGLE_EMULATOR": "127.0.0.1:1"})
    assert (done.returncode, done.stderr) == (0, "")


def test_on_a_laptop_spans_go_to_jaeger_and_metrics_to_prometheus(tmp_path: Path) -> None:
    place, scraped = compose().under(tmp_path), "exporters::prometheus::endpoint"
    receivers, exporters = (effective(place)[each] for each in ("receivers", "exporters"))
    assert receivers["otlp"]["protocols"]["grpc"]["endpoint"] == f"0.0.0.0:{place.otlp}"
    assert exporters["prometheus"]["endpoint"] == "0.0.0.0:8889"
    assert exporters["otlp_grpc/jaeger"]["endpoint"] == "jaeger:4317"
    with grpc_backend() as jaeger:
        behind = [f"exporters::otlp_grpc/jaeger::endpoint: {jaeger.endpoint.removeprefix('http://')}"]
        where = tmp_path / places.services()["collector"]["working_dir"][1:]
        with Collector(where, *place.configs(), settings=behind, ports=[scraped], environ=place.environ) as collector:

            def metrics() -> str:
                with urllib.request.urlopen(f"http://{collector.addresses[scraped]}/metrics", timeout=5) as answer:
                    return str(answer.read().decode())

            tell(collector.grpc, "compose", 7)
            until(lambda: jaeger.span_names() == ["compose"])
            until(lambda: re.search(r'^told_total\{instance="compose",job="places".*\} 7$', metrics(), re.M))
            assert collector.stop() < place.grace_s
        assert (where / "goodput.otlp.json").stat().st_size > 0


@pytest.mark.parametrize("name", [pytest.param("job", marks=pytest.mark.release), "jobset-restricted", "gateway"])
def test_a_broken_queue_keeps_a_pod_s_collector_for_a_moment_only(name: str, tmp_path: Path) -> None:
    """Also where it has broken while the pod runs: its containers are started anew until they run."""
    place, init = (each.under(tmp_path / "pod") for each in (kubernetes(name), queues(name)))
    (state,) = (tmp_path / "pod" / folder[1:] for folder, files in place.folders.items() if not files)
    address = kept_address()
    google = GoogleEmulator(port=int(address.rpartition(":")[2]), projects=["PROJECT", "example-project"])
    environ = {**place.environ, "GOOGLE_EMULATOR": address}
    collector = Collector(tmp_path / "collector", *place.without_auth(), environ=environ)
    with ExitStack() as running:
        running.callback(collector.kill)
        collector.start()

        def started() -> bool:
            try:
                collector.start()
            except AssertionError:
                return False
            return True

        def broken() -> set[Path]:
            """All that it has, by a hand that it does not move aside itself."""
            tell(collector.grpc, "lost", 1, as_sidecar=name == "gateway")
            collector.kill()
            files = {path for path in state.glob("exporter_*") if not re.search(r"\.(broken|backup)", path.name)}
            for path in files:
                path.write_bytes(path.read_bytes()[:8192] + bytes(24576))
            assert files
            return files

        first = broken()
        assert not started()
        command, variables = init.options, {**os.environ, **init.environ}
        check = running.enter_context(subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL))
        running.callback(check.kill)

        def aside(paths: set[Path]) -> list[int]:
            """How many of each have been moved aside; a start before that only takes time."""
            return [len([*state.glob(f"{path.name}.broken.*")]) for path in paths]

        until(lambda: min(aside(first)) == 1)
        until(started)
        again = broken()
        until(lambda: max(aside(again)) == 2)
        until(started)
        moved = aside(first) + aside(again)
        assert min(moved) >= 1 and max(moved) == 2, "each time, and none of them lost"
        running.enter_context(google)
        tell(collector.grpc, name, 2, as_sidecar=name == "gateway")
        until(lambda: arrived(google, name)[0] == 1)
        left = {path: path.stat().st_ino for path in state.glob("exporter_*")}
        check.terminate()
        assert check.wait(5) == 0
        assert {path: path.stat().st_ino for path in state.glob("exporter_*")} == left


def test_what_is_kept_of_a_pod_is_sent_by_another(google: GoogleEmulator, tmp_path: Path) -> None:
    """As the manifests say it, with what Google has refused for good."""
    place = kubernetes("overlays/example").under(tmp_path / "pod")
    environ = {**place.environ, "GOOGLE_EMULATOR": google.endpoint.removeprefix("http://")}
    google.fail("*", "PERMISSION_DENIED", None)
    with Collector(tmp_path / "collector", *place.without_auth(), environ=environ) as collector:
        tell(collector.grpc, "refused", 1)
        until(lambda: collector.log.count("not retryable error") >= 1)
    google.heal()
    send = yaml.safe_load((places.KUBERNETES / "send" / "kustomization.yaml").read_text(encoding="utf-8"))
    (command,) = (each["value"] for each in yaml.safe_load(send["patches"][0]["patch"]) if "command" in each["path"])
    with Collector(tmp_path / "collector", *place.without_auth(), environ=environ) as collector:
        spool, endpoint = tmp_path / "pod" / command[2][1:], f"http://{collector.grpc}"
        succeeded(goodput(*command[1:2], spool, command[3], endpoint))
        until(lambda: arrived(google, "refused")[0] == 1)


def test_what_the_script_for_a_vm_installs_runs(google: GoogleEmulator, tmp_path: Path) -> None:
    """As the unit that it writes starts it, with the one configuration that it writes."""
    script = tmp_path / "install.sh"
    script.write_text(succeeded(goodput("collector", "systemd", "classic", "--spool")), encoding="utf-8")
    root = tmp_path / "root"
    subprocess.run(["sh", str(script)], env={**os.environ, "DESTDIR": str(root)}, check=True, timeout=60)
    unit = places.settings((root / "etc/systemd/system" / places.UNIT.name).read_text(encoding="utf-8"))
    given = places.settings((root / unit["EnvironmentFile"][0][1:]).read_text(encoding="utf-8"))
    state = tmp_path / "state"
    environ = dict(each.replace("%S/otelcol-goodput", str(state)).split("=", 1) for each in unit["Environment"])
    environ |= {"GOOGLE_CLOUD_PROJECT": "PROJECT", "GOOGLE_EMULATOR": google.endpoint.removeprefix("http://")}
    config = root / given["OTELCOL_OPTIONS"][0].removeprefix("--config=/")
    config.write_text(yaml.safe_dump(without_credentials(yaml.safe_load(config.read_text(encoding="utf-8")))))
    state.mkdir()
    (state / "exporter_otlp_grpc_google_traces").write_bytes(b"no queue at all" * 1000)
    (check,) = unit["ExecStartPre"]
    sh, path = check.removeprefix("-").split()
    subprocess.run([sh, f"{root}{path}"], env={**os.environ, **environ}, check=True, timeout=60)
    assert [*state.glob("*.broken.*")]
    with Collector(tmp_path / "run", config, OVERLAYS / "emulator.yaml", environ=environ) as collector:
        tell(collector.grpc, "vm", 7)
        until(lambda: arrived(google, "vm") == (1, [7]))
        until(lambda: (state / "spool" / "goodput.otlp.json").exists())
    assert google.refusals == []
