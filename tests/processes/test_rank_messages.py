"""What a rank publishes as bytes: small, exact, and nothing in it is trusted."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from dataclasses import dataclass

import pytest

from otel_goodput._accounting.events import FAILED, NO_STEP, NOT_KNOWN
from otel_goodput._accounting.rank_groups import MOST as GROUPED
from otel_goodput._accounting.rank_updates import Opened, RankUpdate
from otel_goodput._accounting.ranks import ENDED, STEP_TIME, Piece, RankStep
from otel_goodput._accounting.rules import CUSTOM, CUT_OUT, DATA_LOADING_TIME, EXCLUDED_TIME, RECOVERY
from otel_goodput._journal.usage_now import UNKNOWN, UsageNow
from otel_goodput._live.rank_messages import (
    MOST,
    NAMES,
    OVERFLOW,
    STEPS,
    TEXT,
    ClockSigns,
    MessageTooLarge,
    RankMessage,
    decode,
    encode,
)
from otel_goodput.semconv import CATEGORIES

BEGIN = 1_764_000_000 * 10**9
HOST, ANCHOR = (1 << 61) - 7, BEGIN - 10**15
CLOCKS = (
    ClockSigns(HOST, ANCHOR),
    ClockSigns(1, BEGIN + 10**12, (-5, 10**7)),
    ClockSigns(HOST, ANCHOR, (3_600 * 10**9, 3_601 * 10**9), (HOST - 1, -(10**16), -(10**16) + 5)),
)


def message(update: RankUpdate, **more: object) -> RankMessage:
    return RankMessage(7, 1, "host-3", 4242, "", 0, ClockSigns(HOST, ANCHOR), update)._replace(**more)


USAGE = UsageNow(BEGIN, 10**13, 10**12, 2**33, 250_000, 2**37, 2**40, 1, 8, 990_000, 2**38, 2**39, 5_600_000, 1)


@pytest.mark.parametrize(
    "usage", [None, USAGE, USAGE._replace(accelerator=0, accelerator_power=UNKNOWN, throttled=UNKNOWN)]
)
def test_usage_is_published_too(usage: UsageNow | None) -> None:
    alone = message(steady(2))
    assert decode(encode(alone._replace(usage=usage))) == alone._replace(usage=usage)
    assert len(encode(alone._replace(usage=usage))) <= len(encode(alone)) + 80


@pytest.mark.parametrize(
    "wrong",
    [
        {"user": -1},
        {"machine_memory": UNKNOWN},
        {"machine_cpu": 1_000_001},
        {"accelerator": 3},
        {"throttled": 32},
        {"accelerator_busy": -2},
        {"accelerator_busy": 1_000_001},
        {"accelerator_power": -2},
    ],
)
def test_usage_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="usage"):
        decode(encode(message(steady(2), usage=USAGE._replace(**wrong))))


def steady(count: int, period: int = 500_000_000) -> RankUpdate:
    """Steps with a load before each, of about `period` ns, the last of which is open."""
    rng, steps, pieces, at = random.Random(count), list[RankStep](), list[Piece](), BEGIN
    for number in range(count):
        begin = at + rng.randrange(period // 10)
        end = begin + period + rng.randrange(period // 10)
        pieces.append(Piece(at, begin, DATA_LOADING_TIME))
        steps.append(RankStep(1000 + number, begin, end))
        at = end
    steps.append(RankStep(1000 + count, at, NOT_KNOWN))
    opened = Opened(STEP_TIME, "", 1000 + count, at)
    return RankUpdate(BEGIN - 10**12, at, at + 10**9, NOT_KNOWN, steps, pieces, opened)


def drawn(rng: random.Random) -> RankUpdate:
    """An update with anything that may be in one."""
    steps, pieces, at, number = list[RankStep](), list[Piece](), BEGIN, rng.randrange(100)
    for _ in range(rng.randrange(40)):
        at += rng.choice((0, 0, rng.randrange(10**9)))
        end = at + rng.randint(1, 10**10)
        if rng.random() < 0.5:
            number = max(0, number + rng.choice((1, 1, 1, 5, -3)))
            steps.append(RankStep(number, at, end, rng.choice((0, 0, FAILED)), rng.randint(1, min(number + 1, 9))))
            if rng.random() < 0.2 and end - at > 10:
                pieces.append(Piece(at + 3, end - 2, CUSTOM, rng.choice(("eval", "späť", ""))))
        else:
            category = rng.choice([*(one for one in range(len(CATEGORIES)) if one != CUSTOM), *sorted(CUT_OUT)])
            ended = category == RECOVERY and rng.random() < 0.5
            pieces.append(Piece(at, end, category, ENDED if ended else ""))
        at = end
    if rng.random() < 0.5:
        steps.append(RankStep(number + 1, at, NOT_KNOWN))
    doing = [Opened(category, "", 3, at) for category in (STEP_TIME, EXCLUDED_TIME)]
    opened = rng.choice((None, Opened(CUSTOM, "eval", NO_STEP, at), *doing))
    left = rng.choice((NOT_KNOWN, at))
    return RankUpdate(
        BEGIN - rng.choice((0, 10**15)),
        at,
        at + rng.randrange(10**10),
        left,
        steps,
        pieces,
        opened,
        rng.choice((1, 1, 8)),
    )


def test_a_message_is_read_as_it_was_written() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        written = message(
            drawn(rng),
            role=rng.choice(("", "generator")),
            devices=rng.choice((0, 8)),
            clock=rng.choice(CLOCKS),
            number=seed,
        )
        assert decode(encode(written)) == written
    nothing = RankUpdate(NOT_KNOWN, BEGIN, BEGIN, NOT_KNOWN, [], [], None)
    assert decode(encode(message(nothing))) == message(nothing)


def test_one_of_another_version_is_not_read() -> None:
    written = encode(message(steady(20)))
    for version in (written[0] - 1, written[0] + 1):
        with pytest.raises(ValueError, match="another version"):
            decode(bytes([version]) + written[1:])


def test_turns_of_a_loop_are_read_as_they_were_written_wherever_it_is_disturbed() -> None:
    """By a gap, another number or category, a flag, a group, a phase in a step, or a length that takes more room."""
    whole = steady(12)
    whole = whole._replace(steps=whole.steps[:-1], opened=None)
    assert len(whole.pieces) == len(whole.steps) == 12
    step, piece = whole.steps[5], whole.pieces[5]
    middle = step.begin + 3
    disturbed = [
        whole._replace(steps=[*whole.steps[:5], step._replace(**changed), *whole.steps[6:]])
        for changed in ({"number": 99}, {"flags": FAILED}, {"number": 9, "steps": 4}, {"begin": step.begin + 1})
    ] + [
        whole._replace(pieces=[*whole.pieces[:5], *changed, *whole.pieces[6:]])
        for changed in (
            [piece._replace(begin=piece.begin + 1)],
            [piece._replace(category=5)],
            [piece._replace(category=CUSTOM, name="eval")],
            [piece._replace(category=RECOVERY, name=ENDED)],
            [piece, Piece(middle, middle + 1, 5)],
            [],
        )
    ]
    far = 1 << 33
    moved = [one._replace(begin=one.begin + far, end=one.end + far) for one in whole.steps[6:]]
    later = [one._replace(begin=one.begin + far, end=one.end + far) for one in whole.pieces[6:]]
    ends = {"known": whole.known + far, "at": whole.at + far}
    long_step = [*whole.steps[:5], step._replace(end=step.end + far), *moved]
    disturbed.append(whole._replace(steps=long_step, pieces=[*whole.pieces[:6], *later], **ends))
    for update in (whole, *disturbed):
        assert decode(encode(message(update))) == message(update)


def test_a_message_without_runs_takes_time_in_proportion_to_its_length() -> None:
    def least(count: int) -> float:
        whole, times = steady(count), list[float]()
        failed = message(whole._replace(steps=[step._replace(flags=FAILED) for step in whole.steps]))
        for _ in range(5):
            began = time.thread_time()
            encode(failed)
            times.append(time.thread_time() - began)
        return min(times)

    assert least(2_000) < 7 * least(500)


def test_runs_that_are_not_there_are_not_read() -> None:
    """Of a category that has names, or of none; of fewer or more turns than there are lengths."""
    written = bytearray(encode(message(steady(20))))
    at = written.rindex(bytes([DATA_LOADING_TIME, 20]))
    for place, value in ((0, CUSTOM), (0, len(CATEGORIES)), (1, 19), (1, 21), (1, 0)):
        forged = bytearray(written)
        forged[at + place] = value
        with pytest.raises(ValueError):
            decode(bytes(forged))


def test_steps_of_large_groups_are_in_several_messages() -> None:
    steps = [RankStep((at + 1) * STEPS // 4 - 1, BEGIN + at, BEGIN + at + 1, steps=STEPS // 4) for at in range(7)]
    whole = RankUpdate(BEGIN, BEGIN + 7, BEGIN + 7, NOT_KNOWN, steps, [], None, STEPS // 4)
    with pytest.raises(MessageTooLarge, match=f"with {7 * STEPS // 4} steps"):
        encode(message(whole))
    read = [decode(encode(message(half))).update.steps for half in whole.halves()]
    assert [step for some in read for step in some] == steps


def test_a_step_and_its_load_take_few_bytes() -> None:
    few, many = (len(encode(message(steady(count)))) for count in (10, 110))
    assert (many - few) / 100 < 8.1
    assert few <= 1024 and len(encode(message(steady(GROUPED)))) < MOST // 4  # at two steps a second, in five seconds


def test_texts_are_cut_and_names_are_counted() -> None:
    pieces = [Piece(BEGIN + at, BEGIN + at + 1, CUSTOM, f"{at} {'ü' * 300}") for at in range(2 * NAMES)]
    update = RankUpdate(BEGIN, BEGIN + 10**9, BEGIN + 10**9, NOT_KNOWN, [], pieces, None)
    read = decode(encode(message(update, host="\udcff" + "h" * 999, role="r" * 999)))
    assert len(read.host) == len(read.role) == TEXT and read.host.startswith("?")
    assert all(len(piece.name.encode()) <= TEXT for piece in read.update.pieces)
    assert [piece.name for piece in read.update.pieces].count(OVERFLOW) == NAMES
    assert [piece[:3] for piece in read.update.pieces] == [piece[:3] for piece in pieces]


@pytest.mark.parametrize("changed", [{"at": -1}, {"known": BEGIN * 2}, {"left": 1 << 70}], ids=str)
def test_what_is_out_of_range_is_not_written(changed: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="cannot be in a message"):
        encode(message(steady(1)._replace(**changed)))


def test_a_message_that_is_too_large_is_not_written_nor_read() -> None:
    with pytest.raises(ValueError, match="a message of"):
        encode(message(steady(10_000)))
    with pytest.raises(ValueError, match="a message of"):
        decode(bytes(MOST + 1))


@dataclass
class Forgery:
    steps: list[RankStep]
    pieces: list[Piece]


@pytest.mark.parametrize(
    "forged",
    [
        Forgery([RankStep(1, BEGIN, BEGIN + 9), RankStep(2, BEGIN - 9, BEGIN + 12)], []),
        Forgery([RankStep(1, BEGIN, NOT_KNOWN), RankStep(2, BEGIN + 5, BEGIN + 9)], []),
        Forgery([RankStep(-4, BEGIN, BEGIN + 9)], []),
        Forgery([RankStep(1, BEGIN, BEGIN + 10**12)], []),
        Forgery([RankStep(5, BEGIN, BEGIN + 9, steps=7)], []),
        Forgery([], [Piece(BEGIN, BEGIN + 9, 4), Piece(BEGIN + 5, BEGIN + 12, 4)]),
        Forgery([], [Piece(BEGIN, BEGIN, 4)]),
        Forgery([], [Piece(BEGIN, BEGIN + 3, len(CATEGORIES))]),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_not_read(forged: Forgery) -> None:
    update = RankUpdate(BEGIN, BEGIN + 10**9, BEGIN + 10**9, NOT_KNOWN, forged.steps, forged.pieces, None)
    with pytest.raises(ValueError, match=r"contradicts|none of|out of range|too large"):
        decode(encode(message(update)))


def test_damaged_bytes_raise_value_errors_only_and_take_no_time() -> None:
    whole = encode(message(drawn(random.Random(8)), role="generator"))
    for cut in range(len(whole)):
        with pytest.raises(ValueError):
            decode(whole[:cut])
    rng = random.Random(1)
    for _ in range(3_000):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with suppress(ValueError):
            assert decode(bytes(damaged)).update.known >= 0
        with suppress(ValueError):
            decode(rng.randbytes(rng.randrange(200)))
