"""Hostile journals and environments from a seed: ``python tests/journal/fuzz.py --cases 1000``.

Each case spoils one or a few of a run's files, or variables, and does all that is done with them: the account of the
latest moment and of a window, and now and then a whole attempt. It must not raise, not take longer than the deadline,
and the process that runs all the cases must stay small. A case can be had again alone (``--only N``).

Longer than other files: a case is had again with this file alone.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a program

from otel_goodput import Recorder
from otel_goodput._accounting import events as ev
from otel_goodput._journal import digest, notes, records, state_file
from otel_goodput._journal.digest import TABLES
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import CHECK, checked_json
from otel_goodput._journal.usage import Machine, Usage, UsageSheet
from otel_goodput._runtime.guard import contained
from otel_goodput._settings import config as configuration
from otel_goodput._settings import placement
from otel_goodput._settings.options import ENVVARS
from otel_goodput._timeline import recovery
from otel_goodput._timeline.recovery import restore
from otel_goodput._viewer.document import document
from otel_goodput.errors import GoodputError
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView
from otel_goodput.runs import open_runs

NS = 1_000_000_000
DEADLINE_S = 20.0
PART = 500  # cases in one process
MEMORY = 200 * 2**20  # bytes
WHOLE_ATTEMPT = 12  # one case in so many
SHOWN = 6  # the same, for the page
NUMBERS = (0, 1, -1, 2**7, 2**15, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, -(2**63), 10**18)
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 1e308, float("inf"), float("nan"), 10**30, -(10**400), "", "x", "\udcff", "\x00", "é" * 999,
    [], {}, [[]], [None], {"a": {"a": []}}, [0] * 999, "9" * 5000,
)  # fmt: skip
TEXTS = (
    "", " ", "0", "-1", "1e999", "nan", "9" * 400, "\udcff\udc80", "a,b,,c", "1h,1h,", "://", "http://[", "%",
    "\x1b[2J", "None", "[]", '{"a":', "x" * 100_000, "1h30m", "-5s", "99999999999999h", "leader", "own",
    "auto", "1,2,3", "=", "٣",
)  # fmt: skip
# These lead elsewhere: to folders and servers.
ELSEWHERE = ("OTEL_GOODPUT_DIR", "OTEL_GOODPUT_EXPORTERS", "OTEL_GOODPUT_INTEGRATIONS", "OTEL_GOODPUT_GCP_ENDPOINT")
VARIABLES = tuple(
    dict.fromkeys(
        (
            *(variable.name for variable in ENVVARS),
            "OTEL_SERVICE_NAME",
            *configuration.RUN_ID_SOURCES,
            *placement.NUMBERS,
            *placement.HOSTS,
            *configuration.RESTART_SOURCES,
        )
    )
)


class Failure(NamedTuple):
    """A case that went wrong: its number, what it had spoilt, and what came of it."""

    case: int
    spoilt: str
    what: str


class TooLong(BaseException):
    """The deadline is over."""


# --- a run to spoil ---------------------------------------------------------------------------------------------------


def template(place: Path) -> dict[str, bytes]:
    """The files of a run of three attempts, with all that a journal may have."""
    options: dict[str, Any] = {
        "run_id": "run", "directory": place, "exporters": "none", "integrations": "none", "process_index": 0,
        "process_count": 2, "flops_per_step": 1e12, "peak_flops": 1e15, "windows": ["1h", "24h", "1s"],
    }  # fmt: skip
    for attempt in range(3):
        recorder = Recorder("fuzz", **options)
        with recorder.job():
            for number in range(30):
                with recorder.step(attempt * 20 + number):
                    pass
            with recorder.custom("a name of more than one part of 24 bytes"), recorder.checkpoint_save(attempt * 20):
                pass
            recorder.slice_counts(1, 2, 2)
            with recorder.exclusion(), contextlib.suppress(ValueError), recorder.step(attempt * 20 + 5):
                raise ValueError
            with recorder.checkpoint_save(attempt * 20 + 5, durable=False), recorder.step(attempt * 20 + 6):
                pass
            recorder._account.notes.add("kind", "text", ["other"])
        recorder.shutdown()
    files = {}
    for path in sorted((place / "run").rglob("*")):
        if path.suffix in (".lock", ".updates") or not path.is_file():  # no record; the second comes when it comes
            continue
        data = path.read_bytes()
        if path.suffix == ".segment":
            data = data[: records.HEADER_SIZE + (records.used(data) + 40) * records.SIZE]
            if path.name.startswith("a0000"):
                path, data = path.with_name(path.name + ".gz"), gzip.compress(data)
        if data:
            files[str(path.relative_to(place / "run"))] = data
    sheet = UsageSheet(2, 0)
    sheet.add(Machine(4, 2**30, -1), Usage(time.time_ns(), NS, *[1] * (len(Usage._fields) - 2)))
    sheet.keep(RunDirectory(place / "run"), last=True)
    files["journal/a0002-p0000.usage"] = RunDirectory(place / "run").file("usage", 2, 0).read_bytes()
    statement = notes.statement(2, "maintenance", "restart", "alice", person=True, recorded_at=1.0)
    files["journal/disruptions.reasons"] = json.dumps({"format": 1, **statement.to_json()}).encode() + b"\n"
    files["journal/p0001.pace"] = files["journal/p0000.pace"]
    return files


# --- what is done to it -----------------------------------------------------------------------------------------------


def spoil_bytes(data: bytes, source: random.Random) -> bytes:
    """Some of it turned over, written over, cut out, put in, repeated, or cut off."""
    spoilt = bytearray(data)
    for _ in range(source.choice((1, 1, 1, 2, 5, 50))):
        at = source.randrange(len(spoilt) + 1)
        size = source.choice((1, 1, 2, 4, 8, 32, 500))
        kind = source.randrange(8)
        if kind == 0 and at < len(spoilt):
            spoilt[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            spoilt[at : at + size] = source.randbytes(size)
        elif kind == 2:
            del spoilt[at : at + size]
        elif kind == 3:
            spoilt[at:at] = source.randbytes(size)
        elif kind == 4:
            spoilt[at:at] = spoilt[source.randrange(len(spoilt) + 1) :][:4096]
        elif kind == 5:
            del spoilt[at:]
        elif kind == 6:
            spoilt[at : at + size] = bytes(size)
        else:
            number = source.choice(NUMBERS) & (1 << 64) - 1
            spoilt[at : at + 8] = number.to_bytes(8, "little")
    return bytes(spoilt)


def sound_record(source: random.Random) -> bytes:
    """A record with a checksum that is right, whatever else."""

    def number(bits: int) -> int:
        if source.random() < 0.5:
            return source.randrange(1 << min(bits, source.choice((1, 4, 16, 64))))
        return source.choice(NUMBERS) & (1 << bits) - 1

    def signed(bits: int = 64) -> int:
        moment = time.time_ns() + source.randrange(-(10**12), 10**12)
        return moment if source.random() < 0.6 else records.signed(number(bits))

    kind = source.choice((*records.KINDS, 2, 2, 2, 3, 3, 3, source.randrange(256)))
    phase = source.randrange(14) if source.random() < 0.9 else number(8)
    flags, name = source.choice((0, 1, 2, 4, 16, 256, number(16))), source.choice((0, 1, 2, number(16)))
    step = source.randrange(200) if source.random() < 0.7 else records.signed(number(64))
    key = source.choice((1, 2, 3, number(64)))
    return records.seal(records.BODY.pack(kind, phase, flags, name, key, step, signed()))


def spoil_segment(data: bytes, source: random.Random) -> bytes:
    """Bytes, or records of our own making between or in place of the rest; also in a header that is right."""
    if source.random() < 0.4:
        return spoil_bytes(data, source)
    head, body = bytearray(data[: records.HEADER_SIZE]), data[records.HEADER_SIZE :]
    made = [sound_record(source) for _ in range(source.choice((1, 3, 30, 300)))]
    if source.random() < 0.5:
        kept = [body[at : at + records.SIZE] for at in range(0, len(body), records.SIZE)]
        for record in made:
            kept.insert(source.randrange(len(kept) + 1), record)
        made = kept
    if source.random() < 0.2:
        beat = records.encode_heartbeat(source.choice(NUMBERS[:-2]), source.randrange(1 << 32))
        head[records.HEARTBEAT_AT : records.HEARTBEAT_AT + len(beat)] = beat
    if source.random() < 0.1:
        numbers = (source.choice(NUMBERS) & 0xFFFFFFFF for _ in range(3))
        head[:28] = records.encode_header(next(numbers), 0, next(numbers), next(numbers))[:28]
    return bytes(head) + b"".join(made)


def spoil_json(value: Any, source: random.Random) -> Any:
    """Something else in the place of one thing in it."""
    holder, name, inner = None, None, value
    while isinstance(inner, (dict, list)) and inner and (holder is None or source.random() < 0.85):
        holder = inner
        name = source.choice(list(inner)) if isinstance(inner, dict) else source.randrange(len(inner))
        inner = inner[name]
    odd = deepcopy(source.choice((*ODD, *NUMBERS)))
    if holder is None:
        return odd
    if source.random() < 0.2:
        del holder[name]
    else:
        holder[name] = odd
    return value


def spoil_small(data: bytes, source: random.Random) -> bytes:
    """A small file of JSON."""
    draw = source.random()
    if draw < 0.3:
        return spoil_bytes(data, source)
    if draw < 0.4:
        return source.choice((b"[", b'{"a":', b'{"run_id":')) * source.choice((1, 1000, 50_000))
    content: Any = json.loads(data)
    content.pop(CHECK)
    for _ in range(source.choice((1, 1, 3))):
        content = spoil_json(content, source) if isinstance(content, (dict, list)) else content
    return checked_json(content) if isinstance(content, dict) else json.dumps(content).encode()


def spoil_lines(data: bytes, source: random.Random) -> bytes:
    """A file with a JSON object a line."""
    if source.random() < 0.3:
        return spoil_bytes(data, source)
    return b"".join(json.dumps(spoil_json(json.loads(line), source)).encode() + b"\n" for line in data.splitlines())


def spoil_digest(data: bytes, source: random.Random) -> bytes:
    """Bytes; or numbers in its tables, or what its head says, with a checksum that is right."""
    if source.random() < 0.3:
        return spoil_bytes(data, source)
    head: Any
    head, data = state_file.opened(data, digest.FORM)
    at, tables = 0, {}
    for name, table in TABLES.items():
        count, taken = head["tables"][name]
        tables[name] = digest.rows_of(data[at : at + taken], count, table.width)
        at += taken
    if source.random() < 0.5:
        rows = tables[source.choice([name for name in tables if tables[name]])]
        for _ in range(source.choice((1, 1, 5))):
            place = source.randrange(len(rows))
            numbers = list(rows[place])
            numbers[source.randrange(len(numbers))] = source.choice((*NUMBERS, -(2**63), source.randrange(2000)))
            rows[place] = tuple(numbers)
    packed = {name: digest.pack(rows) for name, rows in tables.items()}
    head["tables"] = {name: [len(tables[name]), len(packed[name])] for name in tables}
    if source.random() < 0.6:
        head = spoil_json(head, source)
    return b"".join(state_file.pieces(digest.FORM, json.dumps(head).encode(), list(packed.values())))


def spoil_snapshot(data: bytes, source: random.Random) -> bytes:
    """Bytes; or what it says, with a checksum that is right."""
    if source.random() < 0.3:
        return spoil_bytes(data, source)
    head, blobs = state_file.opened(data, recovery.FORM)
    content: Any = head
    for _ in range(source.choice((1, 1, 2, 10))):
        content = spoil_json(content, source) if isinstance(content, (dict, list)) else content
    text = json.dumps(content).encode()
    if source.random() < 0.1:
        text = spoil_bytes(text, source)
    blobs = blobs if source.random() < 0.9 else source.randbytes(99)
    return b"".join(state_file.pieces(recovery.FORM, text, [blobs]))


def spoil_packed(data: bytes, source: random.Random) -> bytes:
    """A segment that was put away: what is in it, or its packing."""
    if source.random() < 0.5:
        return spoil_bytes(data, source)
    return gzip.compress(spoil_segment(gzip.decompress(data), source), 1)


SPOILERS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".segment": spoil_segment,
    ".gz": spoil_packed,
    ".snapshot": spoil_snapshot,
    ".json": spoil_small,
    ".pace": spoil_small,
    ".notes": spoil_small,
    ".facts": spoil_small,
    ".usage": spoil_small,
    ".reasons": spoil_lines,
    ".digest": spoil_digest,
}


def strange_name(source: random.Random) -> str:
    """Of a file that may stand in a journal."""
    attempt, process, number = (str(source.choice((0, 1, 7, 999999999, 2**32, 10**30))) for _ in range(3))
    return "journal/" + source.choice(
        (
            f"a{attempt:0>4}-p{process:0>4}-{number:0>6}.segment",
            f"a{attempt:0>4}-p0000-{number:0>6}.segment",
            f"a{attempt:0>4}-p0000-{number:0>6}.segment.gz",
            f"p{process:0>4}.pace",
            f"p{process:0>4}.snapshot",
            f"a{attempt:0>4}-p0000.recovered",
            "p0000.notes.part",
            "\x1b[2J.segment",
        )
    )


def environment(source: random.Random) -> dict[str, str]:
    """Variables with anything in them."""
    chosen = source.sample(VARIABLES, source.randrange(1, 6))

    def text() -> str:
        draw = source.random()
        if draw < 0.5:
            return source.choice(TEXTS)
        if draw < 0.75:
            return os.fsdecode(source.randbytes(source.randrange(12)))
        return str(source.choice((*NUMBERS, source.random() * 10.0 ** source.randrange(-300, 300))))

    return {name: text() for name in chosen}


# --- a case -----------------------------------------------------------------------------------------------------------


def read_all(run: RunDirectory) -> None:
    """What a restart and the commands do with a run."""
    restore(run, 0, [3600 * NS, 86_400 * NS])
    for ask in (run.created_at, run.began, run.called, lambda: list(run.spoilt(0))):
        ask()
    for questions in ({}, {"windows": [(ev.NO_STEP, 2**62), (time.time_ns() - 10**12, time.time_ns())]}):
        with contextlib.suppress(GoodputError):
            report = RecordedRun(run).report(**questions)  # type: ignore[arg-type]
            json.dumps(report.to_json())
            str(report)


def show_all(run: RunDirectory) -> None:
    """What the page and `open_run` do with it."""
    with contextlib.suppress(GoodputError):
        document(RunView.open(RecordedRun(run)))
    with contextlib.suppress(GoodputError):
        for opened in open_runs(run.path.parent):
            str(opened.report())
            list(opened.steps())
            list(opened.phases())


def attempt(base: Path) -> None:
    """A whole attempt that goes on with the run."""
    recorder = Recorder(
        "fuzz", run_id="run", directory=base, exporters="none", integrations="none", process_index=0, process_count=2,
        windows=["1h", "24h"],
    )  # fmt: skip
    with recorder.job(), recorder.step(1000):
        pass
    recorder.report().to_json()
    recorder.shutdown()
    if not recorder.closed:
        raise AssertionError("it is not closed")


def run_case(number: int, seed: str, files: dict[str, bytes], base: Path) -> str:
    """One case; returns what it spoilt. Raises whatever goes wrong."""
    source = random.Random(f"{seed}:{number}")
    if number % 4 == 3:
        variables = {name: text.replace("\0", "") for name, text in environment(source).items()}
        description = f"environment {variables!r}"[:300]
        with marked(description):
            configuration.read(environ=variables)
            if number % 20 == 3:
                elsewhere = {name: text for name, text in variables.items() if name not in ELSEWHERE}
                with changed(elsewhere):
                    configuration.read("fuzz", directory=base / "of environments")
                    recorder = Recorder(
                        None, directory=base / "e", exporters="none", integrations="none", grace_period=2
                    )  # fmt: skip
                    with recorder.job(), recorder.step(1):
                        pass
                    recorder.shutdown()
                shutil.rmtree(base / "e", ignore_errors=True)
        return description
    chosen = source.sample(sorted(files), source.choice((1, 1, 1, 2, 3)))
    spoilt = {name: SPOILERS[Path(name).suffix](files[name], source) for name in chosen}
    if source.random() < 0.15:
        spoilt[strange_name(source)] = source.choice((b"", source.randbytes(200), *files.values()))
    if source.random() < 0.1:
        del spoilt[chosen[0]]
        gone = [chosen[0]]
    else:
        gone = []
    folder = base / "run"
    for name, data in spoilt.items():
        with contextlib.suppress(OSError):  # a name that no file can have
            (folder / name).write_bytes(data)
    for name in gone:
        (folder / name).unlink()
    description = ", ".join((*spoilt, *(f"no {name}" for name in gone)))
    with marked(description):
        read_all(RunDirectory(folder))
        if number % SHOWN == 0:
            show_all(RunDirectory(folder))
        if number % WHOLE_ATTEMPT == 0:
            attempt(base)
    return description


_now = ""
_in_threads: list[str] = []


@contextlib.contextmanager
def marked(description: str) -> Iterator[None]:
    global _now
    _now = description
    yield


@contextlib.contextmanager
def changed(variables: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def lay_out(files: dict[str, bytes], base: Path) -> None:
    """The run as it was, and nothing else."""
    shutil.rmtree(base, ignore_errors=True)
    for name, data in files.items():
        (base / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (base / "run" / name).write_bytes(data)


def peak() -> int:
    """The most memory that this process has had, bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _too_long(*_: object) -> None:
    raise TooLong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int, default=None)
    parser.add_argument("--seed", default="otel_goodput")
    options = parser.parse_args()
    answer = in_parts(options) if options.only is None and options.cases > PART else in_one(options)
    print(json.dumps(answer, indent=1))
    return 1 if answer["failures"] or answer["peak_bytes"] > MEMORY else 0


