"""Shared fixtures: strict errors, an environment of its own, no recorder left over from another test."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import yaml
from http_server import HttpServer
from hypothesis import HealthCheck, settings
from opentelemetry import context
from ports import reserved_port
from recorded import NS, Record, Recording

# Variables that change what we do: OpenTelemetry's, ours, and those that schedulers and launchers set.
_PREFIXES = (
    *("OTEL_", "SLURM_", "JAX_NUM_", "JAX_PROCESS_", "JOB", "TORCHELASTIC_", "KUBERNETES_", "TPU_", "MEGASCALE_"),
    *("MASTER_", "LOCAL_", "OMPI_", "PMI", "PALS_", "MV2_", "HOROVOD_", "JSM_", "FLUX_", "PBS_", "LSB_"),
)
_NAMES = (
    *("GCE_METADATA_HOST", "POD_NAME", "RANK", "WORLD_SIZE", "CLOUD_TPU_TASK_ID"),
    *("PROCESSES_IN_JOB", "REPLICATED_JOB_REPLICAS", "NODE_RANK", "GROUP_RANK", "TF_CONFIG"),
)

# A shell starts what runs in the background with SIGINT ignored, and a child inherits that: then nothing interrupts it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What `yaml.safe_load` uses: libyaml is ten times as fast.
if hasattr(yaml, "CSafeLoader"):
    yaml.SafeLoader = yaml.CSafeLoader

# The same examples in every run: what fails is what was changed. `make test-release` takes six times as many, and
# `make search` draws new ones.
CROWDED = [HealthCheck.too_slow]  # drawing examples takes long where the machine is crowded; so may an example
settings.register_profile("same", derandomize=True, deadline=None, max_examples=25, suppress_health_check=CROWDED)
settings.register_profile("release", settings.get_profile("same"), max_examples=150)
settings.register_profile("search", max_examples=3000, deadline=None)
settings.load_profile("same")


def pytest_xdist_auto_num_workers() -> int:
    """Three more than there are cores: many tests wait for processes, servers and clocks."""
    return 3 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


PLACES = pytest.StashKey[list[Path]]()
LONGEST = ("otelcol/test_losses.py", "examples/test_examples.py", "examples/test_everyday.py")


def pytest_configure(config: pytest.Config) -> None:
    """Each worker begins to collect at another place: to rewrite what was changed takes long, and is done once then."""
    here = Path(__file__).parent
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None or [Path(argument).absolute() for argument in config.args] != [here]:
        return
    sizes = {
        place: sum(path.stat().st_size for path in ([place] if place.suffix else place.rglob("test_*.py")))
        for place in sorted(here.iterdir())
        if place.match("test_*.py") or any(place.glob("test_*.py")) or any(place.glob("*/test_*.py"))
    }
    places = config.stash[PLACES] = [*sizes]
    begins = [end - size for end, size in zip(accumulate(sizes.values()), sizes.values(), strict=True)]
    own = sum(sizes.values()) * int(worker["workerid"].removeprefix("gw")) / worker["workercount"]
    first = next((at for at, begin in enumerate(begins) if begin >= own), 0)
    config.args[:] = map(str, places[first:] + places[:first])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All workers have the same order. The longest tests come first: no worker is left with one at the end."""
    here = Path(__file__).parent
    if places := config.stash.get(PLACES, []):
        order = {place.name: at for at, place in enumerate(places)}
        items.sort(key=lambda item: order[item.path.relative_to(here).parts[0]])
    longest = [here / name for name in LONGEST]
    items.sort(key=lambda item: item.path not in longest)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-screenshots", action="store_true", help="run the demo and write pictures of its page to docs/"
    )


def pytest_collection_finish() -> None:
    """What was collected stays to the end: no garbage collection in the midst of a test looks through it, for 0.2 s."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables by which processes of all workers share what jax has compiled, where compiling is not the matter."""
    place = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        place = place.parent  # this one's is within that of all
    return {
        "JAX_COMPILATION_CACHE_DIR": str(place / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


@pytest.fixture
def port() -> Iterator[int]:
    """Where nobody listens."""
    with reserved_port() as free:
        yield free


@pytest.fixture
def http_server() -> Iterator[HttpServer]:
    """Answers 404 until the test replaces its `answer`."""
    with HttpServer() as server:
        yield server


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    """Configures the default recorder; a second call goes on with the run, as a restart would."""
    import otel_goodput as goodput
    from otel_goodput._journal.rundir import folder_name

    made = []

    def configure(make: Callable[..., Any] = goodput.configure, **options: Any) -> Recording:
        recording = Recording()
        whole = {"job_name": "line", "run_id": "run", "directory": tmp_path / "runs", "exporters": "none", **options}
        recording.recorder = recorder = make(**recording.attach(whole))
        assert isinstance(recorder, goodput.Recorder)
        made.append(recorder)
        recording.folder = tmp_path / "runs" / folder_name(recorder.run_id)
        return recording

    yield configure
    for recorder in made:
        recorder.shutdown()  # else what it watches in others' libraries is still watched in other tests


@pytest.fixture
def recording(record: Record) -> Recording:
    """The default recorder, configured."""
    return record()


@pytest.fixture
def base() -> int:
    """A moment (ns) later than all that really happens during a test, to backfill from."""
    return (time.time_ns() // NS + 3600) * NS


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of the environment or of another test reaches this one, and errors of ours are raised."""
    for name in list(os.environ):
        if name.startswith(_PREFIXES) or name in _NAMES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_GOODPUT_STRICT", "1")
    # Processes that a test starts find the package where this one has it.
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    if "jax" in sys.modules and request.node.get_closest_marker("jax") is None:
        # Another test in this process has put it to use; this one's steps are the host's all the same.
        monkeypatch.setattr("otel_goodput._integrations.markers.jax_started", lambda: False)
    token = context.attach(context.Context())
    yield
    context.detach(token)
    default = sys.modules.get("otel_goodput.api")
    if default is not None:
        default.shutdown()
        default._recorder = None
    orbax = sys.modules.get("otel_goodput._integrations.orbax")
    assert orbax is None or not orbax._hooks, "a recorder that a test left open sees what others save"
    guard = sys.modules.get("otel_goodput._runtime.guard")
    if guard is not None:
        guard.contained.clear()


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    """A URL of its own in fsspec's memory."""
    import fsspec

    name = f"memory://{request.node.originalname}"
    yield name
    memory = fsspec.filesystem("memory")
    if memory.exists(name):
        memory.rm(name, recursive=True)
