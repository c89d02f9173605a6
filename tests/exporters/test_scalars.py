"""The event files themselves: whole, readable by TensorBoard, wherever they lie and whatever befalls them."""

from __future__ import annotations

import re
import shutil
import sys
import threading
from pathlib import Path

import fsspec
import pytest

from otel_goodput._runtime.installation import install_command
from otel_goodput.exporters.spec import ExporterUnavailable
from otel_goodput.exporters.tensorboard import LARGEST, ScalarWriter

from .test_tensorboard import ran, scalars

pytestmark = pytest.mark.servers


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(ExporterUnavailable, match=re.escape(install_command("tensorboard"))):
        ScalarWriter(str(tmp_path))
    monkeypatch.undo()
    with pytest.raises(ExporterUnavailable, match="nosuch"):
        ScalarWriter("nosuch://bucket/logs")


def test_at_a_url() -> None:
    """An object cannot be appended to: another file is begun before uploads become expensive."""
    memory = fsspec.filesystem("memory")
    writer = ScalarWriter("memory://logs/goodput")
    count = LARGEST // 60
    for number in range(count):
        writer.write("goodput/ratio", number / count, number, 1_700_000_000 + number)
        if number % 5_000 == 4_999:
            writer.flush()
    writer.close()
    names = memory.ls("/logs/goodput", detail=False)
    assert len(names) > 1
    ratios = scalars("memory://logs/goodput")["goodput/ratio"]
    assert [step for step, _ in ratios] == list(range(count))
    memory.rm("/logs", recursive=True)


def test_a_url_that_fails_for_a_while() -> None:
    """What could not be written then is written later; nothing piles up meanwhile."""
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/blocked", b"a file where the folder should be")
    threads = threading.active_count()
    writer = ScalarWriter("memory://blocked/logs")
    for number in range(3):
        writer.write("goodput/ratio", number, number, 1_700_000_000 + number)
        with pytest.raises(OSError, match="memory://blocked/logs"):
            writer.flush()
    assert (writer.unwritten, writer.lost) == (3, 0) and threading.active_count() == threads
    memory.rm("/blocked")
    writer.write("goodput/ratio", 3, 3, 1_700_000_003)
    writer.close()
    assert scalars("memory://blocked/logs") == {"goodput/ratio": [(number, number) for number in range(4)]}
    memory.rm("/blocked", recursive=True)


def test_what_cannot_be_written_for_too_long_is_given_up_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_goodput.exporters.tensorboard.MOST_KEPT", 1_000)
    writer = ScalarWriter(str(tmp_path))
    for number in range(100):
        writer.write("goodput/ratio", number, number, 1_700_000_000 + number)
    kept = writer.unwritten
    assert 0 < kept < 20 and writer.lost == 100 - kept
    writer.close()
    assert [step for step, _ in scalars(tmp_path)["goodput/ratio"]] == list(range(100 - kept, 100))


def test_a_full_disk(tmp_path: Path) -> None:
    """The limit of a file's size stands for a full disk: a write that does not fit is refused by the system."""
    program = """
        import resource, sys
        from otel_goodput.exporters.tensorboard import ScalarWriter
        writer = ScalarWriter(sys.argv[1])
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        for number in range(200):
            writer.write("goodput/ratio", number, number, 1_700_000_000 + number)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_500 if 10 <= number < 150 else hard, hard))
            try:
                writer.flush()
            except OSError as error:
                print(error)
        writer.close()
    """
    done = ran(program, tmp_path / "logs")
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert str(tmp_path / "logs") in done.stdout
    assert scalars(tmp_path / "logs") == {"goodput/ratio": [(number, number) for number in range(200)]}
    assert all(path.stat().st_size > 100 for path in (tmp_path / "logs").iterdir()), "no empty file for each try"


def test_a_folder_that_is_deleted_meanwhile(tmp_path: Path) -> None:
    writer = ScalarWriter(str(tmp_path / "logs"))
    writer.write("goodput/ratio", 1, 1, 1_700_000_000)
    writer.flush()
    shutil.rmtree(tmp_path / "logs")
    writer.write("goodput/ratio", 2, 2, 1_700_000_060)
    writer.close()
    assert scalars(tmp_path / "logs") == {"goodput/ratio": [(2, 2)]}
