"""A fleet: processes of one run, a sidecar beside each, a gateway behind them; and what of their spans must arrive.

As a program it is one of the processes. It tells ``["ready", null]``, waits for a line, trains on a clock of its own,
and tells ``["over", …]``, its own account, when the recorder has stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import warm
from crash.exported import Span, read_spans
from emulators.google import GoogleEmulator
from exporters.google.arrivals import otlp_span
from exporters.google.jobs import inherited
from exporters.google.training import Account, account, tell
from ports import kept_address
from waits import PATIENCE_S

import otel_goodput as goodput
from otel_goodput import semconv

from . import span_only
from .collector import CONFIGS, OVERLAYS, Collector
from .span_only import Json, attributes

TESTS = Path(__file__).parents[1]
RUN = "fleet"
MS = 10**6
SALT = b"otel_goodput"  # of gateway.yaml
GRPC, HTTP = (f"receivers::otlp::protocols::{each}::endpoint" for each in ("grpc", "http"))
HEALTH = "extensions::health_check::endpoint"
# Decisions come soon: what a test sends at once is there within a second.
DECISION_S = 3


# --- one of the processes ---------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """What a process does: how many steps of 1 s, and in which of them something is worth seeing."""

    process: int
    processes: int
    traces: str = "own"
    steps: int = 120
    slow: Sequence[int] = ()  # 5 s
    failed: Sequence[int] = ()
    compiling: Sequence[int] = ()


def train(plan: Plan) -> None:
    recorder = goodput.configure(
        "llama", run_id=RUN, exporters=["otlp", "file"], integrations="none", step_sampling=1, step_traces=plan.traces,
        process_index=plan.process, process_count=plan.processes, processes="all", leader=plan.process,
    )  # fmt: skip
    tell("ready")
    sys.stdin.readline()
    tracer = recorder.tracer_provider.get_tracer("model")
    second = 1000 * MS
    now = time.time_ns() - 600 * second
    with goodput.job(start_time=now):
        with goodput.training_prep(start_time=now, end_time=now + second):
            now += second
        for number in range(plan.steps):
            with goodput.data_loading(start_time=now, end_time=now + 10 * MS):
                now += 10 * MS
            end = now + (5 if number in plan.slow else 1) * second
            try:
                with goodput.step(number, start_time=now, end_time=end):
                    forward = tracer.start_span("forward", start_time=now)
                    forward.end(now + 300 * MS)
                    if number in plan.compiling:
                        about = {semconv.GOODPUT_PHASE: semconv.Phase.COMPILE, semconv.GOODPUT_STEP: number}
                        tracer.start_span("compile", attributes=about, start_time=now).end(now + 200 * MS)
                    if number in plan.failed:
                        raise ArithmeticError("loss is NaN")
            except ArithmeticError:
                pass
            now = end
        with goodput.checkpoint_save(plan.steps - 1, start_time=now, end_time=now + second):
            pass
    goodput.shutdown()
    tell("over", account(recorder.totals(), 0))


class Process:
    """One of the processes of a run, telling a collector at an OTLP address; a context manager."""

    def __init__(self, directory: Path, address: str, plan: Plan) -> None:
        self._plan = plan
        environ = {
            **inherited(),
            "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ['PYTHONPATH']}",
            "OTEL_GOODPUT_DIR": str(directory),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{address}",
        }
        self._process = warm.Process(
            [sys.executable, "-m", "otelcol.fleet", json.dumps(plan)],
            env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            extras=True,
        )  # fmt: skip

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ready(self) -> None:
        self._hear("ready")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> Account:
        """Its own account, once it has ended."""
        account: Account = self._hear("over")
        assert self._process.wait(PATIENCE_S) == 0
        return account

    def _hear(self, word: str) -> Any:
        assert self._process.stdout is not None
        answer, value = json.loads(self._process.stdout.readline() or f'["nothing, in {self._plan}", null]')
        assert answer == word
        return value


def run(directory: Path, addresses: Sequence[str], plans: Iterable[Plan]) -> tuple[list[Account], list[Span]]:
    """Processes that train at the same time, each with its collector: their accounts, and their spans as they were."""
    with ExitStack() as exits:
        begun = (Process(directory, *each) for each in zip(addresses, plans, strict=True))
        processes = [exits.enter_context(each) for each in begun]
        for each in processes:
            each.ready()
        for each in processes:
            each.go()
        accounts = [each.end() for each in processes]
    return accounts, read_spans(directory / RUN)


# --- a client without our library -------------------------------------------------------------------------------------


class Sent(NamedTuple):
    """A span of a client of another kind; times in ms from the epoch, attributes of strings, ints and bools."""

    trace: int
    key: int
    name: str = "step"
    start: int = 0
    length: int = 1000
    parent: int = 0
    failed: bool = False
    attributes: Mapping[str, str | bool | int] = {"goodput.phase": "step"}

    @property
    def identity(self) -> tuple[str, str]:
        return f"{self.trace:032x}", f"{self.key:016x}"

    def json(self, now: int) -> Json:
        start = now + self.start * MS
        return {
            "traceId": self.identity[0],
            "spanId": self.identity[1],
            "parentSpanId": f"{self.parent:016x}" if self.parent else "",
            "name": self.name,
            "kind": 1,
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(start + self.length * MS),
            "attributes": attributes(dict(self.attributes)),
            "status": {"code": 2} if self.failed else {},
        }


def send(address: str, spans: Iterable[Sent], client: str = "elsewhere") -> None:
    """One request of OTLP over HTTP."""
    now = time.time_ns() - 600 * 1000 * MS
    about = {"service.name": "stock", "service.instance.id": client}
    span_only.send(address, about, *(each.json(now) for each in spans))


# --- collectors -------------------------------------------------------------------------------------------------------


def gateway(
    directory: Path,
    google: GoogleEmulator,
    *,
    decision_s: int = DECISION_S,
    routine: float = 0,
    traces: int = 20_000,
    address: str | None = None,
) -> Collector:
    """A gateway that decides after so many seconds, has so many traces in memory and keeps so many percent of routine
    steps; not started. It takes steps of 4 s for slow.
    """
    environ = {
        "GOOGLE_EMULATOR": google.endpoint.removeprefix("http://"),
        "OTELCOL_GOODPUT_ROUTINE_PERCENT": str(routine),
        "OTELCOL_GOODPUT_SLOW_STEP_MS": "4000",
    }
    settings = [
        f"processors::tail_sampling::decision_wait: {decision_s}s",
        f"processors::tail_sampling::num_traces: {traces}",
        *QUICK,
    ]
    return _collector(directory, "gateway.yaml", environ, settings, {GRPC: address} if address else {})


def sidecar(directory: Path, google: GoogleEmulator, *gateways: str, patience_s: int = 15) -> Collector:
    """A sidecar that knows gateways at these addresses, one by its name, none by the name that it has by itself; not
    started. After `patience_s` it looks again for where to send a request.
    """
    environ = {"GOOGLE_EMULATOR": google.endpoint.removeprefix("http://")}
    settings = [
        f"exporters::load_balancing::protocol::otlp::retry_on_failure::max_elapsed_time: {patience_s}s",
        "exporters::load_balancing::retry_on_failure::max_interval: 1s",
        NO_CLOUD,
        *QUICK,
    ]
    if len(gateways) == 1:
        environ |= dict(
            zip(("OTELCOL_GOODPUT_GATEWAY", "OTELCOL_GOODPUT_GATEWAY_PORT"), gateways[0].split(":"), strict=True)
        )
    elif gateways:
        resolver = "exporters::load_balancing::resolver"
        settings += [f"{resolver}::dns: null", f"{resolver}::static::hostnames: [{', '.join(gateways)}]"]
    return _collector(directory, "fleet-sidecar.yaml", environ, settings, {})


def _collector(
    directory: Path, config: str, environ: Mapping[str, str], settings: Sequence[str], given: Mapping[str, str]
) -> Collector:
    addresses = {place: kept_address() for place in (GRPC, HTTP, HEALTH)} | {**given}
    return Collector(
        directory, CONFIGS / config, OVERLAYS / "emulator.yaml", environ=environ, settings=settings, addresses=addresses
    )


# Where no metadata server answers, each pipeline asks for five seconds before the collector is there.
NO_CLOUD = "processors::resource_detection::detectors: [env]"
# An outage is over as soon as a test has ended it.
QUICK = ["exporters::otlp_grpc/google::retry_on_failure::max_interval: 1s"]


def start(exits: ExitStack, *collectors: Collector) -> None:
    """Start them at the same time."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(exits.enter_context, collectors))


# --- what must arrive -------------------------------------------------------------------------------------------------


def worth_seeing(span: Span) -> bool:
    """Whether a span of our library's is kept with all of its trace."""
    about = span.attributes
    return (
        about.get(semconv.GOODPUT_PHASE, "step") not in ("step", "data_loading")
        or span.status == 2
        or bool(about.get(semconv.GOODPUT_STEP_OUTLIER))
        or about.get(semconv.GOODPUT_STEP_COMPLETED) is False
    )


def drawn(trace: str, percent: float) -> bool:
    """Whether the gateway's share of routine steps has this trace: 64-bit FNV-1a of salt and id is low enough."""
    value = 0xCBF29CE484222325
    for byte in SALT + bytes.fromhex(trace):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value <= percent / 100 * 2**64


def arrived(google: GoogleEmulator) -> list[Span]:
    """The spans that have arrived, without their resources."""
    return [otlp_span(span, {}) for span in list(google.otlp_spans)]


def identities(google: GoogleEmulator) -> Counter[tuple[str, str]]:
    """Trace and id of the spans that have arrived."""
    return Counter((span.trace, span.key) for span in arrived(google))


if __name__ == "__main__":
    train(Plan(*json.loads(sys.argv[1])))
