"""A digest gives back the overview it was made of, fits its file, and believes nothing that it reads."""

from __future__ import annotations

import random
import stat
import zlib
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_goodput._accounting import overview as ov
from otel_goodput._accounting.disruption import Disruption
from otel_goodput._accounting.overview import Overview
from otel_goodput._accounting.rules import FIXED
from otel_goodput._journal.digest import FORM, Digest, decode, encode, write_digest
from otel_goodput._journal.records import NewerVersion
from otel_goodput._journal.rundir import DIGEST, RunDirectory, bound
from otel_goodput._journal.state_file import FRAME, SIZES
from otel_goodput._timeline.overviews import read_digest
from otel_goodput.semconv import PHASES

numbers = st.integers(-(2**62), 2**62)
lengths = st.integers(0, 2**62)
moments = st.integers(-1, 2**62)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
phases = st.integers(0, len(PHASES) - 1)
keys = st.integers(0, 2**64 - 1)
spreads = st.none() | st.builds(ov.Spread, lengths, lengths, lengths)


def some(one: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(one, max_size=5)


@st.composite
def overviews(draw: st.DrawFn) -> Overview:
    names = draw(some(texts))
    categories = st.integers(0, FIXED + len(names) - 1)
    return Overview(
        begin=draw(numbers),
        width=draw(numbers),
        bins=draw(some(st.dictionaries(categories, lengths, max_size=4))),
        names=names,
        step_bins=draw(
            some(st.builds(ov.StepBin, numbers, numbers, moments, lengths, lengths, spreads, spreads, spreads))
        ),
        histogram=draw(st.dictionaries(st.tuples(*[st.integers(0, 1000)] * 4), lengths, max_size=5)),
        groups=draw(some(st.builds(ov.Group, phases, texts, st.booleans(), *[lengths] * 5))),
        phases=draw(some(st.builds(ov.PhaseEntry, lengths, phases, texts, moments, moments, numbers, lengths, keys))),
        left_out=draw(st.integers(0, 2**40)),
        steps=draw(some(st.builds(ov.StepEntry, *[numbers] * 7, keys))),
        saves=draw(some(st.builds(ov.Save, *[numbers] * 5, st.booleans()))),
        at_risk=draw(some(st.tuples(numbers, numbers))),
        jobs=draw(some(st.builds(ov.Life, *[numbers] * 3, st.booleans()))),
        disruptions=draw(
            some(
                st.builds(
                    Disruption, st.none() | lengths, texts, lengths, lengths, *[st.none() | numbers] * 2,
                    moments, moments, *[st.none() | numbers] * 3, *[st.none()] * 4,
                )
            )
        ),
        notices=draw(some(st.tuples(moments, texts, st.booleans()))),
        slices=draw(some(st.tuples(*[numbers] * 4))),
        excluded=draw(some(st.tuples(numbers, numbers))),
        last_step=draw(st.none() | numbers),
        last_sign=draw(moments),
    )  # fmt: skip


@given(overviews(), st.integers(0, 2**31), moments)
def test_what_is_written_is_read(overview: Overview, attempt: int, at: int) -> None:
    decoded = decode(encode(overview, attempt, at, (attempt, 3, 77)))
    assert decoded == Digest(overview, attempt, at, (attempt, 3, 77), {})


@settings(max_examples=20)
@given(overviews(), st.randoms(use_true_random=False), st.integers(1, 255))
def test_a_byte_turned_over_anywhere_is_found(overview: Overview, source: random.Random, turned: int) -> None:
    whole = encode(overview, 0, 1, (0, 0, 0))
    for at in {*range(FRAME.size), *(source.randrange(len(whole)) for _ in range(20))}:
        with pytest.raises(ValueError, match=r"\w"):
            decode(whole[:at] + bytes([whole[at] ^ turned]) + whole[at + 1 :])


@settings(max_examples=20)
@given(overviews())
def test_cut_anywhere(overview: Overview) -> None:
    whole = encode(overview, 0, 1, (0, 0, 0))
    for end in range(len(whole)):
        with pytest.raises(ValueError, match=r"\w"):
            decode(whole[:end])
    with pytest.raises(ValueError, match=r"\w"):
        decode(whole + b"\0")


def signed_again(body: bytes, version: int = FORM.version) -> bytes:
    """A digest with a correct checksum, as anybody can write it."""
    return FRAME.pack(FORM.magic, version, sha256(version.to_bytes(2, "little") + body).digest()) + body


def test_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.make()
    run.file("digest", 0).write_bytes(signed_again(b"anything at all", FORM.version + 1))
    with pytest.raises(NewerVersion, match=f"version {FORM.version + 1}"):
        read_digest(run, 0)


@given(overviews(), st.data())
def test_a_forged_digest_raises_the_documented_error(overview: Overview, data: st.DataObject) -> None:
    """With a correct checksum, and anything inside."""
    body = bytearray(encode(overview, 0, 1, (0, 0, 0))[FRAME.size :])
    packed, size = SIZES.unpack_from(body)
    head = bytearray(zlib.decompress(body[SIZES.size : SIZES.size + packed]))
    tail = bytes(body[SIZES.size + packed :])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(head) - 1))
        head[at] = data.draw(st.sampled_from(b'0123456789-",:[]{}.entrufalsx'))
    again = zlib.compress(head)
    try:
        decoded = decode(signed_again(SIZES.pack(len(again), len(head)) + again + tail))
    except ValueError:
        return
    assert all(0 <= who < FIXED + len(decoded.overview.names) for one in decoded.overview.bins for who in one)
    assert size == len(head)


