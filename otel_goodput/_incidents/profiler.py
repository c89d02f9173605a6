"""Profiles the next steps from a background thread: by itself where steps have become slow, and on request.

A sampler of the training thread's stack always runs; a trace by jax's or PyTorch's profiler only if it is asked for.
Early in an attempt a baseline is sampled, so that a later profile can say which function's share of the time grew: by
the keeper's thread, one sample in two ticks, because most of what a sample costs is to wake a thread for it.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from otel_goodput._incidents import sampler, traces
from otel_goodput._incidents.sampler import Stacks, Turns
from otel_goodput._journal.profiles import BASELINE, JAX, NO_INCIDENT, SAMPLER, TORCH, Profile, write_profile
from otel_goodput._journal.requests import DONE, REFUSED, TAKEN, Request, Respond
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._runtime import files
from otel_goodput._runtime.guard import contain, containing, started
from otel_goodput._settings.options import PROFILE_AUTO, PROFILE_OFF, PROFILE_TRACE
from otel_goodput._text.quantities import plural, short_duration
from otel_goodput._text.redact import redacting_logger
from otel_goodput.semconv import INCIDENT_SPAN

logger = redacting_logger("otel_goodput")

REQUEST: Final = "profile"  # the kind of requests, and the cause of what they begin
STEPS: Final = 5  # of a profile, by default
SECONDS: Final = 10.0  # and at most, unless no step has ended
MOST_STEPS: Final = 10_000
MOST_SECONDS: Final = 600.0
SAMPLED_S: Final = 5.0  # at least, for there to be enough samples of short steps,
SAMPLES: Final = 300  # and so many, on a machine so busy that they are late
NO_STEP_S: Final = 60.0  # at most, while no step ends
EACH_S: Final = 0.01  # from one sample to the next
BASELINE_SAMPLES: Final = 240  # one
TICKS: Final = 2  # in so many ticks of the keeper: some two minutes
# The keeper gets the GIL where a thread gives it up, such as at the beginning of a sleep. So it takes a sample of the
# baseline a random time later, s.
LATER_S: Final = (0.001, 0.011)
WARM_STEPS: Final = 20  # before the baseline,
WARM_S: Final = 10.0  # and so long since the first look at which steps were done
HOUR_S: Final = 3600.0
AUTOMATIC: Final = 3  # profiles in an hour
REQUESTED: Final = 20
SHARE: Final = 0.01  # of an attempt's time, that profiles by themselves may take,
FREE_S: Final = 0.5  # or this, early in it
FOLDER: Final = "profiles"  # of traces, in the folder of the run


class Job(NamedTuple):
    """A profile to be taken."""

    cause: str
    incident: int
    steps: int
    seconds: float
    kind: str
    done: Callable[[Profile, str], object] | None
    of: int  # the process that numbered the incident


class Profiler:
    """Takes profiles, one at a time.

    Args:
        place: returns the run and the attempt, counted from 0; no run: nothing is written, so nothing is profiled.
        process: index of this process.
        clock: ns since the epoch.
        thread: returns the identity of the training thread.
        step: returns the number of the latest step that has begun; below 0 before the first.
        mode: the option ``profile``.
        profiling: is told that a trace, which slows the steps, begins or is over.
        announce: is given each profile that was taken, the name of its file, and who numbered its incident.
        mark: is told the number of a profile that begins, and when, ns; and when it is over, until then None.
    """

    def __init__(
        self,
        place: Callable[[], tuple[RunDirectory | None, int]],
        process: int,
        clock: Callable[[], int],
        thread: Callable[[], int | None],
        step: Callable[[], int],
        mode: str,
        profiling: Callable[[bool], object] = lambda _: None,
        announce: Callable[[Profile, str, int], object] = lambda *_: None,
        mark: Callable[[int, int, int | None], object] = lambda *_: None,
    ) -> None:
        self._place, self._process, self._clock = place, process, clock
        self._thread, self._step, self._mode = thread, step, mode
        self._turns = Turns(step)
        self._profiling, self._announce, self._mark = profiling, announce, mark
        self._began = time.monotonic()
        self._spent = 0.0  # s of processor time, and of ending traces
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._worker: threading.Thread | None = None
        self._baseline: Stacks | None = None
        self._measured: Stacks | None = None  # of the baseline, while it is taken
        self._measuring = threading.Lock()
        self._since = 0, 0  # the moment (ns) and the step at which that began
        self._due = False  # a sample of the baseline is to be taken in this tick
        self._ticks = 0  # since the baseline was begun
        self._random = random.Random()
        self._warm: tuple[float, int] | None = None  # s, monotonic, and the step, at the first look
        self._number = BASELINE
        self._automatic = deque[float](maxlen=AUTOMATIC)  # when they began, s, monotonic
        self._requested = deque[float](maxlen=REQUESTED)

    @property
    def busy(self) -> bool:
        """Whether a profile is being taken."""
        return self._worker is not None and self._worker.is_alive()

    def start(
        self,
        cause: str,
        incident: int = NO_INCIDENT,
        *,
        steps: int = STEPS,
        seconds: float = SECONDS,
        kind: str = "",
        done: Callable[[Profile, str], object] | None = None,
        of: int | None = None,
    ) -> str:
        """Begin to profile the next `steps`, for `seconds` at most, without waiting for that.

        Args:
            cause: why; ``REQUEST``: a person wants it. Others count against the budget of what happens by itself.
            incident: number of the incident that is the reason, if there is one.
            kind: ``jax``, ``torch`` or ``sampler``; by default the sampler, or with the option ``trace`` the profiler
                of the library in use.
            done: is given the profile and the name of its file, in a background thread.
            of: the process that numbered the incident, by default this one.

        Returns:
            Why no profile is taken; empty if one is.
        """
        requested = cause == REQUEST
        kind = kind or (self._mode == PROFILE_TRACE and traces.used()) or SAMPLER
        steps, seconds = max(1, min(steps, MOST_STEPS)), max(0.01, min(seconds, MOST_SECONDS))
        job = Job(cause, incident, steps, seconds, kind, done, self._process if of is None else of)
        with self._guard:
            if refused := self._refusal(requested):
                return refused
            thread = threading.Thread(target=self._run, args=(job,), name="otel-goodput-profiler", daemon=True)
            if not started(thread, "no profile is taken"):
                return "the system has no more threads"
            self._worker = thread
            (self._requested if requested else self._automatic).append(time.monotonic())
        return ""

    def _refusal(self, requested: bool) -> str:
        now = time.monotonic()
        latest = self._requested if requested else self._automatic
        if self._mode == PROFILE_OFF:
            return "profiles are off (OTEL_GOODPUT_PROFILE=off)"
        if not requested and self._mode not in (PROFILE_AUTO, PROFILE_TRACE):
            return "profiles are taken on request only"
        if self._stop.is_set() or self._place()[0] is None:
            return "there is no run to keep a profile in"
        if self.busy:
            return "a profile is being taken"
        if len(latest) == latest.maxlen and now - latest[0] < HOUR_S:
            return f"{len(latest)} profiles were taken within an hour"
        if not requested and self._spent > max(FREE_S, SHARE * (now - self._began)):
            return "profiles have taken 1 % of the attempt's time"
        return ""

    def answer(self, request: Request, respond: Respond) -> None:
        """Carry out a request for a profile; see :class:`~otel_goodput._journal.requests.Inbox`."""
        of = request.parameters
        steps, seconds, kind = of.get("steps", STEPS), of.get("seconds", SECONDS), of.get("with", "")
        cause, incident, leader = of.get("cause", REQUEST), of.get(INCIDENT_SPAN, NO_INCIDENT), of.get("process", 0)
        if (
            not isinstance(steps, int)
            or not isinstance(seconds, (int, float))
            or kind not in ("", SAMPLER, JAX, TORCH)
            or not isinstance(cause, str)
            or not isinstance(incident, int)
            or not isinstance(leader, int)
        ):
            respond(REFUSED, "the request is not valid")
            return
        if cause == REQUEST:
            kind = kind or traces.used() or SAMPLER

        def done(profile: Profile, file: str) -> None:
            respond(DONE if file else REFUSED, profile.note if file else "the profile cannot be saved", file)

        respond(TAKEN)  # first: it may be done at once
        refused = self.start(cause, incident, steps=steps, seconds=seconds, kind=kind, done=done, of=leader)
        if refused:
            respond(REFUSED, refused)

    def look(self) -> None:
        """Sample the baseline when the steps have warmed up; for the keeper's thread, at each tick."""
        if self._measured is not None:
            self._turns.usual()
            if self._due and not self._stop.is_set():
                self._sample()
            self._ticks += 1
            self._due = self._measured is not None and self._ticks % TICKS == 0
        elif self._baseline is None and self._mode != PROFILE_OFF and self._place()[0] is not None:
            step, now = self._step(), time.monotonic()
            if step < 0:
                return
            if self._warm is None or step < self._warm[1]:
                self._warm = now, step
            elif step - self._warm[1] >= WARM_STEPS and now - self._warm[0] >= WARM_S:
                self._since, self._measured, self._due = (self._clock(), step), Stacks(), True

    def pause(self, seconds: float) -> float:
        """Let the keeper's thread sleep for so long, or longer if a sample is due; return for how long, s."""
        if self._due and self._measured is not None and not self._stop.is_set():
            self._due = False
            return self._sample()
        time.sleep(seconds)
        return seconds

    def _sample(self) -> float:
        """Take a sample of the baseline a random time from now; return that, s."""
        later, shortened = self._random.uniform(*LATER_S), sampler.shorten()
        time.sleep(later)
        if (stacks := self._measured) is not None and (identity := self._thread()) is not None:
            stacks.take(identity, usual=self._turns.usual())
        sampler.set_back(shortened)
        if stacks is not None and stacks.samples >= BASELINE_SAMPLES:
            self._end_baseline()
        return later

    def _end_baseline(self) -> None:
        """Take what was sampled so far as the baseline, and write it, if one is being taken."""
        with self._measuring:
            stacks, self._measured = self._measured, None
            if stacks is None:
                return
            self._baseline = stacks
        began, first = self._since
        steps = max(0, self._step() - first)
        profile = Profile(BASELINE, "baseline", NO_INCIDENT, began, self._clock(), steps, stacks.samples)
        run, attempt = self._place()
        if run is not None and stacks.samples:
            with containing("the baseline of profiles"):
                write_profile(run, attempt, self._process, profile._replace(functions=sampler.functions(stacks)))

    def close(self, seconds: float) -> None:
        """End what is being taken, which is still written; waits `seconds` at most."""
        until = time.monotonic() + seconds
        self._stop.set()
        thread = self._worker
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))

    # --- in a thread of its own ---------------------------------------------------------------------------------------

    def _run(self, job: Job) -> None:
        try:
            profile = self._profile(job)
            run, attempt = self._place()
            file = "" if run is None else write_profile(run, attempt, self._process, profile)
            self._spent += time.thread_time()
            if file:
                self._announce(profile, file, job.of)
            if job.done is not None:
                job.done(profile, file)
        except Exception as error:
            if job.done is not None:
                failed = f"the profile failed: {type(error).__name__}: {error}"
                job.done(Profile(0, job.cause, job.incident, 0, 0, 0, 0, note=failed), "")
            contain("a profile", error)

    def _profile(self, job: Job) -> Profile:
        self._end_baseline()  # from now on, it would be of slow steps
        self._number += 1
        notes = []
        trace: traces.Trace | None = None
        folder = self._folder(job.kind) if job.kind != SAMPLER else None
        if folder is not None:
            self._profiling(True)
            try:
                trace = traces.begin(job.kind, folder)
            except traces.Unavailable as error:
                self._profiling(False)
                notes.append(f"There is no trace by {job.kind}: {error}.")
        began, first, since = self._clock(), self._step(), time.monotonic()
        self._mark(self._number, began, None)
        taken = False

        def over(count: int) -> bool:
            nonlocal trace, taken
            passed, steps = time.monotonic() - since, self._step() - first
            if trace is not None and (trace.disturbed or steps >= job.steps or passed >= job.seconds):
                taken, trace = self._end(trace), None
            if passed < job.seconds:
                return trace is None and steps >= job.steps and passed >= SAMPLED_S and count >= SAMPLES
            return steps > 0 or passed >= max(job.seconds, NO_STEP_S)

        stacks = sampler.sample(self._thread, EACH_S, self._stop, over, self._turns.usual)
        ended, steps = self._clock(), max(0, self._step() - first)
        self._mark(self._number, began, ended)
        if trace is not None:
            taken = self._end(trace)
        if folder is not None and not notes and not taken:
            notes.append(f"There is no trace by {job.kind}: the program has begun one of its own.")
        grown = sampler.grown(stacks, self._baseline) if self._baseline is not None and self._baseline.samples else ()
        if self._baseline is None:
            notes.append("There is no baseline to compare with.")
        where = str(folder.relative_to(folder.parent.parent)) if folder is not None and taken else ""
        text = f"Over {plural(steps, 'step')} and {short_duration((ended - began) / 1e9)}"
        return Profile(
            self._number,
            job.cause,
            job.incident,
            began,
            ended,
            steps,
            stacks.samples,
            sampler.functions(stacks) if stacks.samples else (),
            grown,
            job.kind if where else SAMPLER,
            where,
            " ".join([f"{text}, {plural(stacks.samples, 'sample')}.", *notes]),
        )

    def _end(self, trace: traces.Trace) -> bool:
        """End a trace; whether it is there."""
        began = time.monotonic()
        try:
            return trace.stop()
        except Exception as error:
            contain("a trace", error)
            return False
        finally:
            self._profiling(False)
            self._spent += time.monotonic() - began

    def _folder(self, kind: str) -> Path | None:
        """Make the folder of a trace, and room for it."""
        run, attempt = self._place()
        if run is None:
            return None
        own = f"p{self._process:04d}-"
        place = run.path / FOLDER
        folder = place / f"{own}a{attempt:04d}-{self._number:06d}-{kind}"
        files.make_folders(folder, run.path, private=True)
        traces.make_room(place, own)
        return folder
