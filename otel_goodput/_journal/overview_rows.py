"""The fields of an overview as rows of integers, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, overload

from otel_goodput._accounting.overview import Group, Life, Loss, PhaseEntry, Save, Spread, StepBin, StepEntry
from otel_goodput._journal.columns import LARGEST, MASK, Row, signed
from otel_goodput._text.redact import encodable

NONE: Final = -LARGEST - 1  # stands for None


class Texts:
    """Texts by number, for columns that refer to them."""

    def __init__(self, known: Sequence[str] = ()) -> None:
        self.known = list(known)
        self._numbers = {text: number for number, text in enumerate(self.known)}

    def number(self, text: str) -> int:
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.known)
            self.known.append(encodable(text))
        return number

    def text(self, number: int) -> str:
        if not 0 <= number < len(self.known):
            raise ValueError("it refers to a text that it does not have")
        return self.known[number]


def _optional(number: int | None) -> int:
    return NONE if number is None else number


def _known(number: int) -> int | None:
    return None if number == NONE else number


def _flag(number: int) -> bool:
    if number not in (0, 1):
        raise ValueError("a flag is neither 0 nor 1")
    return bool(number)


def _spread(spread: Spread | None) -> Iterable[int]:
    return (NONE,) * 3 if spread is None else spread


class StoredStepBins(Sequence[StepBin]):
    """Step bins that are made when they are asked for: a page reads those of hundreds of processes.

    Attributes:
        rows: the fields of each, least, median and greatest lengths one by one; ``NONE``: not known.
    """

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> StepBin: ...
    @overload
    def __getitem__(self, at: slice) -> list[StepBin]: ...
    def __getitem__(self, at: int | slice) -> StepBin | list[StepBin]:
        return _step_bin(self.rows[at]) if isinstance(at, int) else list(map(_step_bin, self.rows[at]))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


def rows_of_step_bins(bins: Sequence[StepBin]) -> list[Row]:
    """Return step bins as rows of a digest."""
    if isinstance(bins, StoredStepBins):
        return bins.rows
    return [(*one[:5], *_spread(one.net), *_spread(one.outside), *_spread(one.device)) for one in bins]


def _step_bin(row: Row) -> StepBin:
    return StepBin._make((*row[:5], *(None if row[at] == NONE else Spread(*row[at : at + 3]) for at in (5, 8, 11))))


def _numbers(rows: Iterable[Iterable[int]], _: Texts) -> list[Row]:
    return list(map(tuple, rows))


class Table(NamedTuple):
    """How one field of an overview becomes rows of `width` integers, and is made of them again.

    `longest`: rows of which it is smallest are dropped first; None: the oldest rows are. `text`: the column that refers
    to a text. `counted`: what is dropped counts in the overview's `left_out`.
    """

    width: int
    pack: Callable[[Any, Texts], list[Row]]
    unpack: Callable[[list[Row], Texts], Any]
    longest: Callable[[Row], int] | None = None
    text: int | None = None
    counted: bool = False


def _length(begin: int, end: int) -> Callable[[Row], int]:
    return lambda row: (row[end] if row[end] >= 0 else LARGEST) - row[begin]


TABLES: Final[dict[str, Table]] = dict(  # noqa: C408 - a field's name is no name on the wire
    bins=Table(
        3,
        lambda bins, _: [(at, who, ns) for at, one in enumerate(bins) for who, ns in one.items()],
        lambda rows, _: rows,
    ),
    step_bins=Table(
        14,
        lambda bins, _: rows_of_step_bins(bins),
        lambda rows, _: StoredStepBins(rows),
    ),
    histogram=Table(
        5,
        lambda found, _: sorted((*where, count) for where, count in found.items()),
        lambda rows, _: {row[:4]: row[4] for row in rows},
        lambda row: row[4],
    ),
    groups=Table(
        8,
        lambda groups, texts: [(one.phase, texts.number(one.name), *one[2:]) for one in groups],
        lambda rows, texts: [Group._make((row[0], texts.text(row[1]), bool(row[2]), *row[3:])) for row in rows],
        lambda row: row[4],
        text=1,
    ),
    phases=Table(
        8,
        lambda phases, texts: [(*one[:2], texts.number(one.name), *one[3:7], signed(one.key)) for one in phases],
        lambda rows, texts: [
            PhaseEntry._make((*row[:2], texts.text(row[2]), *row[3:7], row[7] & MASK)) for row in rows
        ],
        _length(3, 4),
        text=2,
        counted=True,
    ),
    steps=Table(
        8,
        lambda steps, _: [(*one[:7], signed(one.key)) for one in steps],
        lambda rows, _: [StepEntry._make((*row[:7], row[7] & MASK)) for row in rows],
        lambda row: row[3] if row[3] >= 0 else LARGEST,
    ),
    saves=Table(
        6,
        _numbers,
        lambda rows, _: [Save._make((*row[:5], _flag(row[5]))) for row in rows],
    ),
    at_risk=Table(2, _numbers, lambda rows, _: rows),
    jobs=Table(4, _numbers, lambda rows, _: [Life._make((*row[:3], _flag(row[3]))) for row in rows]),
    disruptions=Table(
        11,
        lambda losses, texts: [
            (
                *one[:2],
                _optional(one.attempt),
                texts.number(one.reason),
                *one[4:6],
                *map(_optional, one[6:]),
            )
            for one in losses
        ],
        lambda rows, texts: [
            Loss(row[0], row[1], _known(row[2]), texts.text(row[3]), row[4], row[5], *map(_known, row[6:]))
            for row in rows
        ],
        text=3,
    ),
    notices=Table(
        3,
        lambda notices, texts: [(time, texts.number(why), int(gone)) for time, why, gone in notices],
        lambda rows, texts: [(row[0], texts.text(row[1]), _flag(row[2])) for row in rows],
        text=1,
    ),
    slices=Table(4, _numbers, lambda rows, _: rows),
    excluded=Table(2, _numbers, lambda rows, _: rows),
)
