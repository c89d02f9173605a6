"""Checks a job whose ranks share no folder, on hosts with clocks of their own, through the store of a real runtime.

The leader is stopped, goes on, and is killed. Meanwhile a deputy publishes the metrics of the job. With arguments this
is one of the ranks: LIBRARY RANK PORT FOLDER. The ranks meet in each step, by files in FOLDER, so that any of them can
be stopped or killed. The process that serves the store is never stopped: with jax it is the last rank, which is process
0 of jax; with torch, whoever starts the ranks.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAME = "everyday.far_ranks"
COUNT = 3
SLOW = 2  # the rank with the slow loader,
SLOW_S = 0.03
APART_S = 600.0  # each clock is ahead of that of the rank before
SILENT_S = 3.0
PATIENCE_S = 120.0

Figures = dict[str, list[tuple[dict[str, Any], float]]]
Start = Callable[[Sequence[str], Mapping[str, str], int], Any]  # command, environment, where errors go to


def started(command: Sequence[str], environment: Mapping[str, str], errors: int) -> Any:
    """Start a process that is asked by its stdin, and answers on its stdout."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=errors)


class FarRanks:
    """The ranks of one job."""

    def __init__(self, library: str, port: int, folder: Path, start: Start = started) -> None:
        self.folder, self._library, self._port, self._start = folder, library, port, start
        self.meet(*range(COUNT))
        self.processes = [self._started(rank) for rank in range(COUNT)]
        self._buffers = [b""] * COUNT

    def _started(self, rank: int) -> Any:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
            "JAX_PLATFORMS": "cpu",
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "WORLD_SIZE": str(COUNT),
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
        }
        command = [sys.executable, "-m", NAME, self._library, str(rank), str(self._port), str(self.folder)]
        with (self.folder / f"errors-{rank}").open("ab") as errors:
            return self._start(command, environment, errors.fileno())

    def errors(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in sorted(self.folder.glob("errors-*")))

    def meet(self, *members: int) -> None:
        """Have these ranks meet from now on."""
        _write(self.folder / "members", json.dumps(members))

    def answer_of(self, rank: int, question: str) -> Any:
        """Return the answer of a rank."""
        process = self.processes[rank]
        process.stdin.write(question.encode() + b"\n")
        process.stdin.flush()
        until = time.monotonic() + PATIENCE_S
        while True:
            line, newline, rest = self._buffers[rank].partition(b"\n")
            if newline:
                self._buffers[rank] = rest
                if line.startswith(b"answer "):  # Gloo talks there too
                    return json.loads(line.removeprefix(b"answer "))
                continue
            if not select.select([process.stdout], [], [], max(until - time.monotonic(), 0.0))[0]:
                raise TimeoutError(f"rank {rank} does not answer: {self.errors()}")
            if not (data := os.read(process.stdout.fileno(), 1 << 20)):
                raise EOFError(f"rank {rank} has ended: {self.errors()}")
            self._buffers[rank] += data

    def metrics(self, rank: int) -> Figures:
        """Return what a rank publishes now."""
        figures: Figures = self.answer_of(rank, "metrics")
        return figures

    def until(self, condition: Callable[[], Any], what: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"{what}: {self.errors()}")
            time.sleep(0.05)

    def signal(self, rank: int, number: int) -> None:
        self.processes[rank].send_signal(number)
        if number == signal.SIGKILL:
            self.processes[rank].wait(30)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def total(figures: Figures, name: str = "goodput.time") -> float:
    return sum(value for _, value in figures.get(name, ()))


def steps(figures: Figures) -> float:
    return total(figures, "goodput.step.count")


def waits(figures: Figures) -> Mapping[tuple[int, str], float]:
    points = [one for one in figures.get("goodput.rank.wait.time", ()) if one[0]["goodput.rank"] != "other"]
    return {(int(one["goodput.rank"]), one["goodput.category"]): value for one, value in points}


