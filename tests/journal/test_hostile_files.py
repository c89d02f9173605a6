"""Links, pipes, bombs and other people's folders where our files should be: nothing is followed, waited for, or
unpacked beyond its bound, and training goes on.

Longer than other files: it goes through every place where this package opens a file.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
import warm
from recorded import Recording

import otel_goodput as goodput
from otel_goodput._journal.mirror import open_spool
from otel_goodput._journal.mirror import spool as spool_of
from otel_goodput._journal.records import SEGMENT_BYTES, encode_header
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json
from otel_goodput._runtime import files
from otel_goodput.reports.run import RecordedRun, runs_at

SECRET = b"-----BEGIN OPENSSH PRIVATE KEY-----"
STRANGER = 4711
MIB = 2**20

# What a journal of process 0 and the exporter `file` write, below the run's folder.
WRITTEN = (
    "run.json",
    "journal/a0000-p0000.lock",
    "journal/a0000-p0000-000000.segment",
    "journal/p0000.snapshot",
    "journal/p0000.digest",
    "journal/a0000-p0000.facts",
    "journal/p0000.pace",
    "journal/p0000.notes",
    "journal/productivity.json",
    "traces-attempt0000-p0000.jsonl",
    "metrics-attempt0000-p0000.jsonl",
)


def steps(first: int, count: int) -> None:
    for number in range(first, first + count):
        with goodput.step(number):
            pass


def given_to(path: Path, owner: int, group: int, mode: int) -> bool:
    """Whether the folder could be given to somebody else; only the superuser can do that."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    try:
        os.chown(path, owner, group)
    except PermissionError:
        return False
    path.chmod(mode)  # a change of the owner takes bits away
    return True


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file outside of everything that is ours, which is neither changed nor copied."""
    path = tmp_path / "elsewhere" / "id_rsa"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    return path


def objects(url: str) -> dict[str, bytes]:
    memory = fsspec.filesystem("memory")
    return {path: memory.cat_file(path) for path in memory.find(url)}


# --- a folder of somebody else ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("exporter", ["file", "tensorboard"])
def test_nothing_is_written_into_the_run_folder_of_another_user(
    exporter: str, record: Callable[..., Recording], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a folder for all, such as /tmp: neither the journal nor an exporter uses what a stranger has made there."""
    if exporter == "tensorboard":
        pytest.importorskip("tensorboard")
    base = tmp_path / "shared"
    base.mkdir(mode=0o777)
    base.chmod(0o1777)
    if not given_to(base / "run", STRANGER, STRANGER, 0o777):
        pytest.skip("only the superuser can give a folder away")
    planted = base / "run" / "traces-attempt0000-p0000.jsonl"
    planted.touch()
    record(directory=base, exporters=[exporter])
    with goodput.job():
        steps(0, 5)
    goodput.shutdown()
    assert [path for path in (base / "run").rglob("*") if path.is_file() and path.stat().st_size] == []
    assert sum("belongs to another user" in line.getMessage() for line in caplog.records) >= 2, "both say why"


