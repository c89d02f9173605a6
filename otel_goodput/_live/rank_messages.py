"""What a rank publishes as bytes: an update of its own partition, and who it is.

Steps and pieces are one sequence, in which most begin where the one before ended and have the next number: then only
their lengths are written. Turns of a loop, which are a piece and a step each, are written and read together, as a run,
in eight bytes each. What comes from another process is not trusted.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from heapq import merge
from itertools import accumulate, repeat
from operator import attrgetter
from typing import Final, NamedTuple

from otel_goodput._accounting.events import NOT_KNOWN
from otel_goodput._accounting.own_time import OwnTime
from otel_goodput._accounting.rank_updates import Opened, RankUpdate
from otel_goodput._accounting.ranks import ENDED, STEP_TIME, Piece, RankStep
from otel_goodput._accounting.rules import CUSTOM, CUT_OUT, RECOVERY
from otel_goodput._journal.usage_now import UsageNow
from otel_goodput._text.redact import encodable
from otel_goodput.semconv import CATEGORIES

VERSION: Final = 6  # ranks of one job run the same version, and no message is read again later
MOST: Final = 64 << 10  # bytes of a message
TEXT: Final = 255  # bytes of a host, a role and a name
NAMES: Final = 64  # custom names in a message; the others are OVERFLOW
OVERFLOW: Final = "overflow"
LARGEST_GROUP: Final = 1 << 30
LARGEST_COUNT: Final = 1 << 20  # devices of a process
STEPS: Final = 1 << 17  # that those of a message may stand for: each makes work for the leader
_CATEGORIES: Final = 128  # what is in place of a category number, which is negative, is written as one up to this
_ENDED: Final = _CATEGORIES  # in place of that of time in which a rank is away, if its job before ended cleanly
_LARGEST: Final = (1 << 62) - 1  # of all numbers
_make: Final = tuple.__new__  # a third of the time of a named tuple's constructor
_ROOM: Final = 9  # bytes of a number
# Flags of an element: it does not begin where the one before ended; it is a step; that has another number than the next
# one; that has flags; that is open; that stands for several; the step is the first one of a run. Above the first two, a
# piece has its category.
_GAP, _STEP, _JUMP, _FLAGS, _OPEN, _GROUP, _RUN = 1, 2, 4, 8, 16, 32, 64
_FEWEST: Final = 2  # turns of a run
_LONGEST: Final = (1 << 32) - 1  # piece or step in a run, ns


class MessageTooLarge(ValueError):
    """A message of more than ``MOST`` bytes, or with more than ``STEPS`` steps."""


class ClockSigns(NamedTuple):
    """What a process knows of its clock.

    Attributes:
        host: a number of the host; processes with the same one have the same monotonic clock.
        anchor: how far the clock of the process is ahead of that, ns.
        folder: by how much, at least and at most, it is ahead of the server of the run's folder, ns; None: not known.
        leader: the host of the leader, and by how much, at least and at most, the monotonic clock of this one is ahead
            of that of the leader's, ns; None: not known.
    """

    host: int
    anchor: int
    folder: tuple[int, int] | None = None
    leader: tuple[int, int, int] | None = None


class RankMessage(NamedTuple):
    """An update of a rank.

    Attributes:
        number: of the message, from 0 on in each attempt.
        attempt, host, pid, role: of the process; `role` may be empty.
        devices: that it computes with; 0 if that is not known.
        clock: what it knows of its clock.
        usage: of processor, memory and accelerators, if it was sampled since the message before.
        own: what samples of its training thread say so far.
    """

    number: int
    attempt: int
    host: str
    pid: int
    role: str
    devices: int
    clock: ClockSigns
    update: RankUpdate
    usage: UsageNow | None = None
    own: OwnTime = OwnTime()


class _Run(NamedTuple):
    """Turns of a loop without a gap: a piece of this category and a step each, the first of which has this number."""

    begin: int
    end: int
    number: int
    turns: int
    category: int


class _Writer:
    def __init__(self) -> None:
        self.data = bytearray()

    def count(self, number: int) -> None:
        """Write a number from 0 on."""
        if not 0 <= number <= _LARGEST:
            raise ValueError(f"{number} cannot be in a message")
        while number > 127:
            self.data.append(number & 127 | 128)
            number >>= 7
        self.data.append(number)

    def signed(self, number: int) -> None:
        self.count(2 * number if number >= 0 else -2 * number - 1)

    def maybe(self, moment: int, base: int) -> None:
        """Write a moment, or that it is not known."""
        self.count(moment != NOT_KNOWN)
        if moment != NOT_KNOWN:
            self.signed(base - moment)

    def between(self, limits: tuple[int, int] | None) -> None:
        """Write a length between two limits, or that it is not known."""
        self.count(limits is not None)
        if limits is not None:
            self.signed(limits[0])
            self.count(limits[1] - limits[0])

    def text(self, text: str) -> None:
        encoded = encodable(text).encode()[:TEXT].decode("utf-8", "ignore").encode()
        self.count(len(encoded))
        self.data += encoded


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def count(self, most: int = _LARGEST) -> int:
        data, at, number, shift = self.data, self.at, 0, 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift >= 7 * _ROOM:
                raise ValueError("a number is too long")
        self.at = at
        if number > most:
            raise ValueError(f"{number} is too large")
        return number

    def rest(self) -> list[int]:
        """Return all numbers that are left, in a third of the time."""
        numbers: list[int] = []
        number = shift = 0
        for byte in self.data[self.at :]:
            if byte < 128:
                numbers.append(number | byte << shift)
                number = shift = 0
            else:
                number |= (byte & 127) << shift
                shift += 7
                if shift >= 7 * _ROOM:
                    raise ValueError("a number is too long")
        if shift or max(numbers, default=0) > _LARGEST:
            raise ValueError("a number is cut short, or too large")
        self.at = len(self.data)
        return numbers

    def lengths(self) -> Sequence[int]:
        """Return the lengths of the pieces and steps in all runs, ns."""
        size = 4 * self.count(MOST)
        begin, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise ValueError("it is cut short")
        return _in_order(array("I", self.data[begin : self.at]))

    def signed(self) -> int:
        return _signed(self.count())

    def moment(self, base: int) -> int:
        """A time, `base` (ns) being what it is relative to."""
        moment = base - self.signed()
        if not 0 <= moment <= _LARGEST:
            raise ValueError("a time is out of range")
        return moment

    def maybe(self, base: int) -> int:
        return self.moment(base) if self.count(1) else NOT_KNOWN

    def between(self) -> tuple[int, int] | None:
        if not self.count(1):
            return None
        least = self.signed()
        return least, least + self.count()

    def text(self) -> str:
        length = self.count(TEXT)
        begin, self.at = self.at, self.at + length
        if self.at > len(self.data):
            raise ValueError("it is cut short")
        return self.data[begin : self.at].decode()


def encode(message: RankMessage) -> bytes:
    """Return the bytes of a message; long texts are cut. Raises MessageTooLarge, or ValueError: it is out of range."""
    number, attempt, host, pid, role, devices, clock, update, usage, own = message
    writer = _Writer()
    for count in (VERSION, number, attempt, pid):
        writer.count(count)
    writer.text(host)
    writer.text(role)
    writer.count(min(devices, LARGEST_COUNT))
    writer.count(update.at)
    writer.count(clock.host)
    writer.signed(update.at - clock.anchor)
    writer.between(clock.folder)
    writer.count(0 if clock.leader is None else clock.leader[0])
    writer.between(None if clock.leader is None else clock.leader[1:])
    writer.count(usage is not None)
    for figure in usage or ():
        writer.signed(figure)
    for count in own:
        writer.count(count)
    writer.count(update.at - update.known)
    writer.maybe(update.joined, update.at)
    writer.maybe(update.left, update.at)
    writer.count(update.size)
    opened = update.opened
    named: list[Opened | Piece] = [*update.pieces, *([] if opened is None else [opened])]
    names = list(dict.fromkeys(one.name for one in named if one.category == CUSTOM))
    places = {name: min(at, NAMES) for at, name in enumerate(names)}
    written = [*names[:NAMES], OVERFLOW] if len(names) > NAMES else names
    writer.count(len(written))
    for name in written:
        writer.text(name)
    writer.count(opened is not None)
    if opened is not None:
        writer.count((opened.category - STEP_TIME) % _CATEGORIES)
        if opened.category == CUSTOM:
            writer.count(places[opened.name])
        writer.signed(opened.number)
        writer.maybe(opened.since, update.at)
    both: tuple[Sequence[RankStep | Piece], ...] = (update.steps, update.pieces)
    elements, lengths = _in_runs(list(merge(*both, key=attrgetter("begin"))))
    writer.count(len(lengths))
    writer.data += _in_order(lengths).tobytes()
    writer.count(len(elements))
    place, following = update.known, 0
    for one in elements:
        gap = one.begin != place
        if isinstance(one, _Run):
            writer.count(gap * _GAP | _STEP | _RUN)
        elif isinstance(one, RankStep):
            jump, opens = one.number != following, one.end == NOT_KNOWN
            group = (one.steps > 1) * _GROUP
            writer.count(gap * _GAP | _STEP | jump * _JUMP | (one.flags != 0) * _FLAGS | opens * _OPEN | group)
        else:
            category = _ENDED if one.name == ENDED and one.category == RECOVERY else one.category % _CATEGORIES
            writer.count(category << 2 | gap * _GAP)
        if gap:
            writer.signed(one.begin - place)
        if isinstance(one, _Run):
            writer.count(one.category)
            writer.count(one.turns)
            writer.signed(one.number - following)
            place, following = one.end, one.number + one.turns
            continue
        place = one.begin
        if one.end != NOT_KNOWN:
            writer.count(one.end - one.begin)
            place = one.end
        if isinstance(one, RankStep):
            if jump:
                writer.signed(one.number - following)
            if one.flags:
                writer.count(one.flags)
            if one.steps > 1:
                writer.count(min(one.steps, STEPS // 2))
            following = one.number + 1
        elif one.category == CUSTOM:
            writer.count(places[one.name])
    stands = sum(min(step.steps, STEPS // 2) for step in update.steps)
    if len(writer.data) > MOST or (stands > STEPS and len(update.steps) > 1):
        raise MessageTooLarge(f"a message of {len(writer.data)} bytes, with {stands} steps")
    return bytes(writer.data)


def _in_runs(elements: Sequence[RankStep | Piece]) -> tuple[list[RankStep | Piece | _Run], array[int]]:
    """Put turns of a loop together; also return the lengths of the pieces and steps in runs, ns."""
    fewer, lengths, at = list[RankStep | Piece | _Run](), array("I"), 0
    while at < len(elements):
        turns = _turns(elements, at)
        if turns < _FEWEST:
            fewer.append(elements[at])
            at += 1
            continue
        run = elements[at : at + 2 * turns]
        piece, first = run[:2]
        assert isinstance(piece, Piece)
        assert isinstance(first, RankStep)
        fewer.append(_Run(piece.begin, run[-1].end, first.number, turns, piece.category))
        lengths.extend([one.end - one.begin for one in run])
        at += len(run)
    return fewer, lengths


def _turns(elements: Sequence[RankStep | Piece], at: int) -> int:
    """Return how many turns of a run there are from the element `at` on."""
    turns = place = following = category = 0
    for first in range(at, len(elements) - 1, 2):
        piece, step = elements[first], elements[first + 1]
        if not (isinstance(piece, Piece) and isinstance(step, RankStep)):
            break
        if not turns:
            place, following, category = piece.begin, step.number, piece.category
        if (
            (piece.begin, piece.end, piece.category, step.number) != (place, step.begin, category, following)
            or piece.name
            or category < 0
            or category == CUSTOM
            or step.begin - piece.begin > _LONGEST
            or not 0 < step.end - step.begin <= _LONGEST
            or step.flags
            or step.steps > 1
        ):
            break
        turns, place, following = turns + 1, step.end, following + 1
    return turns


def _in_order(lengths: array[int]) -> array[int]:
    """Return numbers in the order of bytes of a message, which is little-endian, or of this machine."""
    if sys.byteorder != "little":
        lengths.byteswap()
    return lengths


def decode(data: bytes) -> RankMessage:
    """Return the message that is in `data`. Raises ValueError: it is none, damaged, or contradicts itself."""
    if len(data) > MOST:
        raise ValueError(f"a message of {len(data)} bytes")
    try:
        return _decoded(_Reader(data))
    except (IndexError, StopIteration) as error:
        raise ValueError("it is cut short, or names something that is not there") from error


def _decoded(reader: _Reader) -> RankMessage:
    if reader.count() != VERSION:
        raise ValueError("a message of another version")
    number, attempt, pid = reader.count(), reader.count(), reader.count()
    host, role, devices = reader.text(), reader.text(), reader.count(LARGEST_COUNT)
    at = reader.count()
    place, anchor, folder = reader.count(), at - reader.signed(), reader.between()
    leader, apart = reader.count(), reader.between()
    clock = ClockSigns(place, anchor, folder, None if apart is None else (leader, *apart))
    usage = UsageNow(*(reader.signed() for _ in UsageNow._fields)) if reader.count(1) else None
    own = OwnTime(*(reader.count() for _ in OwnTime._fields))
    known = at - reader.count(at)
    joined, left = reader.maybe(at), reader.maybe(at)
    size = reader.count(LARGEST_GROUP)
    names = [reader.text() for _ in range(reader.count(NAMES + 1))]
    opened = None
    if reader.count(1):
        category = _category(reader.count() + STEP_TIME)
        name = names[reader.count()] if category == CUSTOM else ""
        opened = Opened(category, name, reader.signed(), reader.maybe(at))
    steps, pieces = list[RankStep](), list[Piece]()
    place, following, several = known, 0, len(CATEGORIES) << 2
    lengths, taken = reader.lengths(), 0
    left_over, numbers = reader.count(len(reader.data)), iter(reader.rest())
    for kind in numbers:
        left_over -= 1
        begin = place
        if kind & _GAP:
            begin += _signed(next(numbers))
        if kind & _RUN and kind & _STEP:
            category, turns, following = next(numbers), next(numbers), following + _signed(next(numbers))
            run, taken = lengths[taken : taken + 2 * turns], taken + 2 * turns
            if taken > len(lengths) or category >= len(CATEGORIES) or category == CUSTOM:
                raise ValueError("a run that there is none of")
            moments = list(accumulate(run, initial=begin))
            begins, ends, place = moments[1::2], moments[2::2], moments[-1]
            loads = zip(moments[::2], begins, repeat(category), repeat(""), strict=False)
            pieces += map(_make, repeat(Piece), loads)
            bodies = zip(range(following, following + turns), begins, ends, repeat(0), repeat(1), strict=False)
            steps += map(_make, repeat(RankStep), bodies)
            following += turns
        elif kind & _STEP:
            if kind & _OPEN:
                end, place = NOT_KNOWN, begin
            else:
                end = place = begin + next(numbers)
            following += _signed(next(numbers)) if kind & _JUMP else 0
            flags = next(numbers) if kind & _FLAGS else 0
            steps.append(_make(RankStep, (following, begin, end, flags, next(numbers) if kind & _GROUP else 1)))
            following += 1
        else:
            place = begin + next(numbers)
            if kind >> 2 == _ENDED:
                pieces.append(_make(Piece, (begin, place, RECOVERY, ENDED)))
                continue
            category = kind >> 2 if kind < several else _category(kind >> 2)
            name = names[next(numbers)] if category == CUSTOM else ""
            pieces.append(_make(Piece, (begin, place, category, name)))
    if left_over or taken != len(lengths):
        raise ValueError("it is not as long as it says")
    update = RankUpdate(joined, known, at, left, steps, pieces, opened, size)
    _prove(update)
    if usage is not None and not usage.valid:
        raise ValueError("its usage is out of range")
    return RankMessage(number, attempt, host, pid, role, devices, clock, update, usage, own)


def _category(number: int) -> int:
    """Return the category number, or what is in place of it, that is written as `number`."""
    category = number if number < len(CATEGORIES) else number - _CATEGORIES
    if category != STEP_TIME and category not in CUT_OUT and not 0 <= category < len(CATEGORIES):
        raise ValueError("a category that there is none of")
    return category


def _signed(number: int) -> int:
    return -(number + 1 >> 1) if number & 1 else number >> 1


def _prove(update: RankUpdate) -> None:
    """Raise ValueError if an update is none that a rank can have made."""
    steps, pieces, known = update.steps, update.pieces, update.known
    place = 0
    for begin, end, *_ in pieces:
        if not place <= begin < end:
            raise ValueError("it contradicts itself")
        place = end
    before, last = 0, len(steps) - 1
    for at, (number, begin, end, _, count) in enumerate(steps):
        opens = end == NOT_KNOWN and at == last
        if not (
            before <= begin <= _LARGEST
            and (opens or begin < end <= known)
            and number <= _LARGEST
            and 1 <= count <= number + 1
        ):
            raise ValueError("it contradicts itself")
        before = begin
    if (
        place > known
        or update.size < 1
        or update.size & (update.size - 1)
        or (update.joined == NOT_KNOWN and (steps or pieces))
        or sum(step.steps for step in steps) > STEPS
    ):
        raise ValueError("it contradicts itself")
