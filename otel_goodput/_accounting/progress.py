"""The kept executions of steps: a stack of increasing step numbers that takes 4 bytes per step if steps are regular.

A second stack holds a number for each of them, its *profile*: a byte in a table of those in use. (zlib would pack
better, but releases the GIL for each chunk, and then waits for a training thread to give it back.) Sealed chunks never
change: clones share them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import islice
from operator import lt
from typing import Any, Final, NamedTuple

from otel_goodput._accounting import codec
from otel_goodput._accounting.codec import Blobs, Each, Optional, Row, Shared, SharedList, State, Text, Whole, field
from otel_goodput._accounting.rules import STARTUP_SAMPLE
from otel_goodput._accounting.stats import median

CHUNK: Final = 1024
SHORT: Final = "I"  # net times below 4.3 s
LONG: Final = "q"
LONGEST: Final = 1 << 62  # net time of a step, ns
# Older chunks are reduced to summaries, so that a run of any length stays within 16 MB.
DETAILED_CHUNKS: Final = 1000


class Chunk(NamedTuple):
    """A sealed part of the stack: step numbers and net times (ns), or only a summary if `nets` is None."""

    numbers: Sequence[int]
    nets: Sequence[int] | None
    count: int  # type: ignore[assignment]
    total: int

    def entries(self) -> tuple[Sequence[int], Sequence[int]]:
        """Numbers and net times; a summary spreads them evenly."""
        if self.nets is not None:
            return self.numbers, self.nets
        first, last = self.numbers[0], self.numbers[-1]
        span = last - first
        numbers = [first + span * i // max(1, self.count - 1) for i in range(self.count)]
        nets = [self.total * (i + 1) // self.count - self.total * i // self.count for i in range(self.count)]
        return numbers, nets


def _packed(nets: Sequence[int]) -> array[int]:
    if isinstance(nets, array) and nets.typecode == SHORT:
        return nets
    return array(SHORT if max(nets) >> 32 == 0 else LONG, nets)


class _Chunks(Shared):
    """Sealed chunks; their net times are raw bytes."""

    def __init__(self) -> None:
        # Whether the numbers are a range, they or its bounds, typecode of the net times, count, total.
        numbers, code = Each(codec.NUMBER, CHUNK), Optional(Text(SHORT, LONG))
        super().__init__(Row(codec.FLAG, numbers, code, Whole(CHUNK, CHUNK + 1), codec.COUNT))

    def dump(self, value: SharedList[Chunk], blobs: Blobs) -> Any:
        rows = []
        for chunk in value:
            numbers, nets = chunk.numbers, chunk.nets
            spelled = [numbers.start, numbers.stop, numbers.step] if isinstance(numbers, range) else list(numbers)
            code = nets.typecode if isinstance(nets, array) else None
            if isinstance(nets, array):
                blobs.written.append(nets)
            rows.append((isinstance(numbers, range), spelled, code, chunk.count, chunk.total))
        return rows

    def load(self, plain: Any, blobs: Blobs) -> SharedList[Chunk]:
        chunks: SharedList[Chunk] = SharedList()
        for regular, spelled, code, count, total in super().load(plain, blobs):
            numbers = range(*spelled) if regular else array("q", spelled) if code else tuple(spelled)
            nets = None
            if code:
                nets = array(code)
                nets.frombytes(blobs.take(count * nets.itemsize))
            if len(numbers) != (count if code else 2) or numbers[0] > numbers[-1]:
                raise ValueError("a chunk has other steps than it says")
            chunks.append(Chunk(numbers, nets, count, total))
        return chunks


class Progress(State):
    """The stack of kept executions.

    Attributes:
        total, length: sum of the kept net times, ns; their number.
        top: the highest kept step number, -1 when nothing is kept.
    """

    _chunks: SharedList[Chunk] = field(_Chunks(), make=SharedList)
    _numbers: list[int] = field(Each(codec.NUMBER, CHUNK - 1), make=list)
    _nets: list[int] = field(Each(Whole(0, LONGEST), CHUNK - 1), make=list, key="net_times")
    total: int = field(codec.COUNT, 0)
    top = -1
    length = 0
    # Medians of the first net times, by how many are looked at. Replaced, never changed, because clones share it.
    _early: Mapping[int, list[int]] = {}

    def loaded(self) -> None:
        numbers, nets = self._numbers, self._nets
        self.length = len(self._chunks) * CHUNK + len(nets)
        if numbers or self._chunks:
            self.top = numbers[-1] if numbers else self._chunks[-1].numbers[-1]
        if len(numbers) != len(nets) or not all(map(lt, numbers, numbers[1:])):
            raise ValueError("the kept steps contradict each other")
        if self.total != sum(nets) + sum(chunk.total for chunk in self._chunks):
            raise ValueError("the kept steps do not add up")

    def __len__(self) -> int:
        return self.length

    def push(self, number: int, net: int) -> None:
        """Keep an execution. Its number must be higher than `top`."""
        self._numbers.append(number)
        self._nets.append(net)
        self.total += net
        self.top = number
        if self._early and self.length <= STARTUP_SAMPLE:
            self._early = {}
        self.length += 1
        if not self.length % CHUNK:
            self._seal()

    def extend(self, numbers: Sequence[int], nets: Sequence[int]) -> None:
        """Keep executions, numbered in rising order and higher than `top`."""
        if self._early and self.length <= STARTUP_SAMPLE:
            self._early = {}
        at, count = 0, len(numbers)
        while at < count:
            taken = min(count - at, CHUNK - len(self._nets))
            if taken == CHUNK and isinstance(numbers, range) and isinstance(nets, array):
                whole = nets[at : at + CHUNK]
                total = sum(whole)
                self._add(Chunk(numbers[at : at + CHUNK], _packed(whole), CHUNK, total))
                self.total += total
                at += CHUNK
                continue
            some = nets[at : at + taken]
            self._numbers += numbers[at : at + taken]
            self._nets += some
            self.total += sum(some)
            at += taken
            if len(self._nets) == CHUNK:
                self._seal()
        self.top = numbers[-1]
        self.length += count

    def _seal(self) -> None:
        numbers, nets = self._numbers, self._nets
        run = range(numbers[0], numbers[-1] + 1, max(1, numbers[1] - numbers[0]))
        regular = len(run) == CHUNK and (run.step == 1 or list(run) == numbers)  # they rise
        self._numbers, self._nets = [], []
        self._add(Chunk(run if regular else array("q", numbers), _packed(nets), len(nets), sum(nets)))

    def _add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        if len(self._chunks) > DETAILED_CHUNKS:
            oldest = len(self._chunks) - DETAILED_CHUNKS - 1
            old = self._chunks[oldest]
            self._chunks[oldest] = old._replace(numbers=(old.numbers[0], old.numbers[-1]), nets=None)

    def pop_from(self, number: int) -> list[tuple[int, int]]:
        """Pop every entry numbered `number` or higher; returns (number, net time in ns), lowest number first."""
        popped: list[tuple[list[int], list[int]]] = []
        while self.top >= number:
            if not self._nets:
                numbers, nets = self._chunks.pop().entries()
                self._numbers, self._nets = list(numbers), list(nets)
            cut = bisect_left(self._numbers, number)
            popped.append((self._numbers[cut:], self._nets[cut:]))
            del self._numbers[cut:], self._nets[cut:]
            if self._numbers:
                self.top = self._numbers[-1]
            else:
                self.top = self._chunks[-1].numbers[-1] if self._chunks else -1
        entries = [pair for numbers, nets in reversed(popped) for pair in zip(numbers, nets, strict=True)]
        self.total -= sum(net for _, net in entries)
        self.length -= len(entries)
        if entries and self.length <= STARTUP_SAMPLE:
            self._early = {}
        return entries

    def lengthen(self, index: int, duration: int) -> None:
        """Add `duration` ns to the net time of the entry at `index`. The work is bounded by the entries of a chunk."""
        self.total += duration
        if self._early and index <= STARTUP_SAMPLE:
            self._early = {}
        at, within = divmod(index, CHUNK)
        if at >= len(self._chunks):
            self._nets[within] += duration
            return
        chunk = self._chunks[at]
        nets = chunk.nets
        if nets is not None:
            changed = list(nets)
            changed[within] += duration
            nets = _packed(changed)
        self._chunks[at] = chunk._replace(nets=nets, total=chunk.total + duration)

    def early_median(self, but: int | None) -> int | None:
        """Median of the first kept net times but 0, without the entry at index `but`, ns; None if there are none."""
        within = but is not None and but <= STARTUP_SAMPLE
        size = STARTUP_SAMPLE + within
        ordered = self._early.get(size)
        if ordered is None:
            ordered = sorted(filter(None, self.nets(0, size)))
            self._early = {**self._early, size: ordered}
        if within and but is not None and (own := self.nets(but, but + 1)[0]):
            at = bisect_left(ordered, own)
            ordered = ordered[:at] + ordered[at + 1 :]
        return median(ordered, ordered=True) if ordered else None

    @property
    def summarized(self) -> int:
        """How many of the first entries have only mean net times."""
        return CHUNK * sum(chunk.nets is None for chunk in self._chunks)

    def index_above(self, number: int) -> int:
        """How many kept entries are numbered `number` or lower."""
        if self._numbers and self._numbers[0] <= number:
            return len(self._chunks) * CHUNK + bisect_left(self._numbers, number + 1)
        at = bisect_left(self._chunks, number + 1, key=lambda chunk: chunk.numbers[-1])
        if at == len(self._chunks):
            return at * CHUNK
        return at * CHUNK + bisect_left(self._chunks[at].entries()[0], number + 1)

    def total_from(self, index: int) -> int:
        """Sum of the net times of the entries from `index` on, ns."""
        at, within = divmod(index, CHUNK)
        chunks = len(self._chunks)
        if 2 * at < chunks:  # subtract the others, which are fewer
            above = self.total - sum(chunk.total for chunk in islice(self._chunks, at))
        else:
            above = sum(chunk.total for chunk in islice(reversed(self._chunks), chunks - at)) + sum(self._nets)
        entries = self._nets if at >= chunks else self._chunks[at].entries()[1] if within else ()
        return above - sum(entries[:within])

    def nets(self, start: int, stop: int) -> list[int]:
        """Net times of the entries from `start` up to, not including, `stop`, in ns. The range is clipped."""
        start, stop = max(0, start), min(stop, self.length)
        nets: list[int] = []
        while start < stop:
            at, within = divmod(start, CHUNK)
            source = self._chunks[at].entries()[1] if at < len(self._chunks) else self._nets
            taken = source[within : within + stop - start]
            nets.extend(taken)
            start += len(taken)
        return nets

    def number_at(self, index: int) -> int:
        at, within = divmod(index, CHUNK)
        return self._chunks[at].entries()[0][within] if at < len(self._chunks) else self._numbers[within]


CODE: Final = "I"
JOINED: Final = 64  # chunks in a blob, so that it is returned to the system when it is freed
TABLE: Final = 256  # numbers that a byte can tell apart
SIZE: Final = array(CODE).itemsize


class Packed(NamedTuple):
    """A sealed chunk: places in the `table` of its numbers; without a table, the numbers themselves. As raw bytes."""

    data: bytes
    table: bytes | None


class _ProfileChunks(Shared):
    """Sealed chunks: of each the size of its table (0: there is none; None: it is forgotten); all else is raw bytes."""

    def __init__(self) -> None:
        super().__init__(Optional(Whole(0, TABLE + 1)))

    def dump(self, value: SharedList[Packed | None], blobs: Blobs) -> Any:
        held = [chunk for chunk in value if chunk is not None]
        for at in range(0, len(held), JOINED):
            blobs.written.append(
                b"".join(raw for chunk in held[at : at + JOINED] for raw in (chunk.table or b"", chunk.data))
            )
        return [None if chunk is None else len(chunk.table or ()) // SIZE for chunk in value]

    def load(self, plain: Any, blobs: Blobs) -> SharedList[Packed | None]:
        chunks: SharedList[Packed | None] = SharedList()
        for size in super().load(plain, blobs):
            if size is None:
                chunks.append(None)
                continue
            table = blobs.take(size * SIZE) if size else None
            data = blobs.take(CHUNK if size else CHUNK * SIZE)
            if size and max(data) >= size:
                raise ValueError("a chunk of profiles has fewer of them than it needs")
            chunks.append(Packed(data, table))
        return chunks


class Profiles(State):
    """A stack of numbers from 0 to 2**32 - 1. Sealed chunks never change, because clones share them."""

    _chunks: SharedList[Packed | None] = field(_ProfileChunks(), make=SharedList)
    _open: array[int] = field(
        Each(Whole(0, 1 << 32), CHUNK - 1, lambda numbers: array(CODE, numbers)), make=lambda: array(CODE)
    )

    def __len__(self) -> int:
        return len(self._chunks) * CHUNK + len(self._open)

    def extend(self, numbers: Sequence[int]) -> None:
        """Push all of them, the last on top."""
        self._open.extend(numbers)
        while len(self._open) >= CHUNK:
            self._chunks.append(_sealed(self._open[:CHUNK]))
            self._open = self._open[CHUNK:]
            if len(self._chunks) > DETAILED_CHUNKS:
                self._chunks[-DETAILED_CHUNKS - 1] = None

    def pop_from(self, index: int) -> list[int]:
        """Pop all from `index` on; returns them, lowest index first, 0 for those that are forgotten."""
        popped: list[Sequence[int]] = []
        while len(self) > index:
            if not self._open:
                last = self._chunks.pop()
                self._open = array(CODE, bytes(CHUNK * SIZE) if last is None else _unpacked(last))
            cut = max(0, index - len(self._chunks) * CHUNK)
            popped.append(self._open[cut:])
            del self._open[cut:]
        return [number for part in reversed(popped) for number in part]


def _sealed(chunk: array[int]) -> Packed:
    numbers = sorted(set(chunk))
    if len(numbers) > TABLE:
        return Packed(chunk.tobytes(), None)
    places = {number: place for place, number in enumerate(numbers)}
    return Packed(bytes(map(places.__getitem__, chunk)), array(CODE, numbers).tobytes())


def _unpacked(chunk: Packed) -> bytes:
    data, table = chunk
    if table is None:
        return data
    numbers = bytearray(len(data) * SIZE)
    for at in range(SIZE):  # byte by byte of all numbers at once
        numbers[at::SIZE] = data.translate(table[at::SIZE].ljust(TABLE))
    return bytes(numbers)
