"""A job that trains nothing, to be killed at any moment: phases of a few milliseconds, and a diary about them.

Run as a script with one argument, a JSON object of options (see ``OPTIONS``). The diary has a line before and one after
every boundary of a phase, each with the wall clock's time (ns):

    B <ns> +step::7             about to begin step 7 (several edges, separated by commas, may share one instant)
    A <ns> 1f0c…                it has begun; the id of its span, `-` where that is not asked for
    B <ns> -step::7!            about to end it, `!`: not completed; `?`: a break leaves it after a step's work
    A <ns> -                    it has ended

and ``! <ns> word`` for whatever else there is to tell.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from opentelemetry import trace

import otel_goodput as goodput

OPTIONS: dict[str, Any] = {
    "directory": "",  # of the journal
    "run_id": "run",
    "diary": "",  # file to write the diary to
    "checkpoint": "",  # file that holds the number of the last step saved
    "seed": 0,
    "steps": None,  # how many to do in this life; None: until killed
    "style": "iterator",  # or "with"
    "ids": False,  # write span ids into the diary
    "ending": "finish",  # or "raise", "exit", "leave"
    "exporters": "file",
    "notify": -1,  # descriptor to tell what is reached: c(onfigured), j(ob), s(hutdown)
    "configure": {},
    "rollbacks": True,
    "unit": 0.001,  # seconds
}


class Diary:
    """Writes each line with one system call: what was written outlives the process."""

    def __init__(self, path: str, ids: bool) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._ids = ids

    def before(self, *edges: str) -> None:
        os.write(self._file, f"B {time.time_ns()} {','.join(edges)}\n".encode())

    def after(self) -> None:
        now = time.time_ns()
        span = f"{trace.get_current_span().get_span_context().span_id:016x}" if self._ids else "-"
        os.write(self._file, f"A {now} {span}\n".encode())

    def tell(self, word: str) -> None:
        os.write(self._file, f"! {time.time_ns()} {word}\n".encode())


class Job:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options = {**OPTIONS, **options}
        self.diary = Diary(self.options["diary"], self.options["ids"])
        self.random = random.Random(self.options["seed"])
        self.checkpoint = Path(self.options["checkpoint"])
        self.left = self.options["steps"]
        self.resumed = False  # the first step after a restore is still to come

    def notify(self, word: str) -> None:
        self.diary.tell(word)
        if self.options["notify"] >= 0:
            os.write(self.options["notify"], word[0].encode())

    def work(self, least: float = 1.0, most: float = 4.0) -> None:
        time.sleep(self.options["unit"] * self.random.uniform(least, most))

    @contextmanager
    def phase(self, phase: AbstractContextManager[Any], kind: str, name: str = "", step: int = -1) -> Iterator[None]:
        edge = f"{kind}:{name}:{step}"
        self.diary.before("+" + edge)
        try:
            with phase:
                self.diary.after()
                try:
                    yield
                except BaseException:
                    self.diary.before("-" + edge + "!")
                    raise
                self.diary.before("-" + edge)
        finally:
            self.diary.after()

    # --- the job ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        options = self.options
        self.notify("about to configure")
        goodput.configure(
            "crash",
            run_id=options["run_id"],
            directory=options["directory"],
            exporters=options["exporters"],
            **options["configure"],
        )
        self.notify("configured")
        with self.phase(goodput.job(), "job"):
            self.notify("job")
            with self.phase(goodput.accelerator_init(), "accelerator_init"):
                self.work()
            with self.phase(goodput.training_prep(), "training_prep"):
                self.work()
                step = self.restore()
            train = self.train_iterator if options["style"] == "iterator" else self.train_with
            while (gone_back := train(step)) is not None:
                step = gone_back
            if options["ending"] == "raise":
                raise RuntimeError("the loss is not a number")
            if options["ending"] == "leave":
                os._exit(3)
            if options["ending"] == "exit":
                sys.exit(0)
        self.notify("shutdown")

    def restore(self) -> int:
        if not self.checkpoint.exists():
            return 0
        step = int(self.checkpoint.read_text())
        with self.phase(goodput.checkpoint_restore(step), "checkpoint_restore", step=step):
            self.work()
        self.resumed = True
        return step + 1

    def begin_work(self) -> None:
        """At the head of a step. After a restore the first one shows at once that it is no skipped batch (R4)."""
        if self.resumed:
            self.resumed = False
            self.maybe_evaluate(1.0)
        self.work()

    def train_with(self, step: int) -> int | None:
        """Train from `step` on; returns where to go back to, or None when it is enough."""
        while self.enough():
            with self.phase(goodput.data_loading(), "data_loading"):
                self.work(0.2, 1.0)
            with self.phase(goodput.step(step), "step", step=step):
                self.begin_work()
                self.maybe_evaluate(0.05)
            self.maybe_evaluate(0.05)
            self.maybe_save(step)
            if (back := self.maybe_back(step)) is not None:
                return back
            step += 1
        return None

    def train_iterator(self, start: int) -> int | None:
        steps = goodput.steps(self.batches(start), start=start)
        step = -1
        self.diary.before("+data_loading::-1")
        back = None
        while back is None:  # closed inside of the loop: where it cannot go on any more, whoever looks ends the step
            try:
                step, _ = next(steps)
            except StopIteration:
                self.diary.after()
                return None
            self.diary.after()
            self.begin_work()
            self.maybe_evaluate(0.1)
            self.maybe_save(step)
            if (back := self.maybe_back(step)) is None:
                self.diary.before(f"-step::{step}", "+data_loading::-1")
            else:
                self.work(4.0, 5.0)  # whatever it did so far, now it has done a step's work (R4)
                self.diary.before(f"-step::{step}?")
                steps.close()
                self.diary.after()
        return back

    def batches(self, step: int) -> Iterator[int]:
        while self.enough():
            self.diary.after()
            self.work(0.2, 1.0)
            self.diary.before("-data_loading::-1", f"+step::{step}")
            yield step
            step += 1
        self.diary.after()
        self.diary.before("-data_loading::-1")

    def enough(self) -> bool:
        if self.left is None:
            return True
        self.left -= 1
        return bool(self.left >= 0)

    def maybe_evaluate(self, share: float) -> None:
        if self.random.random() < share:
            with self.phase(goodput.custom("eval"), "custom", "eval"):
                self.work()

    def maybe_save(self, step: int) -> None:
        if self.random.random() < 0.08:
            with self.phase(goodput.checkpoint_save(step), "checkpoint_save", step=step):
                self.work()
                part = self.checkpoint.with_suffix(f".{os.getpid()}")
                part.write_text(str(step))
                part.replace(self.checkpoint)

    def maybe_back(self, step: int) -> int | None:
        if not self.options["rollbacks"] or self.random.random() > 0.02:
            return None
        return int(self.checkpoint.read_text()) + 1 if self.checkpoint.exists() else 0


if __name__ == "__main__":
    Job(json.loads(sys.argv[1])).run()
