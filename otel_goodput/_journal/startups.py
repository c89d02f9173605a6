"""How each attempt of a run started: waiting, placements, compilations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from otel_goodput import semconv
from otel_goodput._journal.facts import Facts
from otel_goodput.semconv import SCHEDULING_STAGES, SchedulingStage

# Attributes that distinguish two pods, the surest first: a new pod may have the name of the one before.
_POD: Final = (semconv.K8S_POD_UID, semconv.K8S_POD_NAME, semconv.K8S_NODE_NAME)
CACHE: Final = ("hits", "misses", "saved_s")  # of the facts' `compile_cache`


@dataclass(frozen=True)
class Startups:
    """What is known of all attempts of one process together.

    Attributes:
        reschedules: attempts after the first known one that were placed again, in another pod than the one before;
            None if no pod is known.
        first: s that the first attempt waited, by stage.
        later: s that all later attempts waited, by stage.
        cache: what jax's compilation cache did: hits, misses and seconds saved; empty if it was not in use.
    """

    reschedules: int | None = None
    first: Mapping[str, float] = field(default_factory=dict)
    later: Mapping[str, float] = field(default_factory=dict)
    cache: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a report; empty if nothing is known."""
        answer: dict[str, Any] = {}
        if self.reschedules is not None or self.first or self.later:
            answer["scheduling"] = {
                "reschedules": self.reschedules,
                "first_s": dict(self.first),
                "later_s": dict(self.later),
            }
        if self.cache:
            hits, misses = int(self.cache["hits"]), int(self.cache["misses"])
            answer["compile_cache"] = {"hits": hits, "misses": misses, "saved_s": self.cache["saved_s"]}
        return answer


def summed(attempts: Iterable[Facts]) -> Startups:
    """Return the sums over the facts of attempts, given in order."""
    reschedules: int | None = None
    waits: tuple[dict[str, float], dict[str, float]] = {}, {}  # of the first attempt, of later ones
    cache: dict[str, float] = {}
    before: Facts | None = None
    for facts in attempts:
        if _placed(facts):
            again = before is not None and _anew(before, facts)
            reschedules = (reschedules or 0) + again
            before = facts
        _add(waits[facts.attempt > 0], facts.scheduling, SCHEDULING_STAGES)
        if all(name in facts.compile_cache for name in CACHE):
            _add(cache, facts.compile_cache, CACHE)
    return Startups(reschedules, *waits, cache)


def _placed(facts: Facts) -> bool:
    return any(name in facts.resource for name in _POD) or bool(facts.scheduling)


def _anew(before: Facts, facts: Facts) -> bool:
    """Whether an attempt ran in another pod than the one before it."""
    for name in _POD:
        one, other = before.resource.get(name), facts.resource.get(name)
        if one is not None and other is not None and (one != other or name == semconv.K8S_POD_UID):
            return one != other
    # Only the first container of a pod has waited for a node: this is a new pod of the same name.
    return SchedulingStage.QUEUED in facts.scheduling


def _add(sums: dict[str, float], more: Mapping[str, float], names: Iterable[str]) -> None:
    for name in names:
        if name in more:
            sums[name] = sums.get(name, 0.0) + more[name]
