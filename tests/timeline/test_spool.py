"""What ranks did is held out of memory."""

from __future__ import annotations

import errno
import os
import tracemalloc
from array import array
from pathlib import Path
from typing import IO

import pytest

from otel_goodput._accounting.events import ATTEMPT, END, START, Event, TurnColumns, key_behind
from otel_goodput._accounting.rules import DATA_LOADING, JOB, STEP
from otel_goodput._runtime import files
from otel_goodput._timeline import spool
from otel_goodput._timeline.ranks import RankDigest, digest_of
from otel_goodput._timeline.spool import Spool

NOW = 1_790_000_000_000_000_000
MS = 1_000_000


def digest(steps: int, where: Spool | None) -> RankDigest:
    """That of a rank that stepped undisturbed."""

    def turns(first: int, count: int) -> TurnColumns:
        ended = array("q", range(NOW + 31 * first * MS, NOW + 31 * (first + count) * MS, 31 * MS))
        begun = array("q", [time + MS for time in ended])
        return TurnColumns(key_behind(8, 2 * first), ended, begun, range(first + 1, first + count + 1))

    events: list[Event | TurnColumns] = [
        Event(NOW - 50 * MS, ATTEMPT, step=0),
        Event(NOW - 50 * MS, START, JOB, 1),
        Event(NOW - 40 * MS, START, DATA_LOADING, 7, 0),
        Event(NOW - 30 * MS, END, DATA_LOADING, 7, 0),
        Event(NOW - 30 * MS, START, STEP, 8, 0),
    ]
    every = (turns(first, 1000) for first in range(0, steps, 1000))
    made = digest_of((one for some in (events, every) for one in some), where)
    assert made is not None
    return made


def test_memory_does_not_grow_with_the_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "HELD", 0)
    held: list[int] = []
    with Spool() as where:
        kept = [digest(2_000, where)]
        for steps in (20_000, 60_000):
            tracemalloc.start()
            kept.append(digest(steps, where))
            held.append(tracemalloc.get_traced_memory()[0])
            tracemalloc.stop()
            assert len(kept[-1].parts.steps) == steps
    assert held[1] - held[0] < 40_000 * 16 / 10, held  # of what the times of these steps take


def test_its_file_has_no_name_and_is_its_owners(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spool, "HELD", 0)
    monkeypatch.setattr(files, "for_large", lambda: [tmp_path / "missing", tmp_path])
    nameless, opened = files.nameless, list[IO[bytes]]()

    def watched(folder: Path) -> IO[bytes]:
        opened.append(nameless(folder))
        return opened[-1]

    monkeypatch.setattr(files, "nameless", watched)
    with Spool() as where:
        assert digest(10_000, where).parts.steps == digest(10_000, None).parts.steps
        assert not [*tmp_path.iterdir()]  # so that nothing is left, however the process ends
        (file,) = opened
        kept = os.fstat(file.fileno())
        assert kept.st_mode & 0o777 == 0o600 and kept.st_nlink == 0
        assert kept.st_dev == tmp_path.stat().st_dev and kept.st_size > 7_000 * 16
    assert file.closed


def test_what_no_disk_has_a_place_for_is_held_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spool, "HELD", 0)
    monkeypatch.setattr(files, "for_large", lambda: [tmp_path / "missing"])
    with Spool() as where:
        assert digest(10_000, where).parts.steps == digest(10_000, None).parts.steps


def test_what_is_written_in_part_is_written_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "HELD", 0)
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:5000], at))
    with Spool() as where:
        assert digest(10_000, where).parts.steps == digest(10_000, None).parts.steps


def test_a_full_disk_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spool, "HELD", 0)
    monkeypatch.setattr(files, "for_large", lambda: [tmp_path])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with (
        Spool() as where,
        pytest.raises(OSError, match=f"{tmp_path} .No space left on device.*set TMPDIR") as caught,
    ):
        digest(10_000, where)
    assert caught.value.errno == errno.ENOSPC


def test_its_place_is_on_a_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    disk, large = tmp_path / "disk", tmp_path / "large"
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(files, "_MOUNTS", mounts)
    monkeypatch.setattr(files, "_LARGE", large)
    monkeypatch.setattr(files, "temporary", lambda: disk)
    line = "29 1 {}:{} / /tmp rw,nosuid shared:4 - {} tmpfs rw,size=4g\n"
    mounts.write_text(line.format(os.major(device), os.minor(device), "ext4"))
    assert files.for_large() == []  # there is none
    large.mkdir()
    assert files.for_large() == [large]
    disk.mkdir()
    assert files.for_large() == [disk, large]
    mounts.write_text(line.format(os.major(device), os.minor(device), "tmpfs"))
    assert files.for_large() == []
    mounts.unlink()  # as on macOS
    assert files.for_large() == [disk, large]


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="nothing is known to be in memory")
def test_a_folder_in_memory_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "temporary", lambda: Path("/dev/shm"))
    assert Path("/dev/shm") not in files.for_large()
