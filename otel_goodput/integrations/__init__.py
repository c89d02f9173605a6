"""Callbacks for trainers that own the loop. Each module is for one framework, and is imported by who uses that one.

They configure nothing: ``goodput.configure("name")`` is the user's line, and without it they do nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_goodput._integrations.trainer_loop import TrainerLoop


def new_loop() -> TrainerLoop:
    """Return a loop of the recorder that ``configure()`` makes, now or later."""
    from otel_goodput import api  # only now: a framework that looks into `_doors` imports this package, too
    from otel_goodput._integrations.trainer_loop import TrainerLoop

    return TrainerLoop(api._find)