def test_a_bomb_is_not_unpacked() -> None:
    bomb = zlib.compress(bytes(2**26), 9)
    for size in (10, 2**20, 2**26):
        with pytest.raises(ValueError, match=r"size|large"):
            decode(signed_again(SIZES.pack(len(bomb), size) + bomb))


def test_texts_that_cannot_be_encoded_and_numbers_beyond_all() -> None:
    overview = Overview(1, 1, groups=[ov.Group(7, "a\udcff", True, 1, 2**80, 0, 0, 0)], names=["\ud800"])
    decoded = decode(encode(overview, 0, 0, (0, 0, 0))).overview
    assert decoded.groups[0] == ov.Group(7, "a?", True, 1, 2**63 - 1, 0, 0, 0) and decoded.names == ["?"]


def large(source: random.Random, count: int = ov.PHASES_KEPT) -> Overview:
    """As large as an overview gets, and more: of random numbers, which hardly pack."""
    begin = 10**18

    def time() -> int:
        return begin + source.randrange(10**15)

    return Overview(
        begin,
        10**12,
        bins=[{who: source.randrange(10**12) for who in range(FIXED + 300)} for _ in range(ov.BINS)],
        names=[f"custom {number} " + "x" * 100 for number in range(300)],
        phases=[
            ov.PhaseEntry(0, 7, f"name {number}" + "y" * 100, time(), time() + 10**15, number, 0,
                          source.getrandbits(64))
            for number in range(count)
        ],
        steps=[ov.StepEntry(0, n, time(), n * 10**6, n, n, 0, source.getrandbits(64)) for n in range(ov.STEPS_KEPT)],
        at_risk=[(time(), time()) for _ in range(4000)],
        last_sign=begin + 1,
    )  # fmt: skip


def test_what_is_too_large_sheds_its_longest_tail(tmp_path: Path) -> None:
    """The bins still add up; the longest phases are still there; what is gone is counted."""
    overview = large(random.Random("large"), 2 * ov.PHASES_KEPT)
    run = RunDirectory(tmp_path)
    run.make()
    write_digest(run, 12, overview, 3, 5, (3, 0, 9))
    path = run.file("digest", 12)
    size = path.stat().st_size
    assert DIGEST / 4 < size <= DIGEST == bound(path.name) and stat.S_IMODE(path.stat().st_mode) == 0o600
    digest = read_digest(run, 12)
    assert digest.dropped["bins"] and digest.dropped["phases"]
    kept = digest.overview

    def added_up(one: Overview) -> list[int]:
        return [sum(each.get(who, 0) for each in one.bins) for who in range(FIXED + 300)]

    assert added_up(kept) == added_up(overview)
    assert kept.width == overview.width * 2 ** digest.dropped["bins"] and kept.begin == overview.begin
    assert kept.left_out == digest.dropped["phases"] == len(overview.phases) - len(kept.phases)
    shortest = min(entry.end - entry.begin for entry in kept.phases)
    assert {entry.key for entry in overview.phases if entry.end - entry.begin > shortest} <= {
        entry.key for entry in kept.phases
    }
    there = set(kept.phases)
    assert list(kept.phases) == [entry for entry in overview.phases if entry in there]


def test_one_as_large_as_usual_loses_nothing() -> None:
    """All that an overview remembers, in a run with 15 categories and a dozen names."""
    source = random.Random("usual")
    overview = large(source)
    names = [f"phase {number}" for number in range(12)]
    overview = replace(
        overview,
        names=names,
        bins=[{who: source.randrange(10**12) for who in range(FIXED + 12)} for _ in range(ov.BINS)],
        phases=[entry._replace(name=names[entry.step % 12]) for entry in overview.phases],
    )
    whole = encode(overview, 0, 0, (0, 0, 0))
    assert whole == encode(overview, 0, 0, (0, 0, 0))
    decoded = decode(whole)
    assert len(whole) < DIGEST and decoded.dropped == {}
    assert encode(decoded.overview, 0, 0, (0, 0, 0)) == whole
