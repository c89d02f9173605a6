"""The overview of a process's whole run as one small file, so that a run is drawn without reading its segments.

The head and then one table after another. A table is columns of 64-bit integers: successive differences, all first
bytes before all second bytes and so on, packed with zlib. The head says how many rows each table has and how many bytes
it takes, so nothing is unpacked beyond what was said, and that is bounded.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.checkpoints import STAGES
from otel_goodput._accounting.codec import Blobs
from otel_goodput._accounting.overview import Overview
from otel_goodput._accounting.rules import FIXED
from otel_goodput._journal import state_file
from otel_goodput._journal.columns import Row, rows_of
from otel_goodput._journal.columns import packed as pack
from otel_goodput._journal.overview_rows import TABLES, Table, Texts
from otel_goodput._journal.rundir import DIGEST, RunDirectory
from otel_goodput._runtime import files
from otel_goodput._runtime.files import write_privately
from otel_goodput._text.redact import encodable
from otel_goodput.semconv import PHASES

FORM: Final = state_file.Form("digest", b"OGDIGEST", 1, files.MIB, DIGEST)
ROWS: Final = 1 << 17  # of one table at most
_ANY: Final = 1 << 62  # bound of a number in the head

_WITH_TEXTS: Final = {name: table.text for name, table in TABLES.items() if table.text is not None}

Position = tuple[int, int, int]


class Digest(NamedTuple):
    """What a digest says.

    Attributes:
        overview: of the run so far.
        attempt: number of the attempt that wrote it, from 0.
        written_at: the moment of the overview, ns.
        position: the records before this one are in it: (attempt, segment, record).
        dropped: what was left out to keep the file small: number of rows by table, and ``bins`` for how often the bins
            were merged in pairs.
    """

    overview: Overview
    attempt: int
    written_at: int
    position: Position
    dropped: dict[str, int]


def encode(overview: Overview, attempt: int, written_at: int, position: Position, most: int = DIGEST) -> bytes:
    """An overview as the content of a digest; see :class:`Digest` for the arguments.

    If it is larger than `most` bytes, half of the largest table is left out, again and again: the shortest phases and
    steps, the oldest of what has no length. Bins are merged in pairs instead, so that they still add up.
    """
    dropped: dict[str, int] = {}
    left_out = overview.left_out
    fields = {name: getattr(overview, name) for name in TABLES}
    width, bins = overview.width, list(fields.pop("bins"))
    texts = Texts()
    rows = {name: TABLES[name].pack(field, texts) for name, field in fields.items()}
    rows["bins"] = TABLES["bins"].pack(bins, texts)
    packed = {name: pack(table) for name, table in rows.items()}
    while True:
        used = _only_used(rows, texts)
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
        found = b"".join(state_file.pieces(FORM, text, [packed[name] for name in TABLES]))
        if len(found) <= most and len(text) <= FORM.head and all(len(one) <= ROWS for one in rows.values()):
            return found
        name = max(
            TABLES, key=lambda each: (len(rows[each]) > ROWS, len(packed[each]) + _texts_of(each, rows, used), each)
        )
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


def _only_used(rows: dict[str, list[Row]], texts: Texts) -> list[str]:
    """The texts, with those emptied that no row refers to any more."""
    used = {row[column] for name, column in _WITH_TEXTS.items() for row in rows[name]}
    return [text if number in used else "" for number, text in enumerate(texts.known)]


def _texts_of(name: str, rows: dict[str, list[Row]], texts: Sequence[str]) -> int:
    """About how many bytes the texts of a table take in the packed head."""
    column = _WITH_TEXTS.get(name)
    return 0 if column is None else sum(len(texts[number]) for number in {row[column] for row in rows[name]}) // 3


def _half(table: Table, rows: list[Row]) -> list[Row]:
    """The half of the rows to keep, in their order."""
    keep = len(rows) // 2
    if table.longest is None:
        return rows[len(rows) - keep :]
    longest = table.longest
    chosen = sorted(range(len(rows)), key=lambda at: (-longest(rows[at]), at))[:keep]
    return [rows[at] for at in sorted(chosen)]


def _merged(bins: Sequence[Any]) -> list[dict[int, int]]:
    merged = []
    for at in range(0, len(bins), 2):
        both: dict[int, int] = {}
        for one in bins[at : at + 2]:
            for who, ns in one.items():
                both[who] = both.get(who, 0) + ns
        merged.append(both)
    return merged


def decode(data: bytes, only: Container[str] | None = None) -> Digest:
    """Read the content of a digest, or of its tables those in `only`. Nothing in it is trusted.

    Raises:
        NewerVersion: a newer version wrote it.
        ValueError: it is damaged, or no digest.
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


def _number(found: Any, least: int = -_ANY, most: int = _ANY) -> int:
    if type(found) is not int or not least <= found <= most:
        raise ValueError(f"{found!r} is not a number that can stand there")
    return found


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise ValueError(f"a {type(found).__name__} is not text")
    return encodable(found)


def write_digest(
    run: RunDirectory, process: int, overview: Overview, attempt: int, written_at: int, position: Position
) -> None:
    """Write the overview of a process, see :class:`Digest` for the arguments.

    Raises:
        OSError: it cannot be written.
        ValueError: it cannot be made to fit a digest.
    """
    write_privately(run.digest_path(process), encode(overview, attempt, written_at, position))
