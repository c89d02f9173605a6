"""Random jobs, realistic and nasty, in the neutral form: what the properties are tried on.

Times are small integers of ns, so that instants coincide often and every figure in seconds converts back exactly.

Longer than other files: the parts of a random job are drawn with regard to each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

Rows = list[dict[str, Any]]
NAMES = ("eval", "sync", "Eval")
PHASES = (
    "accelerator_init",
    "training_prep",
    "data_loading",
    "checkpoint_save",
    "checkpoint_restore",
    "custom",
    "compile",
)

# Phases that may have something of theirs on the device.
MARKED = ("step", "custom", "checkpoint_save", "checkpoint_restore", "training_prep")


@dataclass
class Question:
    """One timeline and what is asked of it; times in ns."""

    rows: Rows
    at: int | None = None
    windows: list[tuple[int, int]] = field(default_factory=list)
    exclusions: list[tuple[int, int]] = field(default_factory=list)
    ideal_step_time: float | None = None

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for `replay` and `account`, in seconds."""
        return {
            "at": None if self.at is None else self.at / 1e9,
            "windows": [(a / 1e9, b / 1e9) for a, b in self.windows],
            "exclusions": [(a / 1e9, b / 1e9) for a, b in self.exclusions],
            "ideal_step_time": self.ideal_step_time,
        }