def story(ranks: FarRanks) -> Iterator[str]:
    """Stop, continue and kill the leader; yield what is wrong."""
    ranks.until(lambda: steps(ranks.metrics(0)) > 60, "the account of the job on the leader")
    began = time.monotonic() - total(ranks.metrics(0))
    yield from _clocks(ranks)
    if (silent := [ranks.metrics(rank) for rank in (1, 2)]) != [{}, {}]:
        yield f"others than the leader publish: {silent}"
    before = ranks.metrics(0)

    ranks.signal(0, signal.SIGSTOP)  # the others wait for it in their steps
    ranks.until(lambda: total(ranks.metrics(1)) > total(before) + 1, "a deputy")
    during = ranks.metrics(1)
    yield from _wrong("the deputy", during, steps(before), time.monotonic() - began)
    ranks.until(lambda: total(ranks.metrics(1)) > total(during) + 0.5, "time goes on for the deputy")
    if ranks.metrics(2):
        yield "two deputies"
    ranks.signal(0, signal.SIGCONT)
    while figures := ranks.metrics(1):
        during = figures
    ranks.until(lambda: steps(ranks.metrics(0)) > steps(during) + 60, "the leader goes on")
    before = ranks.metrics(0)
    yield from _wrong("the leader", before, steps(during), time.monotonic() - began)

    ranks.signal(0, signal.SIGKILL)
    ranks.meet(1, 2)  # as a program does that goes on without it
    ranks.until(lambda: steps(ranks.metrics(1)) > steps(before) + 60, "the deputy of a leader that was killed")
    during = ranks.metrics(1)
    yield from _wrong("the deputy of the dead", during, steps(before), time.monotonic() - began)
    most = max(waits(during).items(), key=lambda one: one[1], default=((-1, ""), 0.0))
    if most[0] != (SLOW, "data_loading") or most[1] < 60 * SLOW_S / 2:
        yield f"the job waited for {waits(during)}: {during}"
    yield from _exports(ranks.folder)


def _clocks(ranks: FarRanks) -> Iterator[str]:
    """Yield what is wrong with the clocks that were measured, and with who is accused."""
    report = ranks.answer_of(0, "report")
    clocks = {one["rank"]: (one["ahead"], one["bound"]) for one in report["ranks"]["clocks"]}
    print(f"{ranks._library}: clocks ahead by, within, s: {clocks}", file=sys.stderr)
    for rank in range(1, COUNT):
        ahead, bound = clocks.get(rank, (0.0, 0.0))
        if not abs(ahead - rank * APART_S) <= bound < 0.1:
            yield f"the clock of rank {rank} is {ahead} s ahead, within {bound}"
    if not report["ranks"]["together"] or report["ranks"]["waits"][0]["rank"] != SLOW:
        yield f"the report says {report['ranks']}"


def _wrong(who: str, figures: Figures, least: float, elapsed: float) -> Iterator[str]:
    """Yield in what the figures of a job are wrong that goes on for `elapsed` s and has made so many steps."""
    if not -1 < elapsed - total(figures) < 2:
        yield f"{who}: {total(figures):.1f} s of {elapsed:.1f}"
    if steps(figures) < least:
        yield f"{who}: {steps(figures)} steps, after {least}"
    [ratio] = [value for one, value in figures["goodput.ratio"] if one["goodput.window"] == "run"]
    seconds = {one["goodput.category"]: value for one, value in figures["goodput.time"]}
    productive = seconds["productive"]
    if seconds["data_loading"] < 0.8 * steps(figures) * SLOW_S:  # the others have it in their steps
        yield f"{who}: {seconds}"
    if abs(ratio - productive / total(figures)) > 1e-6:
        yield f"{who}: goodput {ratio}, of {figures['goodput.time']}"
    if disruptions := total(figures, "goodput.disruptions"):
        yield f"{who}: {disruptions} disruptions"


def _exports(folder: Path) -> Iterator[str]:
    """Yield what is wrong with the resources of what was exported to files."""
    for rank in range(COUNT):
        publishers = set()
        for path in folder.glob(f"of-{rank}/run/metrics-*.jsonl"):
            for line in path.read_text().splitlines():
                with suppress(ValueError):  # the last one may be torn
                    for one in json.loads(line)["resourceMetrics"]:
                        resource = {each["key"]: each["value"] for each in one["resource"]["attributes"]}
                        publishers.add(resource.get("goodput.publisher", {}).get("intValue"))
        if publishers != ({None}, {"1"}, set())[rank]:
            yield f"rank {rank} exported as {publishers}"