# --- links ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITTEN)
def test_a_link_in_the_place_of_a_file(
    name: str, record: Callable[..., Recording], secret: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it leads to is not touched; where a file cannot be had next to it, there is a warning."""
    place = tmp_path / "runs" / "run" / name
    place.parent.mkdir(parents=True)
    place.symlink_to(secret)
    recording = record(exporters=["file"], process_count=2)
    with goodput.job():
        steps(0, 30)
        goodput.flush()
    goodput.shutdown()
    assert secret.read_bytes() == SECRET and list(secret.parent.iterdir()) == [secret]
    assert recording.report()["steps"]["kept"] == 30
    messages = [message for message in caplog.messages if "is a link" in message]
    if name.endswith((".lock", ".jsonl")):
        assert len(messages) == 1 and place.name in messages[0]
    if not name.endswith(".lock"):
        assert recording.report_on_disk()["steps"]["kept"] == 30


@pytest.mark.parametrize("name", ["run", "run/journal"])
def test_a_link_in_the_place_of_a_folder(
    name: str, record: Callable[..., Recording], secret: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "runs" / name
    place.parent.mkdir(parents=True)
    place.symlink_to(secret.parent)
    recording = record(exporters=["file"])
    with goodput.job():
        steps(0, 10)
    goodput.shutdown()
    assert secret.read_bytes() == SECRET and list(secret.parent.iterdir()) == [secret]
    assert recording.report()["steps"]["kept"] == 10
    assert [message for message in caplog.messages if "it is a link" in message and "OTEL_GOODPUT_DIR" in message]


def test_a_folder_is_replaced_by_a_link_while_it_is_written(
    record: Callable[..., Recording], secret: Path, tmp_path: Path
) -> None:
    """As those can who may write to the directory above it."""
    recording = record(exporters=["file"], process_count=2)
    with goodput.job():
        steps(0, 10)
        goodput.flush()
        recording.folder.rename(tmp_path / "moved")
        (secret.parent / "journal").mkdir()
        recording.folder.symlink_to(secret.parent)
        steps(10, 10)
        goodput.flush()
    goodput.shutdown()
    assert sorted(path.name for path in secret.parent.rglob("*")) == ["id_rsa", "journal"]
    assert recording.report()["steps"]["kept"] == 20


def test_a_folder_is_replaced_by_a_link_while_it_is_held(secret: Path, tmp_path: Path) -> None:
    """Who reads many of its files has opened it once, and reads what was there; everybody else is refused."""
    folder = tmp_path / "run" / "journal"
    folder.mkdir(parents=True)
    (folder / "id_rsa").write_bytes(b"ours")
    with files.held(folder), files.held(folder):
        folder.rename(tmp_path / "moved")
        folder.symlink_to(secret.parent)
        assert files.names(folder) == ["id_rsa"] and files.read(folder / "id_rsa") == b"ours"
        with ThreadPoolExecutor() as other, pytest.raises(OSError, match="it is a link"):
            other.submit(files.read, folder / "id_rsa").result()
    with pytest.raises(OSError, match="it is a link"):
        files.read(folder / "id_rsa")
    with files.held(folder), pytest.raises(OSError, match="it is a link"):
        files.read(folder / "id_rsa")
    opened = [one.resolve() for one in Path("/proc/self/fd").glob("*")]
    assert not [path for path in opened if path.is_relative_to(tmp_path)], "it is closed again"


def test_only_a_journals_own_files_are_copied_up(
    record: Callable[..., Recording], bucket: str, spool: Path, secret: Path
) -> None:
    record(directory=bucket)
    (journal,) = spool.rglob("journal")
    (journal / "p0007.notes").symlink_to(secret)
    (journal / "id_rsa").write_bytes(SECRET)
    (journal / "p0009.notes").hardlink_to(secret)
    os.mkfifo(journal / "p0008.pace")
    with goodput.job():
        steps(0, 10)
    goodput.shutdown()
    stored = objects(bucket)
    assert not [path for path, data in stored.items() if SECRET in data]
    planted = ("id_rsa", "p0007.notes", "p0008.pace", "p0009.notes")
    assert not [path for path in stored if path.endswith(planted)]
    assert [path for path in stored if path.endswith(".snapshot")], "the others are"


# --- the spool of a journal at a URL ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["another user's", "open to others", "a link", "a file"])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_spool_that_was_laid_out_by_somebody_else(
    way: str,
    depth: int,
    record: Callable[..., Recording],
    bucket: str,
    spool: Path,
    secret: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is not used: another one under a random name is, and the URL has all that was recorded."""
    spool.chmod(0o1777)
    expected = spool_of(bucket)
    trap = (expected.parent, expected)[depth]
    if depth:
        trap.parent.mkdir(mode=0o700)
    inside = trap / ("" if depth else expected.name) / "run" / "journal"
    if way == "a link":
        trap.symlink_to(secret.parent)
    elif way == "a file":
        trap.write_bytes(b"")
    else:
        inside.mkdir(parents=True)
        (inside / "p0000.snapshot").symlink_to(secret)
        (inside / "p0009.notes").symlink_to(secret)
        if way == "open to others" or not given_to(trap, STRANGER, STRANGER, 0o755):
            trap.chmod(0o777)
    before = sorted(str(path) for path in trap.rglob("*"))
    recording = record(directory=bucket)
    with goodput.job():
        steps(0, 10)
    goodput.shutdown()
    assert recording.report()["steps"]["kept"] == 10
    assert secret.read_bytes() == SECRET and list(secret.parent.iterdir()) == [secret]
    assert sorted(str(path) for path in trap.rglob("*")) == before
    assert not [path for path, data in objects(bucket).items() if SECRET in data]
    with runs_at(bucket) as (run,):
        assert run.report().to_json()["steps"]["kept"] == 10
    (text,) = [message for message in caplog.messages if str(trap) in message]
    other = next(path for path in spool.iterdir() if path != expected.parent)
    assert str(other) in text and stat.S_IMODE(other.stat().st_mode) == 0o700


def test_a_spool_of_an_older_version_is_found_and_closed(spool: Path, bucket: str) -> None:
    """It was made with the rights that a folder is made with: others could look, not write."""
    place = spool_of(bucket)
    place.mkdir(parents=True)
    place.parent.chmod(0o755)
    assert open_spool(bucket) == place
    assert [stat.S_IMODE(path.stat().st_mode) for path in (place, place.parent)] == [0o700, 0o700]


# --- the directory that a person names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "owner", "group", "mode", "below"),
    [
        ("a link", 0, 0, 0o755, None),
        ("fsGroup", 0, 2000, 0o2775, (STRANGER, 2000, 0o2770)),  # as the kubelet leaves it for the next pod's user
        ("another user's", STRANGER, STRANGER, 0o755, (STRANGER, STRANGER, 0o700)),  # the superuser goes on with it
        ("gcsfuse", STRANGER, STRANGER, 0o777, (STRANGER, STRANGER, 0o777)),  # one owner and one mode for all
        ("chmod -R 777", None, None, 0o777, (None, None, 0o777)),
    ],
)
def test_directories_that_people_name(
    kind: str,
    owner: int | None,
    group: int | None,
    mode: int,
    below: tuple[int | None, int | None, int] | None,
    record: Callable[..., Recording],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A run is begun and gone on with in any of them."""
    place = tmp_path / "named"
    whose = (os.getuid() if owner is None else owner, os.getgid() if group is None else group)
    if not given_to(place, *whose, mode):
        place.chmod(mode)  # ours, then
    directory = place
    if kind == "a link":
        directory = tmp_path / "link"
        directory.symlink_to(place)
    for attempt in range(2):
        recording = record(directory=directory)
        assert recording.recorder.attempt == attempt
        with goodput.job():
            steps(10 * attempt, 10)
        goodput.shutdown()
        made = (place / "run", place / "run" / "journal")
        assert all(stat.S_IMODE(path.stat().st_mode) & 0o777 == 0o700 for path in made) or attempt
        for path in made if below is not None else ():
            ours = [os.getuid() if below[0] is None else below[0], os.getgid() if below[1] is None else below[1]]
            given_to(path, *ours, below[2])
    assert RecordedRun(RunDirectory(place / "run")).report().to_json()["steps"]["kept"] == 20
    messages = [message for message in caplog.messages if "had ended" not in message]
    assert len(messages) == (2 if mode & 0o002 else 0) and all("chmod +t" in text for text in messages)


@pytest.mark.parametrize("mode", [0o1777, 0o755])
def test_somebody_elses_run_in_a_named_directory(
    mode: int, record: Callable[..., Recording], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where everybody may make folders, one that another user has made for us is not used; nor one that is open."""
    place = tmp_path / "runs"
    place.mkdir()
    place.chmod(mode)
    if mode == 0o755 or not given_to(place / "run", STRANGER, STRANGER, 0o755):
        (place / "run").mkdir(exist_ok=True)
        (place / "run").chmod(0o777)
    recording = record(directory=place)
    with goodput.job():
        steps(0, 10)
    goodput.shutdown()
    assert list((place / "run").iterdir()) == []
    assert recording.report()["steps"]["kept"] == 10
    (text,) = [message for message in caplog.messages if "cannot be written" in message]
    assert "another user" in text or "writable by every user" in text


def test_folders_are_made_for_their_owner_only(record: Callable[..., Recording], tmp_path: Path) -> None:
    record(directory=tmp_path / "a" / "b")
    goodput.shutdown()
    for path in (tmp_path / "a", *(tmp_path / "a").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


# --- pipes and bombs --------------------------------------------------------------------------------------------------


JOB = """
import json, logging, sys, time
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
import otel_goodput as goodput
began = time.monotonic()
recorder = goodput.configure("hostile", run_id="run", directory=sys.argv[1], exporters="none", process_count=4)
with goodput.job():
    for number in range(30):
        with goodput.step(number):
            pass
    goodput.flush()
goodput.shutdown()
with open("/proc/self/status") as lines:
    status = dict(line.split(":") for line in lines)
report = goodput.report().to_json()
print(json.dumps([report["steps"]["kept"], time.monotonic() - began, int(status["VmHWM"].split()[0]) // 1024]))
"""


def run(program: str, *arguments: str, **variables: str) -> tuple[Any, str]:
    """What a process of its own printed on its last line, and its stderr."""
    done = warm.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def as_a_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_a_huge_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(8 * 2**30)  # zeros that take no room


def as_a_link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many MiB the job needs where nobody is hostile."""
    (_, _, memory), _ = run(JOB, str(tmp_path_factory.mktemp("witness")))
    return int(memory)


@pytest.mark.parametrize("disguise", [as_a_pipe, as_a_huge_file, as_a_link_to_zeros])
@pytest.mark.parametrize("locked", [False, True])
def test_hostile_files_in_a_journal(
    locked: bool, disguise: Callable[[Path], None], witness: int, tmp_path: Path
) -> None:
    """In the place of other processes' paces, of marks, notes, snapshots, segments and locks: the job ends."""
    journal = tmp_path / "run" / "journal"
    journal.mkdir(parents=True)
    names = (
        "p0001.pace", "p0002.pace", "p0000.notes", "p0000.snapshot", "productivity.json", "a0000-p0000.recovered",
        "a0000-p0000-000000.segment", "a0000-p0000-000001.segment.gz", "../run.json",
    )  # fmt: skip
    for name in (*names, "a0000-p0000.lock")[: None if locked else -1]:
        disguise(journal / name)
    (kept, seconds, memory), errors = run(JOB, str(tmp_path))
    assert kept == 30
    assert seconds < 30, "it would wait for ever"
    assert memory < witness + 64
    assert "Traceback" not in errors
    if not locked:  # a start after it has what this one recorded
        assert RecordedRun(RunDirectory(tmp_path / "run")).report().to_json()["steps"]["kept"] == 30


@pytest.mark.parametrize("disguise", [as_a_pipe, as_a_huge_file])
def test_a_hostile_pace_leaves_the_others(disguise: Callable[[Path], None], tmp_path: Path) -> None:
    from otel_goodput._journal.usage import read_paces

    run = RunDirectory(tmp_path / "run")
    run.create({})
    now = time.time_ns()
    good = {"attempt": 0, "process": 1, "at": now, "steps": 100, "median": 10**8, "p90": 10**8, "outside": 0}
    paces: dict[int, Any] = {
        1: good,
        2: {**good, "process": 1},  # speaks for another
        3: {**good, "process": 3, "median": 1e999},
        4: {**good, "process": 4, "steps": -1},
        5: {**good, "process": 5, "p90": 10**30},
        6: {**good, "process": 6, "outside": True},
        7: {**good, "process": 7},  # of eight there is a seventh
        8: {**good, "process": 8},  # but no eighth
    }
    for process, pace in paces.items():
        run.file("pace", process).write_bytes(checked_json(pace))
    run.file("pace", 6).write_text("[" * 4000)
    disguise(run.file("pace", 0))
    assert [pace.process for pace in read_paces(run, 0, now, count=8)] == [1, 7]


@pytest.mark.parametrize("packed", [False, True])
def test_a_segment_that_is_a_bomb(packed: bool, witness: int, tmp_path: Path) -> None:
    """3 MB that unpack to gigabytes are unpacked no further than a segment is long."""
    journal = tmp_path / "run" / "journal"
    (kept, _, _), _ = run(JOB, str(tmp_path))
    assert kept == 30
    (journal / "p0000.snapshot").unlink()
    header = encode_header(0, 0, 1, os.getpid())
    if packed:
        with gzip.open(journal / "a0000-p0000-000001.segment.gz", "wb", compresslevel=1) as bomb:
            bomb.write(header)
            for _ in range(200):
                bomb.write(bytes(MIB))
    else:
        with (journal / "a0000-p0000-000001.segment").open("wb") as huge:
            huge.write(header)
            huge.truncate(4 * 2**30)
    (_, _, memory), errors = run(JOB, str(tmp_path))
    assert memory < witness + 64
    assert "000001.segment" in errors and str(SEGMENT_BYTES) in errors and "Traceback" not in errors


@pytest.mark.parametrize("number", [2**31 - 2, 2**32 - 1, 10**9 - 1, 10**30])
def test_a_segment_of_an_attempt_that_cannot_be(number: int, record: Callable[..., Recording], tmp_path: Path) -> None:
    """Its name leaves a number for the next attempt, or is left alone; its header may not say another one."""
    journal = tmp_path / "runs" / "run" / "journal"
    journal.mkdir(parents=True)
    header = encode_header(min(number, 2**32 - 1), 0, 0, os.getpid())
    (journal / f"a{number:04d}-p0000-000000.segment").write_bytes(header)
    (journal / "a0000-p0000-000001.segment").write_bytes(header)
    for again in range(2):
        recording = record()
        with goodput.job():
            steps(10 * again, 10)
        goodput.shutdown()
    assert recording.report()["steps"]["kept"] == 20 == recording.report_on_disk()["steps"]["kept"]


LINES = """
import json, sys
from otel_goodput._tools import cli
status = cli.main(sys.argv[1:])
with open("/proc/self/status") as lines:
    status_lines = dict(line.split(":") for line in lines)
print(json.dumps([status, int(status_lines["VmHWM"].split()[0]) // 1024]))
"""


def long_line(path: Path, size: int, end: bytes) -> None:
    with path.open("ab") as file:
        begin = file.tell()
        file.write(b'{"resourceSpans": [')
        file.truncate(begin + size)
        file.seek(begin + size)
        file.write(end)


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_of_hundreds_of_megabytes_is_not_sent(end: bytes, tmp_path: Path) -> None:
    """It is left out and reported, and what follows it is read."""
    path = tmp_path / "traces-long.jsonl"
    line = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "a"}]}]}]}).encode() + b"\n"
    path.write_bytes(line)
    (_, before), _ = run(LINES, "send", "--dry-run", str(path))
    long_line(path, 300 * MIB, end)
    if end:
        with path.open("ab") as file:
            file.write(line)
    (_, after), errors = run(LINES, "send", "--dry-run", str(path))
    assert after < before + 160, "of which 32 MiB are the most that is read of a line"
    assert ("longer than 32 MiB" in errors) == bool(end)


