"""Statistics of Orbax's step statistics, as in ``ml_goodput_measurement.checkpoint_badput_calculator``.

An operation counts once for each step and kind of storage, with the mean of all entries about it: every process writes
one. The deviation is that of a sample.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Any, Final

OPERATION_TYPE_SAVE: Final = "save"
OPERATION_TYPE_RESTORE: Final = "restore"
OPERATION_TYPE_EMERGENCY_RESTORE: Final = "emergency_restore"
OPERATION_TYPE_LOCAL: Final = "local"
OPERATION_TYPE_PERSISTENT: Final = "persistent"
OPERATION_TYPE_PERSISTENT_AND_LOCAL: Final = "persistent_and_local"

# What the statistics call a stage, and what Orbax's entries call its length in seconds.
_SAVE: Final = {
    "checkpoint_manager_blocking_time": "checkpoint_manager_blocking_duration_secs",
    "checkpointer_blocking_time": "checkpointer_blocking_duration_secs",
    "wait_for_prev_time": "wait_for_prev_duration_secs",
    "get_old_steps_time": "get_old_steps_duration_secs",
}
_RESTORE: Final = {
    "checkpoint_manager_time": "checkpoint_manager_duration_secs",
    "restore_time": "checkpointer_duration_secs",
    "broadcast_time": "broadcast_duration_secs",
}


_FIGURES: Final = ("total", "average", "minimum", "maximum", "standard_deviation")


def _statistics_class(name: str, stages: Mapping[str, str]) -> Any:
    """Return a dataclass with the figures of each stage in seconds, such as ``total_restore_time``; all are 0."""
    fields = [(f"{figure}_{stage}", float, 0.0) for stage in stages for figure in _FIGURES]
    return make_dataclass(name, fields, namespace={"__module__": __name__})


SaveCheckpointManagerVerticalStepStats = _statistics_class("SaveCheckpointManagerVerticalStepStats", _SAVE)
RestoreCheckpointManagerVerticalStepStats = _statistics_class("RestoreCheckpointManagerVerticalStepStats", _RESTORE)


@dataclass
class CheckpointLoggerOptions:
    """Options; `job_name`, `logger_name` and `client` are of no effect here.

    Attributes:
        use_goodput_logger: whether the caller fills ``CheckpointBadputCalculator.entries``.
    """

    job_name: str = "checkpoint_job"
    logger_name: str = "checkpoint_logger"
    client: object = None
    use_goodput_logger: bool = False


@dataclass
class CheckpointBadputCalculator:
    """Statistics of ``entries``: what Orbax's checkpoint logger is called with, as dictionaries. Fill it yourself.

    Attributes:
        options: see :class:`CheckpointLoggerOptions`.
        entries: the step statistics.
    """

    options: CheckpointLoggerOptions = field(default_factory=CheckpointLoggerOptions)
    entries: list[dict[str, Any]] = field(default_factory=list)

    def read_entries(self) -> list[dict[str, Any]]:
        """The entries."""
        return self.entries

    def is_valid_save_stats(
        self, step_stats: Mapping[str, Any], operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> bool:
        """Whether the entry is of a save to this kind of storage."""
        if step_stats.get("event_type") != OPERATION_TYPE_SAVE:
            return False
        storage = OPERATION_TYPE_LOCAL if _is_local(step_stats) else OPERATION_TYPE_PERSISTENT
        return operation_type == storage or operation_type not in (OPERATION_TYPE_LOCAL, OPERATION_TYPE_PERSISTENT)

    def is_valid_restore_stats(
        self, step_stats: Mapping[str, Any], operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> bool:
        """Whether the entry is of a restore of this kind: an emergency restore is local."""
        kind = step_stats.get("event_type")
        if operation_type == OPERATION_TYPE_LOCAL:
            return bool(kind == OPERATION_TYPE_EMERGENCY_RESTORE)
        if operation_type == OPERATION_TYPE_PERSISTENT:
            return bool(kind == OPERATION_TYPE_RESTORE)
        return kind in (OPERATION_TYPE_RESTORE, OPERATION_TYPE_EMERGENCY_RESTORE)

    def calculate_save_operation_checkpoint_manager_blocking_time(
        self, operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> Any:
        """Statistics of the stages of saves, a ``SaveCheckpointManagerVerticalStepStats``."""
        saves = [entry for entry in self.read_entries() if self.is_valid_save_stats(entry, operation_type)]
        return SaveCheckpointManagerVerticalStepStats(**_statistics(saves, _SAVE))

    def calculate_restore_operation_checkpoint_manager_blocking_time(
        self, operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> Any:
        """Statistics of the stages of restores, a ``RestoreCheckpointManagerVerticalStepStats``."""
        restores = [entry for entry in self.read_entries() if self.is_valid_restore_stats(entry, operation_type)]
        return RestoreCheckpointManagerVerticalStepStats(**_statistics(restores, _RESTORE))


def _is_local(step_stats: Mapping[str, Any]) -> bool:
    return not str(step_stats.get("directory", "")).startswith("gs://")


def _statistics(entries: Sequence[Mapping[str, Any]], stages: Mapping[str, str]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for stage, key in stages.items():
        lengths: dict[tuple[str, bool], list[float]] = {}
        for entry in entries:
            if entry.get(key) is not None:
                lengths.setdefault((str(entry.get("step")), _is_local(entry)), []).append(float(entry[key]))
        means = [statistics.fmean(each) for each in lengths.values()]
        if means:
            deviation = statistics.stdev(means) if len(means) > 1 else 0.0
            values = sum(means), statistics.fmean(means), min(means), max(means), deviation
            figures |= {f"{figure}_{stage}": value for figure, value in zip(_FIGURES, values, strict=True)}
    return figures
