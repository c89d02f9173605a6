"""Profiles of real threads: when they are taken, how long, what is left of them, and what they cost."""

from __future__ import annotations

import ctypes
import json
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import waits
from recorded import Record, attributes

import otel_goodput as goodput
from otel_goodput import Recorder, semconv
from otel_goodput._incidents import profiler as module
from otel_goodput._incidents.profiler import REQUEST, Profiler
from otel_goodput._journal import profiles, requests
from otel_goodput._journal.profiles import HELD, Function, Grown, Profile, read_profile, write_profile
from otel_goodput._journal.requests import DONE, REFUSED
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json
from otel_goodput._tools import cli


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles take less than usual."""
    lengths = {"SAMPLED_S": 0.1, "EACH_S": 0.005, "WARM_S": 0.0, "LATER_S": (0.001, 0.005)}
    for name, value in {**lengths, "WARM_STEPS": 2, "BASELINE_SAMPLES": 60, "SAMPLES": 5}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(requests, "LOOK_S", 0.0)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    run.create({})
    return run


def slow_sleep() -> None:
    time.sleep(0.008)


def slow_loop() -> None:  # so much work, and not so much time: on a busy machine that would pass while it waits
    number = 0
    while number < 200_000:
        number += 1


def slow_regex() -> None:
    for _ in range(20):
        re.search("(a+)+c", "a" * 12)


def slow_call() -> None:
    LIBC.usleep(8000)


LIBC = ctypes.CDLL(None)
SLOW = (slow_sleep, slow_loop, slow_regex, slow_call)


class Loop:
    """A thread that does steps of 2 ms, and `extra` in each."""

    def __init__(self) -> None:
        self.step = -1
        self.extra: Callable[[], None] = lambda: None
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._train)
        self.thread.start()

    def _train(self) -> None:
        while not self._over.is_set():
            self.step += 1
            time.sleep(0.002)
            self.extra()

    def close(self) -> None:
        self._over.set()
        self.thread.join()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def profiler_of(run: RunDirectory | None, loop: Loop, mode: str = "auto") -> Profiler:
    return Profiler(lambda: (run, 0), 0, time.time_ns, lambda: loop.thread.ident, lambda: loop.step, mode)


def finished(profiler: Profiler, *about: Any, **more: Any) -> Profile:
    taken: list[Profile] = []
    assert profiler.start(*about, done=lambda profile, _: taken.append(profile), **more) == ""
    waits.until(lambda: taken)
    waits.until(lambda: not profiler.busy)
    return taken[0]


@pytest.mark.parametrize("slow", SLOW)
def test_what_slowed_down_is_named(
    run: RunDirectory, loop: Loop, slow: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    profiler = profiler_of(run, loop)
    waits.until(lambda: profiler.look() or profiler._baseline is not None)
    loop.extra = slow
    monkeypatch.setattr(module, "SAMPLES", 70)
    profile = finished(profiler, "slowdown", 7)
    assert profile.grown[0].name == slow.__name__ and profile.line.startswith("test_profiler.py:")
    assert profile.grown[0].share > 200_000 and profile.grown[0].before == 0
    assert (profile.number, profile.cause, profile.incident, profile.trace) == (1, "slowdown", 7, "")
    assert profile.steps >= 5 and profile.samples > 4
    assert [one.profile for one in profiles.profiles(run)] == [profile]
    baseline = read_profile(run, 0, 0, profiles.BASELINE)
    assert not baseline.grown and slow.__name__ not in [one.name for one in baseline.functions]
    for path in (run.profile_path(0, 0, 0), run.profile_path(0, 0, 1)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_does_not_hold_up_who_starts_it(run: RunDirectory, loop: Loop) -> None:
    profiler = profiler_of(run, loop)
    assert profiler.start("slowdown", seconds=60, steps=10_000) == ""
    assert profiler.busy and profiler.start("slowdown") == "a profile is being taken"
    profiler.close(10)  # ends it
    assert not profiler.busy and len(run.profiles()) == 1
    assert "no run" in profiler.start(REQUEST)


def test_there_is_a_budget(run: RunDirectory, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = profiler_of(run, loop)
    profiler._began -= 1e6
    for _ in range(module.AUTOMATIC):
        finished(profiler, "slowdown", seconds=0.02)
    assert "within an hour" in profiler.start("slowdown")
    finished(profiler, REQUEST, seconds=0.02)  # a person may have more
    monkeypatch.setattr(module, "HOUR_S", 0.0)
    finished(profiler, "slowdown", seconds=0.02)
    profiler._spent = 1.1e4
    assert "1 % of the attempt" in profiler.start("slowdown")
    finished(profiler, REQUEST, seconds=0.02)


def test_when_it_may_not(run: RunDirectory, loop: Loop) -> None:
    for mode, by_itself, requested in (("off", "off", "off"), ("request", "on request only", "")):
        profiler = profiler_of(run, loop, mode)
        assert by_itself in profiler.start("slowdown")
        assert requested in profiler.start(REQUEST, seconds=0.1)
        profiler.close(10)
    assert "no run" in profiler_of(None, loop).start(REQUEST)


def test_without_steps_it_ends(run: RunDirectory, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NO_STEP_S", 0.2)
    profiler = Profiler(lambda: (run, 0), 0, time.time_ns, lambda: loop.thread.ident, lambda: 3, "auto")
    profile = finished(profiler, REQUEST, seconds=0.02)
    assert profile.steps == 0 and profile.samples and "no baseline" in profile.note


def test_only_the_latest_are_kept(run: RunDirectory) -> None:
    rows = tuple(Function(f"f{number}" * 200, "/x" * 400, 1, 1, 1) for number in range(300))
    for number in range(2 * HELD):
        grew = (Grown("f" * 400, "/é\udcff" * 300, 3, "g" * 400, 5, 4),)
        assert write_profile(run, 0, 0, Profile(number, "é" * 9999, -1, 0, 1, 2, 3, rows, grew))
    assert sorted(number for *_, number in run.profiles()) == [0, *range(HELD + 1, 2 * HELD)]
    assert max(path.stat().st_size for path in run.journal.iterdir()) < 256 * 1024
    assert len(profiles.profiles(run)) == HELD - 1
    assert profiles.profiles(run, [1]) == []


BROKEN: dict[str, Callable[[Path], object]] = {
    "no JSON": lambda path: path.write_bytes(b"{"),
    "too much": lambda path: path.write_bytes(b" " * 2**20),
    "another's": lambda path: path.write_bytes(checked_json({"format": 1, "attempt": 4, "process": 0})),
    "a pipe": lambda path: __import__("os").mkfifo(path),
    "a link": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_what_others_put_there_is_left_out(run: RunDirectory, how: str) -> None:
    write_profile(run, 0, 0, Profile(2, "slowdown", -1, 0, 1, 2, 3))
    BROKEN[how](run.profile_path(0, 0, 1))
    assert [one.profile.number for one in profiles.profiles(run)] == [2]


def train(recorder: Recorder, over: Callable[[], object]) -> None:
    with goodput.job():
        for _ in goodput.steps(iter(int, 1)):
            time.sleep(0.002)
            if over():
                break


def test_a_command_has_a_living_job_profiled(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    recording = record(step_sampling=1)
    codes: list[int] = []
    command = ["profile", str(recording.folder), "--with", "sampler", "--seconds", "0.2"]

    def use() -> None:
        codes.append(cli.main([*command, "--json"]))
        codes.append(cli.main(command))
        codes.append(cli.main([*command, "--rank", "5"]))
        codes.append(cli.main([*command, "--wait", "0"]))

    user = threading.Thread(target=use)
    user.start()
    train(recording.recorder, lambda: not user.is_alive())
    user.join()
    output = capsys.readouterr()
    first, _, rest = output.out.partition("\n")
    assert codes == [0, 0, 1, 0] and "rank 5 of run run is not alive" in output.err
    (profile,) = json.loads(first)["profiles"]
    assert profile["steps"] >= 5 and profile["samples"] and profile["cause"] == "profile"
    assert profile["functions"][0]["function"] == "train"
    assert rest.startswith("Rank 0. Over ") and re.search(r"100.00 % +train +incidents/test_profiler.py:", rest)
    assert "requested of rank 0" in rest
    recording.recorder.shutdown()
    (root,) = [span for span in recording.exported() if span.name == "job"]
    events = [dict(event.attributes or {}) for event in root.events if event.name == "goodput.profile"]
    assert {"goodput.profile.cause": "profile", "goodput.profile.path": "journal/a0000-p0000-000001.profile"} in events
    assert attributes(root)
    (taken, *_) = [span for span in recording.exported() if span.name == semconv.PROFILE_SPAN]
    assert (
        taken.parent == root.context and attributes(taken)["goodput.profile.path"] == events[0]["goodput.profile.path"]
    )
    assert taken.start_time == pytest.approx(profile["began_at"] * 1e9, abs=1000)
    steps = {span.context.span_id: span for span in recording.exported() if span.name == "step"}
    linked = [steps[link.context.span_id] for link in taken.links]
    assert linked and all([link.context.span_id for link in one.links] == [taken.context.span_id] for one in linked)
    assert all((one.end_time or 0) > taken.start_time and one.start_time < taken.end_time for one in linked)
    assert cli.main(command) == 1 and "is not running" in capsys.readouterr().err


def test_what_another_rank_asks_for_an_incident_counts_as_automatic(run: RunDirectory, loop: Loop) -> None:
    """And it is the sampler's alone, whatever library is in use."""
    profiler = profiler_of(run, loop)
    states: list[str] = []
    for _ in range(module.AUTOMATIC + 1):
        request = requests.make(REQUEST, 0, seconds=0.02, cause="incident", incident=7)
        profiler.answer(request, lambda state, text="", file="": states.append(state))
        waits.until(lambda: states[-1] != requests.TAKEN)
        waits.until(lambda: not profiler.busy)
    assert [state for state in states if state != requests.TAKEN] == [*[DONE] * module.AUTOMATIC, REFUSED]
    (first, *_) = profiles.profiles(run)
    assert (first.profile.cause, first.profile.incident, first.profile.kind) == ("incident", 7, "sampler")


def test_wrong_requests_are_refused(run: RunDirectory, loop: Loop) -> None:
    profiler = profiler_of(run, loop, "off")
    given: list[tuple[str, str]] = []

    def respond(state: str, text: str = "", file: str = "") -> None:
        given.append((state, text))

    for parameters in ({"steps": "5"}, {"seconds": None}, {"with": "cprofile"}, {"cause": 1}, {"incident": "x"}):
        profiler.answer(requests.make(REQUEST, 0)._replace(parameters=parameters), respond)
    profiler.answer(requests.make(REQUEST, 0), respond)
    assert [state for state, _ in given if state != requests.TAKEN] == [REFUSED] * 6
    assert "OTEL_GOODPUT_PROFILE=off" in given[-1][1] and DONE not in dict(given)
