"""Steps of TRL's trainers, which are trainers of ``transformers``: pass a :class:`GoodputCallback` to one.

In addition, what a trainer generates during training is recorded as rollouts.
"""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any, Final

from otel_goodput._integrations.wrapping import Done, within
from otel_goodput.integrations import transformers

__all__ = ["GoodputCallback"]

ROLLOUT: Final = "rollout"  # the name of the custom phase
GENERATION: Final = "transformers.generation.utils"


class GoodputCallback(transformers.GoodputCallback):
    """Records the steps, loads, rollouts, evaluations and checkpoints of one of TRL's trainers.

    ``goodput.configure("name")`` is called by you, before training; without it, this does nothing.
    """

    def _train(self, trainer: Any, given: Any) -> Done:
        done = super()._train(trainer, given)
        for kind in type(trainer).__mro__:
            if "_generate" in vars(kind) and kind.__module__.partition(".")[0] == "trl":
                transformers.wrap_method(kind, "_generate", GoodputCallback._roll_out)
        mixin = getattr(sys.modules.get(GENERATION), "GenerationMixin", None)
        if mixin is not None:
            transformers.wrap_other(mixin, "generate", _generates)
        _training.append((self, get_ident()))

        def over(result: Any, error: BaseException | None) -> None:
            _training.remove((self, get_ident()))
            done(result, error)

        return over

    def _roll_out(self, trainer: Any, given: Any) -> Done | None:
        return within(self._loop.evaluation(ROLLOUT)) if self._loop.tracer is not None else None


_training: Final[list[tuple[GoodputCallback, int]]] = []  # with the threads they train on


def _generates(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
    """Called before a model generates: where a trainer has no method of its own for that, it calls the model."""
    if not _training or _training[-1][1] != get_ident():
        return None
    return _training[-1][0]._roll_out(None, None)
