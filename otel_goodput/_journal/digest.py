"""The overview of a process's whole run as one small file, so that a run is drawn without reading its segments.

The head and then one table after another. A table is columns of 64-bit integers: successive differences, all first
bytes before all second bytes and so on, packed with zlib. The head says how many rows each table has and how many bytes
it takes. Nothing beyond that is unpacked, and it is bounded.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, zip_longest
from operator import attrgetter, sub
from typing import Any, Final, NamedTuple

from otel_goodput._accounting import overview as entries
from otel_goodput._accounting.checkpoints import STAGES
from otel_goodput._accounting.codec import Blobs
from otel_goodput._accounting.disruption import Disruption
from otel_goodput._accounting.overview import Overview, Spread, StepBin
from otel_goodput._accounting.rules import FIXED
from otel_goodput._journal import state_file
from otel_goodput._journal.records import LARGEST, signed
from otel_goodput._journal.rundir import DIGEST, RunDirectory
from otel_goodput._journal.state_file import LEVEL, unpacked
from otel_goodput._runtime import files
from otel_goodput._runtime.files import write_privately
from otel_goodput._text.redact import encodable
from otel_goodput.semconv import PHASES

FORM: Final = state_file.Form("digest", b"OGDIGEST", 1, files.MIB, DIGEST)
ROWS: Final = 1 << 17  # of one table at most
_ANY: Final = 1 << 62  # bound of a number in the head

Row = tuple[int, ...]
MASK: Final = (1 << 64) - 1
_WIDTH: Final = 8


# --- the fields of an overview as rows of integers --------------------------------------------------------------------

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


def _spread(spread: Spread | None) -> Iterable[int]:
    return (NONE,) * 3 if spread is None else spread


class StoredStepBins(Sequence[StepBin]):
    """Step bins that are made when they are read: a page has those of hundreds of processes.

    `rows` are the fields of each, least, median and greatest lengths one by one; ``NONE``: not known.
    """

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Any:
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


# How the values of a column become integers, and are made of them again.
_PACK, _UNPACK = range(2)
_COLUMNS: Final[dict[str, tuple[Callable[[Any, Texts], int], Callable[[int, Texts], Any]]]] = {
    "key": (lambda key, _: signed(key), lambda number, _: number & MASK),
    "flag": (lambda flag, _: int(flag), lambda number, _: bool(_number(number, 0, 1))),
    "text": (lambda text, texts: texts.number(text), lambda number, texts: texts.text(number)),
    "maybe": (lambda one, _: NONE if one is None else one, lambda number, _: None if number == NONE else number),
}


@dataclass
class Table:
    """How one field of an overview becomes rows of integers, and is made of them again."""

    width: int  # number of columns
    make: Callable[[Iterable[Any]], Any] = tuple  # makes an entry of a row; the field is a list of them
    others: Mapping[str, Sequence[int]] = field(default_factory=dict)  # columns of no plain integers: ``_COLUMNS``
    longest: Callable[[Row], int] | None = None  # the rows with the smallest value are dropped first; None: the oldest
    counted: bool = False  # what is dropped counts in the overview's `left_out`
    rows: Callable[[Any], Iterable[Iterable[Any]]] = iter  # of the field
    whole: Callable[[list[Any]], Any] = list  # makes the field of its entries

    def pack(self, field: Any, texts: Texts) -> list[Row]:
        return self._converted(self.rows(field), _PACK, texts)

    def unpack(self, rows: list[Row], texts: Texts) -> Any:
        return self.whole(list(map(self.make, self._converted(rows, _UNPACK, texts))))

    def _converted(self, rows: Iterable[Iterable[Any]], way: int, texts: Texts) -> list[Any]:
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        for name, places in self.others.items() if columns else ():
            for at in places:
                columns[at] = [_COLUMNS[name][way](value, texts) for value in columns[at]]
        return list(zip(*columns, strict=True))


def _length(begin: int, end: int) -> Callable[[Row], int]:
    return lambda row: (row[end] if row[end] >= 0 else LARGEST) - row[begin]


_DISRUPTION: Final = (
    *("time", "died", "attempt", "reason", "recovery", "wasted", "from_step", "to_step", "kept_step", "first_step"),
    "regained",
)
TABLES: Final[dict[str, Table]] = dict(  # noqa: C408 - a field's name is no name on the wire
    bins=Table(3, rows=lambda bins: [(at, who, ns) for at, one in enumerate(bins) for who, ns in one.items()]),
    step_bins=Table(14, rows=rows_of_step_bins, whole=StoredStepBins),
    histogram=Table(
        5,
        longest=lambda row: row[4],
        rows=lambda counts: sorted((*where, count) for where, count in counts.items()),
        whole=lambda rows: {row[:4]: row[4] for row in rows},
    ),
    groups=Table(8, entries.Group._make, {"text": (1,), "flag": (2,)}, lambda row: row[4]),
    phases=Table(8, entries.PhaseEntry._make, {"text": (2,), "key": (7,)}, _length(3, 4), counted=True),
    steps=Table(8, entries.StepEntry._make, {"key": (7,)}, lambda row: row[3] if row[3] >= 0 else LARGEST),
    saves=Table(6, entries.Save._make, {"flag": (5,)}),
    at_risk=Table(2),
    jobs=Table(4, entries.Life._make, {"flag": (3,)}),
    disruptions=Table(
        len(_DISRUPTION),
        lambda values: Disruption(**dict(zip(_DISRUPTION, values, strict=True))),
        {"maybe": (2, 6, 7, 8, 9, 10), "text": (3,)},
        rows=partial(map, attrgetter(*_DISRUPTION)),
    ),
    notices=Table(3, others={"text": (1,), "flag": (2,)}),
    slices=Table(4),
    excluded=Table(2),
)


# --- tables as bytes --------------------------------------------------------------------------------------------------


def pack(rows: list[Row]) -> bytes:
    """The columns of the rows, packed. All numbers have 64 bits, signed."""
    planes = []
    for column in zip(*rows, strict=True):
        try:
            array("q", column)
        except OverflowError:  # longer times and higher numbers than that have no meaning
            column = tuple(max(-LARGEST - 1, min(LARGEST, number)) for number in column)
        differences = array("Q", [one & MASK for one in map(sub, column, (0, *column[:-1]))])
        if sys.byteorder == "big":
            differences.byteswap()
        raw = differences.tobytes()
        planes += [raw[plane::_WIDTH] for plane in range(_WIDTH)]
    return zlib.compress(b"".join(planes), LEVEL)


def rows_of(data: bytes, count: int, width: int) -> list[Row]:
    """The `count` rows of `width` numbers that :func:`pack` has made `data` of. Raises ValueError."""
    if not count:
        return []
    raw = unpacked(data, count * width * _WIDTH)
    columns = []
    for at in range(width):
        mixed = bytearray(count * _WIDTH)
        for plane in range(_WIDTH):
            begin = (at * _WIDTH + plane) * count
            mixed[plane::_WIDTH] = raw[begin : begin + count]
        differences = array("q", bytes(mixed))
        if sys.byteorder == "big":
            differences.byteswap()
        column = list(accumulate(differences))
        try:
            array("q", column)
        except OverflowError:  # a difference of more than 63 bits
            column = [signed(one) for one in column]
        columns.append(column)
    return list(zip(*columns, strict=True))


# --- the file ---------------------------------------------------------------------------------------------------------

_WITH_TEXTS: Final = {name: table.others["text"][0] for name, table in TABLES.items() if "text" in table.others}

Position = tuple[int, int, int]


class Digest(NamedTuple):
    """The content of a digest."""

    overview: Overview  # of the run so far
    attempt: int  # number of the attempt that wrote it, from 0
    written_at: int  # the moment of the overview, ns
    position: Position  # the records before this one are in it: (attempt, segment, record)
    # What was left out to keep the file small: rows by table, and ``bins`` for how often the bins were merged in pairs.
    dropped: dict[str, int]


def encode(overview: Overview, attempt: int, written_at: int, position: Position, most: int = DIGEST) -> bytes:
    """An overview as the content of a digest; see :class:`Digest` for the arguments.

    If it is larger than `most` bytes, half of the largest table is left out, again and again: the shortest phases and
    steps, the oldest of what has no length. Bins are merged in pairs instead, so that they still add up.
    """
    dropped: dict[str, int] = {}
    left_out = overview.left_out
    width, bins = overview.width, list(overview.bins)
    texts = Texts()
    rows = {name: table.pack(getattr(overview, name), texts) for name, table in TABLES.items()}
    packed = {name: pack(table) for name, table in rows.items()}
    while True:
        numbers = {name: {row[column] for row in rows[name]} for name, column in _WITH_TEXTS.items()}
        referred = set().union(*numbers.values())
        used = [text if number in referred else "" for number, text in enumerate(texts.known)]
        head = {
            "attempt": attempt,
            "written_at": written_at,
            "position": position,
            "dropped": dropped,
            "begin": overview.begin,
            "width": width,
            "bins": len(bins),
            "names": [encodable(name) for name in overview.names],
            "strings": used,
            "left_out": left_out,
            "last_step": overview.last_step,
            "last_sign": overview.last_sign,
            "stages": STAGES.dump(overview.stages, Blobs()),
            "tables": {name: [len(rows[name]), len(packed[name])] for name in TABLES},
        }
        text = state_file.text_of(head)
        data = b"".join(state_file.pieces(FORM, text, [packed[name] for name in TABLES]))
        if len(data) <= most and len(text) <= FORM.head and all(len(one) <= ROWS for one in rows.values()):
            return data
        # About how many bytes each table takes, its texts in the packed head included.
        sizes = {
            each: len(packed[each]) + sum(len(used[number]) for number in numbers.get(each, ())) // 3 for each in TABLES
        }
        name = max(TABLES, key=lambda each: (len(rows[each]) > ROWS, sizes[each], each))
        if len(text) > FORM.head:  # its texts are too long
            name = max(_WITH_TEXTS, key=lambda each: (len(rows[each]), each))
        if name == "bins" and len(bins) > 1:
            width, bins = 2 * width, _merged(bins)
            rows[name] = TABLES[name].pack(bins, texts)
            dropped[name] = dropped.get(name, 0) + 1
        else:
            kept = _half(TABLES[name], rows[name])
            gone = len(rows[name]) - len(kept)
            if not gone:
                raise ValueError("the overview does not fit a digest")
            rows[name] = kept
            dropped[name] = dropped.get(name, 0) + gone
            left_out += gone if TABLES[name].counted else 0
        packed[name] = pack(rows[name])


def _half(table: Table, rows: list[Row]) -> list[Row]:
    """The half of the rows to keep, in their order."""
    keep = len(rows) // 2
    if table.longest is None:
        return rows[len(rows) - keep :]
    longest = table.longest
    chosen = sorted(range(len(rows)), key=lambda at: (-longest(rows[at]), at))[:keep]
    return [rows[at] for at in sorted(chosen)]


def _merged(bins: Sequence[Mapping[int, int]]) -> list[Mapping[int, int]]:
    """Add up the bins in pairs; the last one stays alone if their number is odd."""
    nothing: Mapping[int, int] = {}
    pairs = zip_longest(bins[::2], bins[1::2], fillvalue=nothing)
    return [{who: one.get(who, 0) + other.get(who, 0) for who in (*one, *other)} for one, other in pairs]


def decode(data: bytes, only: Container[str] | None = None) -> Digest:
    """Read the content of a digest, or of its tables those in `only`. Nothing in it is trusted.

    Raises NewerVersion, or ValueError: it is damaged, or no digest.
    """
    head, body = state_file.opened(data, FORM)
    try:
        return _decoded(head, body, only)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it is not well-formed: {error!r}") from error  # anybody can write a correct checksum


def _decoded(head: dict[str, Any], body: bytes, only: Container[str] | None) -> Digest:
    place = 0
    names, texts = [_text(name) for name in head["names"]], Texts([_text(text) for text in head["strings"]])
    rows: dict[str, list[Row]] = {}
    for name, table in TABLES.items():
        count, length = (_number(one, 0, most) for one, most in zip(head["tables"][name], (ROWS, DIGEST), strict=True))
        wanted = only is None or name in only
        rows[name] = rows_of(body[place : place + length], count, table.width) if wanted else []
        place += length
    if place != len(body):
        raise ValueError("it is longer than it says")
    bins: list[dict[int, int]] = [{} for _ in range(_number(head["bins"], 0, ROWS))]
    for at, who, ns in rows.pop("bins"):
        if not 0 <= at < len(bins):
            raise ValueError("a bin has a number that there is none of")
        bins[at][who] = ns
    fields = {name: TABLES[name].unpack(table, texts) for name, table in rows.items()}
    if any(not 0 <= who < FIXED + len(names) or ns < 0 for one in bins for who, ns in one.items()):
        raise ValueError("a bin has a category that there is none of, or a negative length")
    last = head["last_step"]
    overview = Overview(
        begin=_number(head["begin"]),
        width=_number(head["width"]),
        bins=bins,
        names=names,
        left_out=_number(head["left_out"]),
        last_step=None if last is None else _number(last),
        last_sign=_number(head["last_sign"]),
        stages=STAGES.load(head["stages"], Blobs()),
        **fields,
    )
    for phase in (*(entry.phase for entry in overview.phases), *(group.phase for group in overview.groups)):
        if not 0 <= phase < len(PHASES):
            raise ValueError(f"there is no phase {phase}")
    attempt, segment, record = (_number(one) for one in head["position"])
    dropped = {_text(name): _number(count) for name, count in head["dropped"].items()}
    return Digest(overview, _number(head["attempt"]), _number(head["written_at"]), (attempt, segment, record), dropped)


def _number(value: Any, least: int = -_ANY, most: int = _ANY) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r} is not a number that can stand there")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a {type(value).__name__} is not text")
    return encodable(value)


def write_digest(
    run: RunDirectory, process: int, overview: Overview, attempt: int, written_at: int, position: Position
) -> None:
    """Write the overview of a process, see :class:`Digest`. Raises OSError, or ValueError: it cannot be made to fit."""
    write_privately(run.file("digest", process), encode(overview, attempt, written_at, position))