class Trainer:
    """Lives through one run and writes down what a real trainer would, with its accidents."""

    def __init__(self, draw: Any, *, observed: bool | None = None, crashes: bool = True, clean: bool = False) -> None:
        self.draw = draw
        self.clean = clean  # no reversed, missing or concurrent phases but those that a crash leaves
        self.crashes = crashes
        self.observed = self.chance(3) if observed is None else observed
        self.marking = self.chance(3) if observed is not False else False
        self.blurred = self.chance(3)
        self.compiles = self.chance(3)
        self.rows: Rows = []
        self.now = draw(st.integers(1, 20))
        self.attempt = draw(st.sampled_from((1, 1, 1, 3)))
        self.device_free = 0
        self.step = draw(st.sampled_from((0, 0, 0, 1, 7)))
        self.micro = draw(st.sampled_from((1, 1, 4)))  # checkpoints are numbered by every so manieth step

    # --- drawing

    def chance(self, one_in: int) -> bool:
        return bool(self.draw(st.integers(1, one_in)) == one_in)

    def pick(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def go(self, longest: int = 4) -> int:
        self.now += self.pick(0, longest)
        return self.now

    def write(self, kind: str, start: int, end: int | None, **extra: Any) -> dict[str, Any]:
        row = {"kind": kind, "start_ns": start, "end_ns": end, "attempt": self.attempt, **extra}
        self.rows.append(row)
        return row

    # --- phases

    def phase(self, kind: str, depth: int = 0, **extra: Any) -> None:
        """A phase on the training thread, maybe with others inside."""
        start = self.now
        if kind == "custom":
            extra["name"] = self.draw(st.sampled_from(NAMES))
        elif kind == "compile":
            extra["name"] = self.draw(st.sampled_from(("train", "init", None)))
        elif kind in ("checkpoint_save", "checkpoint_restore") and self.chance(2):
            extra["step"] = max(0, self.step // self.micro + self.pick(-2, 1))
        elif kind == "data_loading" and self.chance(3):
            extra["blocking"] = self.chance(2)
        if depth < 2 and self.chance(4):
            self.go()
            self.phase(self.draw(st.sampled_from(PHASES[2:])), depth + 1)
        if kind == "checkpoint_save" and self.chance(8):
            extra["completed"] = False
        row = self.write(kind, start, self.ending(start), **extra)
        if kind in MARKED and self.marking and self.chance(2):
            self.mark(row)

    def mark(self, row: dict[str, Any]) -> None:
        """What the phase has dispatched is on the device; it may be recorded in pieces."""
        pieces: list[list[int | None]] = []
        dispatched = row["start_ns"]
        for _ in range(self.pick(1, 2)):
            self.device_free = max(self.device_free, dispatched) + self.pick(0, 8)
            pieces.append([dispatched, None if not self.clean and self.chance(40) else self.device_free])
            dispatched += self.pick(0, 4)
        if len(pieces) == 1 and pieces[0][1] is not None and self.chance(2):
            row["device_end_ns"] = pieces[0][1]
        else:
            row["device_ns"] = pieces

    def ending(self, start: int) -> int | None:
        end = self.go()
        if not self.clean and self.chance(40):
            return self.draw(st.sampled_from((None, start - self.pick(0, 5), end + self.pick(0, 30))))
        return end

    def background(self) -> None:
        """Work of another thread: it starts now and ends whenever it likes."""
        kind = self.draw(st.sampled_from(("data_loading", "checkpoint_save", "checkpoint_save", "compile", "custom")))
        start = max(0, self.now - self.pick(0, 3))
        extra = {"step": max(0, self.step - self.pick(0, 2))} if kind == "checkpoint_save" and self.chance(2) else {}
        # Work of another task of the training thread owns the time in which no step is open.
        extra |= {"name": self.draw(st.sampled_from(NAMES))} if kind == "custom" else {}
        extra |= {"overlaps": True} if kind != "compile" and self.chance(3) else {"blocking": False}
        self.write(kind, start, start + self.pick(0, 12), **extra)

    def resume(self) -> None:
        """Restore checkpoints, then walk through batches that are done; their numbers may begin anew."""
        for _ in range(self.pick(1, 2)):
            self.phase("checkpoint_restore")
        for _ in range(self.draw(st.sampled_from((0, 0, 2, 4)))):
            start = self.now
            self.write("step", start, self.go(1), step=self.step)
            self.step += 1

    def elastic(self) -> None:
        start = self.now
        name = self.draw(st.sampled_from(("slice_down", "scale_up")))
        self.slices()
        if self.chance(3):
            self.phase("checkpoint_save")
        self.write("elastic_wait", start, self.go(6), name=name)
        start = self.now
        if self.chance(2):
            self.phase("accelerator_init")
        self.write("elastic_reinit", start, self.go(6))

    def slices(self) -> None:
        total = self.pick(0, 4)
        available = self.pick(0, total)
        self.write("slice_counts", self.now, self.now, active=self.pick(0, available), available=available, total=total)

    def train_step(self) -> None:
        start = self.now
        last = start + self.pick(0, 1) if self.observed else None
        if self.observed and self.chance(2):
            self.go(1)  # a dispatch is short
        elif self.chance(3):
            self.go()
            self.phase(self.draw(st.sampled_from(("custom", "checkpoint_save", "data_loading", "compile"))))
            self.go()
        else:
            self.go(5)
        row = self.write("step", start, self.ending(start), step=self.step)
        if self.chance(3):
            row["numbered"] = True
        if self.chance(8):
            ways = {"completed": False}, {"left": True}, {"left": True, "completed": False}
            row.update(self.draw(st.sampled_from(ways)))
        if self.chance(8):
            self.write("part", start, self.now, name="forward")
        if self.marking and self.chance(2):
            self.mark(row)
        elif last is not None and not self.chance(6):
            self.device_free = max(self.device_free, start) + self.pick(0, 8)
            if self.chance(12):
                self.device_free = max(1, self.device_free + self.pick(-12, 12))
            row["device_end_ns"] = self.device_free
            if self.chance(3):
                self.now = max(self.now, self.device_free)

    def next_step(self) -> None:
        """Mostly the next number, sometimes a jump or a rollback."""
        if self.chance(10):
            self.step = max(0, self.step + self.pick(-6, 4))
        else:
            self.step += 1

    # --- lives

    def life(self, *, last: bool) -> None:
        """One attempt from its job start to its end or death."""
        begin = self.now
        early = not self.clean and self.chance(12)
        if early:
            self.phase("accelerator_init")
            begin = self.go()
        for kind in PHASES[:2]:
            if self.blurred and self.chance(2):
                self.write("clock", self.now, None, state=self.draw(st.sampled_from(("unknown", "unknown", "host"))))
            if self.chance(2):
                self.phase(kind)
        if self.compiles and self.chance(2):
            self.phase("compile")
        if self.chance(2):
            self.resume()
        for _ in range(self.pick(0, 9)):
            if self.chance(3):
                self.phase("data_loading")
            self.train_step()
            self.next_step()
            for one_in, act in ((6, self.background), (12, self.elastic), (10, self.slices)):
                if self.chance(one_in):
                    act()
            if self.chance(5):
                self.phase(self.draw(st.sampled_from(("custom", "checkpoint_save"))))
            if self.chance(12):
                self.resume()
            if self.chance(4):
                self.go()
        dies = self.crashes and self.chance(2)
        if dies:
            self.die()
        if not dies and (self.observed or self.marking) and self.chance(2):
            self.now = max(self.now, self.device_free)
        self.write("job", begin, None if dies or (last and self.chance(5)) else self.go())

    def die(self) -> None:
        how = self.pick(0, 4)
        start = self.now
        if how == 1:
            self.write("step", start, None, step=self.step)
        elif how == 2:
            self.write("checkpoint_save", start, None, **({"step": self.step} if self.chance(2) else {}))
        elif how == 3:
            self.write("step", start, None, step=self.step)
            self.write("custom", self.go(), None, name="eval")
        if self.chance(3):
            self.write("heartbeat", self.go(6), None)

    def run(self) -> None:
        lives = self.pick(1, 3)
        for number in range(lives):
            self.life(last=number == lives - 1)
            self.attempt += self.draw(st.sampled_from((1, 1, 1, 2, 0)))
            if not self.clean and self.chance(10):
                self.now = max(1, self.now - self.pick(0, 12))  # the other machine's clock is behind
            else:
                self.now = max(self.now, self.device_free) + self.pick(0, 12)
            self.device_free = 0
            self.step = max(0, self.step + self.draw(st.sampled_from((0, 0, -1, -2, -3, -100, 1, 2))))


def instants(rows: Rows) -> list[int]:
    """Every instant of the rows, of the leader's and the others' alike."""
    plain = [row[key] for row in rows for key in ("start_ns", "end_ns", "device_end_ns") if row.get(key) is not None]
    return plain + [t for row in rows for pair in row.get("device_ns", ()) for t in pair if t is not None]


def spread(rows: Rows) -> Rows:
    """The same rows with all instants distinct: order decides nothing any more. What one thread does stays nested."""
    places: list[tuple[tuple[int, ...], dict[str, Any] | list[Any], Any]] = []  # order, and where the instant stands
    spread_rows: Rows = []
    for index, row in enumerate(rows):
        row = dict(row)
        if "device_ns" in row:
            row["device_ns"] = [list(piece) for piece in row["device_ns"]]
        spread_rows.append(row)
        start, end = row["start_ns"], row.get("end_ns")
        if start == end:
            places += [((start, 2, index), row, "start_ns"), ((end, 2, index), row, "end_ns")]
        else:  # what ends makes room for what begins; the longer one, which is written down later, is the outer one
            places.append(((start, 3, -(start if end is None else end), -index), row, "start_ns"))
            if end is not None:
                places.append(((end, 0, -start, index), row, "end_ns"))
        moments = [(row, "device_end_ns", row.get("device_end_ns"))]
        moments += [(piece, side, time) for piece in row.get("device_ns", ()) for side, time in enumerate(piece)]
        places += [((time, 4 if time == start else 1, index), at, key) for at, key, time in moments if time is not None]
    for count, (order, at, key) in enumerate(sorted(places, key=lambda place: place[0])):
        at[key] = order[0] * 1024 + count
    return spread_rows


@st.composite
def runs(draw: Any, **options: Any) -> Rows:
    """The rows of one run, in no particular order."""
    trainer = Trainer(draw, **options)
    trainer.run()
    return without_strays(trainer.rows)


@st.composite
def disturbed_runs(draw: Any) -> Rows:
    """A run as it may arrive: repeated, among strangers, out of order."""
    rows: Rows = list(draw(runs()))
    if draw(st.booleans()):
        for index in draw(st.lists(st.integers(0, len(rows) - 1), max_size=3)):
            rows.append(dict(rows[index]))
        for index in draw(st.lists(st.integers(0, len(rows) - 1), max_size=3)):
            rows.append({**rows[index], "process": draw(st.integers(1, 2)), "start_ns": draw(st.integers(0, 90))})
    if draw(st.booleans()):
        rows = draw(st.permutations(rows))
    return rows


@st.composite
def chaos(draw: Any) -> Rows:
    """Phases at random: concurrent steps, crossing phases, everything open or reversed."""
    rows: Rows = []
    offset = 1
    for attempt in range(1, draw(st.integers(1, 3)) + 1):
        time = st.integers(offset, offset + 30)
        start = draw(st.integers(offset, offset + 8))
        end = draw(st.one_of(st.none(), st.integers(start, offset + 40)))
        rows.append({"kind": "job", "start_ns": start, "end_ns": end, "attempt": attempt})
        for _ in range(draw(st.integers(0, 8))):
            kind = draw(st.sampled_from(("step", "step", "step", *PHASES, "elastic_wait", "elastic_reinit")))
            row = {"kind": kind, "start_ns": draw(time), "end_ns": draw(st.one_of(st.none(), time)), "attempt": attempt}
            if kind in ("step", "checkpoint_save"):
                row["step"] = draw(st.sampled_from((row["start_ns"] // 4, row["start_ns"] // 4, 2, 5)))
            if kind in MARKED and draw(st.integers(0, 2 if kind == "step" else 5)) == 0:
                if draw(st.booleans()):
                    row["device_end_ns"] = draw(time)
                else:
                    pair = st.tuples(time, st.one_of(time, time, time, st.none())).map(list)
                    row["device_ns"] = draw(st.lists(pair, min_size=1, max_size=2))
            if kind in ("step", "checkpoint_save") and draw(st.integers(0, 5)) == 0:
                row["completed"] = False
            if kind == "step" and draw(st.integers(0, 5)) == 0:
                row["left"] = True
            if kind == "custom":
                row["name"] = draw(st.sampled_from(NAMES))
            if kind == "elastic_wait":
                row["name"] = draw(st.sampled_from(("slice_down", "scale_up", "sideways")))
            if draw(st.integers(0, 5)) == 0:
                row["blocking"] = draw(st.booleans())
            if kind not in ("step", "compile", "part", "job", "exclusion") and draw(st.integers(0, 5)) == 0:
                row["overlaps"] = True
            rows.append(row)
        if draw(st.integers(0, 2)) == 0:
            state = draw(st.sampled_from(("unknown", "unknown", "host")))
            rows.append({"kind": "clock", "start_ns": draw(time), "end_ns": None, "attempt": attempt, "state": state})
        offset += draw(st.integers(10, 45))
    return without_strays(rows)


def with_jobs(rows: Rows, at: int | None) -> Rows:
    """The rows of attempts whose job has started at the query: the rules say nothing of those before."""
    started = {
        row["attempt"]
        for row in rows
        if row["kind"] == "job" and not row.get("process") and (at is None or row["start_ns"] <= at)
    }
    return [row for row in rows if row["attempt"] in started]


def without_strays(rows: Rows) -> Rows:
    """The rows without steps outside the jobs of their attempt: which life those belong to is anybody's guess."""
    jobs: Rows = []
    for row in sorted((row for row in rows if row["kind"] == "job"), key=lambda row: row["start_ns"]):
        mine = [job for job in jobs if job["attempt"] == row["attempt"]]
        if not any(job["end_ns"] is None or row["start_ns"] < job["end_ns"] for job in mine):
            jobs.append(row)

    def strays(step: dict[str, Any]) -> bool:
        device = [step.get("device_end_ns", 0), *(end for _, end in step.get("device_ns", ()))]
        end = math.inf if None in (step["end_ns"], *device) else max(step["end_ns"], *device)
        mine = [job for job in jobs if job["attempt"] == step["attempt"]]
        before = [job for job in mine if job["start_ns"] <= step["start_ns"]]
        after = [job for job in mine if job["start_ns"] > step["start_ns"]]
        inside = any(job["end_ns"] is None or step["start_ns"] < job["end_ns"] for job in before)
        return not before or any(job["start_ns"] <= end for job in after) or (bool(after) and not inside)

    return [row for row in rows if row["kind"] != "step" or not strays(row)]


@st.composite
def questions(draw: Any, timelines: st.SearchStrategy[Rows] | None = None) -> Question:
    """A timeline with a query time, windows and exclusions."""
    rows = draw(disturbed_runs() if timelines is None else timelines)
    times = [*instants(rows), 0]
    time = st.one_of(st.sampled_from(times), st.integers(0, max(times) + 5))
    pair = st.tuples(time, time).map(lambda ends: (min(ends), max(ends)))
    pairs = st.lists(pair, max_size=2)
    question = Question(rows)
    if draw(st.booleans()):
        question.at = draw(time)
    question.rows = with_jobs(rows, question.at)
    if draw(st.booleans()):
        question.windows = draw(pairs)
    if draw(st.integers(0, 2)) == 2:
        question.exclusions = draw(pairs)
    if draw(st.integers(0, 5)) == 5:
        a, b = draw(pair)
        question.rows.append({"kind": "exclusion", "start_ns": a, "end_ns": b, "attempt": rows[0]["attempt"]})
    if draw(st.integers(0, 9)) == 9:
        question.ideal_step_time = 3.5
    return question


ANYTHING: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 60),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
)


@st.composite
def garbage(draw: Any) -> list[Any]:
    """Rows with anything in any place, good ones between, and things that are no rows."""
    rows: list[Any] = list(draw(runs())) if draw(st.booleans()) else []
    keys = (
        "start",
        "end",
        "start_ns",
        "end_ns",
        "step",
        "name",
        "attempt",
        "process",
        "blocking",
        "overlaps",
        "device_end",
        "device_end_ns",
        "device",
        "device_ns",
        "completed",
        "left",
        "state",
        "active",
        "available",
        "total",
    )
    for _ in range(draw(st.integers(1, 6))):
        kinds = ("job", "step", "slice_counts", "clock", "part", "exclusion", *PHASES)
        row: dict[str, Any] = {"kind": draw(st.sampled_from(kinds))}
        for key in draw(st.lists(st.sampled_from(keys), unique=True)):
            row[key] = draw(st.one_of(st.integers(-5, 60), st.none(), ANYTHING))
        if draw(st.integers(0, 9)) == 9:
            row["kind"] = draw(ANYTHING)
        rows.insert(draw(st.integers(0, len(rows))), row)
    if draw(st.integers(0, 9)) == 9:
        rows.append(draw(ANYTHING))
    return rows