def test_a_line_of_hundreds_of_megabytes_is_not_replayed(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    long_line(path, 300 * MIB, b"\n")
    (status, memory), errors = run(LINES, "replay", str(path))
    assert status == 1 and "line 1 is longer than 32 MiB" in errors and memory < 256


# --- objects ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["..", "../../evil", "/etc/evil", "a\0b", "a\\b", "id_rsa", "a0000-p0000-000000.sh"])
def test_object_names_that_lead_elsewhere(
    name: str, record: Callable[..., Recording], bucket: str, spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only what a journal has is copied down."""
    memory = fsspec.filesystem("memory")
    record(directory=bucket)
    with goodput.job():
        steps(0, 10)
    goodput.shutdown()
    before = {str(path) for path in spool.parent.rglob("*")}
    store, base = type(memory).store, memory._strip_protocol(bucket)
    key = f"{base}/run/journal/{name}"
    store[key] = store[f"{base}/run/run.json"]
    try:
        with runs_at(bucket) as (run,):
            assert run.report().to_json()["steps"]["kept"] == 10
            copy = run.folder.path.parent
            assert {path.name for path in copy.iterdir()} == {"run"}
            assert not [path for path in copy.rglob("*") if path.name in (name, "evil")]
        assert {str(path) for path in spool.parent.rglob("*")} == before
        assert not (Path(tempfile.gettempdir()) / "evil").exists()
    finally:
        del store[key]


@pytest.mark.parametrize("name", ["..", ".", "a\\b", "x" * 300])
def test_a_runs_folder_that_leads_elsewhere(
    name: str,
    bucket: str,
    record: Callable[..., Recording],
    spool: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A storage that names it so among the runs."""
    record(directory=bucket)
    with goodput.job():
        steps(0, 10)
    goodput.shutdown()
    memory = fsspec.filesystem("memory")
    real, base = type(memory).ls, memory._strip_protocol(bucket)

    def ls(self: Any, path: str, detail: bool = True, **options: Any) -> Any:
        whole = path.rstrip("/")
        listed = real(self, whole.replace(f"/{name}", "/run"), detail=detail, **options)
        return [*listed, f"{base}/{name}"] if whole == base and not detail else listed

    isdir = type(memory).isdir
    monkeypatch.setattr(type(memory), "ls", ls)
    monkeypatch.setattr(type(memory), "isdir", lambda self, path: isdir(self, path.replace(f"/{name}/", "/run/")))
    before = {str(path) for path in spool.rglob("*")}
    with runs_at(bucket) as listed:
        assert [run.folder.path.name for run in listed] == ["run"]
        assert {str(path) for path in spool.rglob("*")} - before <= {
            str(path) for path in (listed[0].folder.path.parent, *listed[0].folder.path.parent.rglob("*"))
        }
    assert [text for text in caplog.messages if "not the folder of a run" in text]


def test_an_object_that_is_too_large(
    record: Callable[..., Recording], bucket: str, spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"{bucket}/run/journal/p0001.pace", bytes(5000))
    memory.pipe_file(f"{bucket}/run/journal/p0002.pace", b"{}")
    record(directory=bucket)
    goodput.shutdown()
    assert [path.name for path in spool.rglob("*.pace")] == ["p0002.pace"]
    assert [text for text in caplog.messages if "p0001.pace" in text and "4096 bytes" in text]


@pytest.mark.parametrize("disguise", [as_a_pipe, as_a_link_to_zeros])
def test_a_folder_as_a_storage(disguise: Callable[[Path], None], witness: int, tmp_path: Path) -> None:
    """A URL that begins with file:// names a folder, with all that others may put there."""
    journal = tmp_path / "bucket" / "run" / "journal"
    journal.mkdir(parents=True)
    for name in ("p0001.pace", "p0000.notes", "a0000-p0000-000000.segment", "../run.json"):
        disguise(journal / name)
    (tmp_path / "tmp").mkdir()
    (kept, seconds, memory), errors = run(JOB, f"file://{tmp_path}/bucket", TMPDIR=str(tmp_path / "tmp"))
    assert kept == 30 and seconds < 30 and memory < witness + 64
    assert errors.count("not a file of a journal") == 1, "said of the first"
    assert list(journal.glob("*.snapshot")), "what was recorded is copied up all the same"


# --- a mount that hangs -----------------------------------------------------------------------------------------------

# From a moment on, whoever opens something below the mount waits for ever, as on a network mount without its server.
MOUNT = """
import json, sys, threading, time
hung = threading.Event()
def mount(event, arguments):
    if event == "open" and hung.is_set() and "mounted" in str(arguments[0]):
        threading.Event().wait()
sys.addaudithook(mount)
import otel_goodput as goodput
"""
HUNG = """
recorder = goodput.configure(
    "hung", run_id="run", directory=sys.argv[1], exporters="file", process_count=2, grace_period=2.0
)
took = {}
def steps(first):
    for number in range(first, first + 2000):
        with goodput.step(number):
            pass
def timed(name, job):
    began = time.monotonic()
    answer = job()
    took[name] = time.monotonic() - began
    return answer
with goodput.job():
    timed("before", lambda: steps(0))
    goodput.flush()
    hung.set()
    timed("training", lambda: steps(2000))
    assert timed("flush", lambda: goodput.flush(1.0)) is False
    timed("training again", lambda: steps(4000))
timed("shutdown", goodput.shutdown)
if sys.argv[2] == "and ask":
    took["kept"] = timed("report", goodput.report).to_json()["steps"]["kept"]
print(json.dumps(took))
"""


def test_a_mount_that_hangs_at_the_end(tmp_path: Path) -> None:
    """What waits for it is given up: a flush in its time, the end in its own, and steps do not notice."""
    began = time.monotonic()
    took, _ = run(MOUNT + HUNG, str(tmp_path / "mounted"), "")
    assert took["flush"] < 10 and took["shutdown"] < 12 and time.monotonic() - began < 60
    assert max(took["training"], took["training again"]) < 20 * took["before"] + 0.5


OF_THE_USERS_OWN = """
from opentelemetry.sdk.trace import TracerProvider
provider = TracerProvider()
provider.add_span_processor(goodput.GoodputSpanProcessor(job_name="hung", directory=sys.argv[1]))
tracer = provider.get_tracer("users")
with tracer.start_as_current_span("job", attributes={"goodput.phase": "job"}):
    hung.set()
    for number in range(100):
        with tracer.start_as_current_span("step", attributes={"goodput.phase": "step", "goodput.step": number}):
            pass
began = time.monotonic()
provider.shutdown()
print(json.dumps(time.monotonic() - began))
"""


def test_a_mount_that_hangs_at_the_end_of_a_provider_of_the_users_own(tmp_path: Path) -> None:
    seconds, errors = run(MOUNT + OF_THE_USERS_OWN, str(tmp_path / "mounted"), OTEL_GOODPUT_GRACE_PERIOD="1")
    assert seconds < 10 and "not closed within 1.0 s" in errors


@pytest.mark.attack
def test_the_figures_after_a_mount_has_hung(tmp_path: Path) -> None:
    """They are those that the ledger had."""
    took, _ = run(MOUNT + HUNG, str(tmp_path / "mounted"), "and ask")
    assert 2000 <= took["kept"] <= 6000 and took["report"] < 30
