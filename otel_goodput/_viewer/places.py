"""Where the runs are that are shown: a directory, which need not exist yet, or a URL, of which a copy is kept."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from otel_goodput._journal.mirror import Mirror, open_filesystem, plain
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._runtime import files
from otel_goodput._text.redact import redacting_logger, shown, without_credentials
from otel_goodput.errors import JournalError
from otel_goodput.reports.run import RecordedRun

logger = redacting_logger(__name__)

REFRESH_S: Final = 10.0  # between two looks at a URL
_SHARE: Final = 4  # a look that takes long is followed by a pause of this many times its length


class Directory:
    """The runs of a local directory, or one run's own folder. Nothing in it is ever written.

    Attributes:
        shown: how it is called in messages.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self.shown = shown(place)

    def runs(self) -> tuple[dict[str, RecordedRun], str]:
        """Return the runs by the name of their folder, and what a person must know where there are none."""
        folder = files.named(self._place)
        try:
            found = files.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return {}, f"{self.shown} does not exist yet: waiting for it"
        except OSError as error:
            return {}, f"{self.shown} cannot be read: {error.strerror}"
        if "journal" in found and files.is_folder(folder / "journal"):
            return {folder.name: RecordedRun(RunDirectory(folder))}, ""
        runs = {name: RecordedRun(RunDirectory(folder / name)) for name in found if _holds_a_run(folder / name)}
        return runs, "" if runs else f"{self.shown} holds no run yet: waiting for the first"

    def close(self) -> None:
        """Nothing is kept."""


def _holds_a_run(folder: Path) -> bool:
    """Whether this folder has a journal; links are not followed, for they may lead anywhere."""
    return not folder.is_symlink() and not (folder / "journal").is_symlink() and files.is_folder(folder / "journal")


class Remote:
    """The runs at a URL: a private copy, renewed every ten seconds for as long as somebody asks.

    Attributes:
        shown: the URL without credentials.

    Raises:
        JournalError: fsspec, or the package for this kind of URL, is missing, or the URL is invalid.
        OSError: the copy cannot be made.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self.shown = without_credentials(self._url)
        self._filesystem, self._base = open_filesystem(self._url)
        self._stack = ExitStack()
        self._copy = files.named(self._stack.enter_context(files.scratch()))
        self._mirrors: dict[str, Mirror] = {}
        self._problem = f"reading {self.shown}"
        self._asked = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="otel-goodput-fetch", daemon=True)
        self._thread.start()

    def runs(self) -> tuple[dict[str, RecordedRun], str]:
        """As :meth:`Directory.runs`, of the copy."""
        self._asked.set()
        return {
            name: RecordedRun(RunDirectory(self._copy / name), one) for name, one in list(self._mirrors.items())
        }, self._problem

    def close(self) -> None:
        """Remove the copy."""
        self._ended.set()
        self._asked.set()
        self._thread.join(1)
        self._stack.close()

    def _loop(self) -> None:
        while not self._ended.is_set():
            self._asked.clear()
            began = time.monotonic()
            try:
                self._fetch()
                self._problem = "" if self._mirrors else f"{self.shown} holds no run yet: waiting for the first"
            except Exception as error:  # each fsspec filesystem raises its own errors
                self._problem = f"{self.shown} cannot be read: {shown(str(error)) or type(error).__name__}"
            self._ended.wait(max(REFRESH_S, _SHARE * (time.monotonic() - began)))
            self._asked.wait()  # nobody looks: nothing is fetched

    def _fetch(self) -> None:
        self._filesystem.invalidate_cache()
        url, base = self._url, self._base.rstrip("/")
        if self._filesystem.isdir(f"{base}/journal"):  # a run's own folder
            url, _, name = url.rpartition("/")
            names = [name]
        else:
            try:
                listed = self._filesystem.ls(base, detail=False)
            except FileNotFoundError:
                listed = []
            names = sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in listed)
        for name in filter(plain, names):
            if self._ended.is_set():
                return
            try:
                mirror = self._mirrors.get(name) or Mirror(url, RunDirectory(self._copy / name))
                if name in self._mirrors or mirror.exists():
                    mirror.refresh()
                    self._mirrors[name] = mirror
            except Exception as error:  # one run that cannot be read does not keep the others away
                logger.warning("%s: run %r cannot be read: %s", self.shown, name, without_credentials(str(error)))


def place(named: str) -> Directory | Remote:
    """Return the place that a path or URL names. Raises as :class:`Remote`."""
    if "://" in named:
        return Remote(named)
    try:
        files.named(named)
    except OSError as error:
        raise JournalError(f"{shown(named)}: {error.strerror}") from error
    return Directory(named)
