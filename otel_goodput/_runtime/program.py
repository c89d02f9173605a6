"""A recorder that may stand for a whole program, which opens no job and calls nothing of this package.

The program may turn out to configure itself. Until the first phase begins, the recorder can be withdrawn: then nothing
of it is left, and nothing was exported.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import TYPE_CHECKING

from otel_goodput._recording.departure import clean_exit
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import containing
from otel_goodput._runtime.recorder import Recorder
from otel_goodput._settings.config import Config

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from otel_goodput._settings.options import Options


class ProgramRecorder(Recorder):
    """A recorder with a job around the program, if `begun` says when that began (ns since the epoch).

    A job that the program opens takes the place of this one, from its beginning.
    """

    def __init__(self, job_name: str | None = None, begun: int | None = None, **options: Unpack[Options]) -> None:
        self._program_begun = begun
        self._say: Callable[[ProgramRecorder], object] | None = None
        super().__init__(job_name, **options)

    def _build(self, config: Config) -> None:
        super()._build(config)
        if self._program_begun is not None and self._tracer is not None:
            self._tracer.jobs.begin_around(self._program_begun)

    @property
    def withdrawable(self) -> bool:
        """Whether nothing but the job of the program has begun, and that was not opened by the program."""
        return self._program_begun is not None and self._settled is None and not self.closed

    def withdraw(self) -> None:
        """Record nothing, and remove what was begun: the program configures itself."""
        with self._closing, containing("withdrawal"):
            self.closed = True
            self._begun.acquire(blocking=False)
            atexit.unregister(self._exit)
            tracer, self._tracer = self._tracer, None
            self._observers.close(0.0)
            if tracer is not None:
                tracer.close()
            self._pipelines.abandon()
            self._live.withdraw()

    def say_once(self, say: Callable[[ProgramRecorder], object]) -> None:
        """Call `say` once it is known which run is recorded, at the end at the latest; not on the training thread."""
        self._say = say

    def _work(self) -> None:
        super()._work()
        if self._settled is not None:
            self._speak()

    def _speak(self) -> None:
        say, self._say = self._say, None
        if say is not None:
            say(self)

    def look_around(self) -> None:
        """Install the integrations of libraries that were imported by now."""
        tracer = self._tracer
        if tracer is not None:
            tracer.hooks.before_phase()

    def leave(self, error: BaseException | None) -> None:
        """Take note that the program was ended by `error`; None: it came to its end."""
        self._ended_by = None if error is None or clean_exit(error) else error

    def _settle(self) -> PhaseTracer | None:
        tracer = super()._settle()
        if tracer is not None:
            tracer.traces.held = False
        return tracer

    def _exit(self) -> None:
        if self._program_begun is not None:
            self._settle()  # a program without any phase is recorded, too
            self._speak()
        super()._exit()
