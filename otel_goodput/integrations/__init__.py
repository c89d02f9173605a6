"""Callbacks for trainers that own the loop. Each module is for one framework, and is imported by who uses that one.

They configure nothing: ``goodput.configure("name")`` is the user's line, and without it they do nothing.
"""

from __future__ import annotations

from otel_goodput import api
from otel_goodput._integrations.trainer_loop import TrainerLoop


def new_loop() -> TrainerLoop:
    """Return a loop of the recorder that ``configure()`` makes, now or later."""
    return TrainerLoop(api._find)