def in_parts(options: argparse.Namespace) -> dict[str, Any]:
    """So many cases in a process: what a recorder leaves in one that has ended is no matter here."""
    together: dict[str, Any] = {"cases": 0, "seed": options.seed, "failures": [], "slowest_s": 0.0, "peak_bytes": 0}
    for first in range(options.first, options.first + options.cases, PART):
        cases = min(PART, options.first + options.cases - first)
        numbers = ["--first", str(first), "--cases", str(cases)]
        command = [sys.executable, __file__, *numbers, "--seed", options.seed]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.stdout:
            together["failures"].append(Failure(first, "a part", done.stderr[-2000:])._asdict())
            continue
        one = json.loads(done.stdout)
        for name in ("cases", "failures"):
            together[name] += one[name]
        for name in ("slowest_s", "peak_bytes"):
            together[name] = max(together[name], one[name])
    return together


def in_one(options: argparse.Namespace) -> dict[str, Any]:
    """All cases in this process."""
    logging.disable(logging.CRITICAL)
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]
    # So that what is contained is raised, in whatever thread.
    os.environ["OTEL_GOODPUT_STRICT"] = "1"
    threading.excepthook = lambda args: _in_threads.append(repr(args.exc_value))
    signal.signal(signal.SIGALRM, _too_long)
    failures: list[Failure] = []
    slowest = 0.0
    with tempfile.TemporaryDirectory() as place:
        files = template(Path(place) / "template")
        base = Path(place) / "runs"
        numbers = [options.only] if options.only is not None else range(options.first, options.first + options.cases)
        for number in numbers:
            lay_out(files, base)
            contained.clear()
            begin = time.monotonic()
            try:
                signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
                run_case(number, options.seed, files, base)
                signal.setitimer(signal.ITIMER_REAL, 0)
                if _in_threads:
                    failures.append(Failure(number, _now, _in_threads.pop()))
            except TooLong:
                failures.append(Failure(number, _now, "it hangs:\n" + traceback.format_exc(limit=-4)))
            except Exception:
                failures.append(Failure(number, _now, traceback.format_exc(limit=-4)))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            slowest = max(slowest, time.monotonic() - begin)
    return {
        "cases": len(numbers),
        "seed": options.seed,
        "failures": [failure._asdict() for failure in failures],
        "slowest_s": round(slowest, 3),
        "peak_bytes": peak(),
    }


if __name__ == "__main__":
    sys.exit(main())