@contextmanager
def served(library: str) -> Iterator[int]:
    """Yield a port, for torch one where the store of the ranks is served."""
    if library == "torch":
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        yield store.port
        del store
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    yield port


def check(libraries: Sequence[str] = ("torch",)) -> str:
    """Run the ranks; returns "as by one leader", or what is wrong."""
    results = []
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            return f"not compared: {library} is not installed"
        with tempfile.TemporaryDirectory() as folder, served(library) as port:
            ranks = FarRanks(library, port, Path(folder))
            try:
                results += [f"{library}: {wrong}" for wrong in story(ranks)]
            except (TimeoutError, EOFError) as error:
                results.append(f"{library}: {error}")
            finally:
                ranks.stop()
    return "; ".join(results) or "as by one leader"


# --- one of the ranks -------------------------------------------------------------------------------------------------


def _write(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}-{os.getpid()}")
    new.write_text(text)
    new.rename(path)


def _joined(library: str, rank: int, port: int) -> None:
    if library == "jax":
        import jax

        jax.distributed.initialize(f"127.0.0.1:{port}", COUNT, COUNT - 1 - rank)
        return
    import torch.distributed

    store = torch.distributed.TCPStore("127.0.0.1", port, COUNT, False)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=COUNT)


def main() -> None:
    library, rank, port, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    real = time.time_ns
    time.time_ns = lambda: real() + round(rank * APART_S * 1e9)
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    import otel_goodput as goodput
    from otel_goodput._live import clock_exchange, deputy, handover, ranks

    deputy.SILENT_S, ranks.EVERY_S, ranks.FIRST_S = SILENT_S, 0.2, 0.05  # type: ignore[misc]
    clock_exchange._SELDOM_S, clock_exchange.LOOK_S, handover.EVERY_S = (0.05, 0.2), 0.1, 0.5  # type: ignore[misc]
    boot = clock_exchange._BOOT = folder / f"boot-{rank}"  # type: ignore[misc]
    boot.write_text(boot.name)
    _joined(library, rank, port)
    reader = InMemoryMetricReader()
    goodput.configure(
        "far",
        run_id="run",
        directory=folder / f"of-{rank}",
        exporters="file",
        metric_readers=[reader],
        process_index=rank,
        process_count=COUNT,
    )
    threading.Thread(target=_answer, args=(reader,), daemon=True).start()
    with goodput.job():
        number = 0
        while True:
            with goodput.data_loading():
                time.sleep(SLOW_S if rank == SLOW else 0.002)
            with goodput.step(number):
                _write(folder / f"at-{rank}", str(number))
                while not all(_reached(folder, other) >= number for other in _members(folder)):
                    time.sleep(0.002)
            number = max(number + 1, *(_reached(folder, other) for other in _members(folder)))


def _members(folder: Path) -> list[int]:
    members: list[int] = json.loads((folder / "members").read_text())
    return members


def _reached(folder: Path, rank: int) -> int:
    path = folder / f"at-{rank}"
    return int(path.read_text()) if path.exists() else -1


def _answer(reader: Any) -> None:
    import otel_goodput as goodput

    def metrics() -> Figures:
        data = reader.get_metrics_data()
        scopes = [] if data is None else [scope for one in data.resource_metrics for scope in one.scope_metrics]
        return {
            metric.name: [(dict(point.attributes), point.value) for point in metric.data.data_points]
            for metric in (metric for scope in scopes for metric in scope.metrics)
            if hasattr(metric.data.data_points[0], "value")
        }

    def report() -> Any:
        while (now := goodput.report()) is None or now.ranks is None:
            time.sleep(0.01)
        return now.to_json()

    for line in sys.stdin:
        answer = metrics() if line.strip() == "metrics" else report()
        print("answer " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main() if len(sys.argv) == 5 else print(check(sys.argv[1:] or ("torch",)))
