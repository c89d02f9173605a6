"""The one place that opens files: whatever lies where ours should be, no link is followed, nothing is waited for.

Other users of the machine, of a shared folder or of a bucket may put there what they like. So

* a directory that a person names (:func:`named`) may be a link, foreign, or a group's; its links are resolved once;
* below it, from the root of the file system on, every part of a path is opened by itself and none may be a link;
* folders that we make are closed to others, and those that were there must be of somebody who is trusted
  (:func:`make_folders`);
* only regular files are opened, without waiting (a FIFO has no writer for ever), and read up to a bound;
* what replaces a file is written under a random name first.

Errors are ``OSError`` with the whole path.

Longer than other files: whoever reviews what we open has one to read.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SMALL: Final = 4096  # bytes of what processes tell each other
KIB: Final = 2**10
MIB: Final = 2**20
LONGEST_LINE: Final = 32 * MIB
PART: Final = ".part"  # ends the name of what is being written

_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_COMMON: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | _COMMON


class TooLarge(OSError):
    """A file holds more than is read of its kind."""


# --- what people and the system name ----------------------------------------------------------------------------------


def named(place: str | Path) -> Path:
    """The directory or file that a person names, absolute and without links; it need not be there.

    Raises:
        OSError: it is in the home of nobody, or its links go in circles.
    """
    try:
        return Path(place).expanduser().resolve()
    except RuntimeError as error:
        raise OSError(errno.EINVAL, str(error), str(place)) from error


def open_to_all(folder: Path) -> bool:
    """Whether everybody on this machine may replace what is in it: writable for all, without the sticky bit."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def open_given(path: Path) -> BinaryIO:
    """Open for reading what a person gives on the command line, a pipe too. Raises OSError."""
    return path.open("rb")


def open_named(path: Path) -> BinaryIO:
    """Open for reading a regular file of a person's or the system's, through links; nothing else is waited for.

    Raises:
        OSError: it is not there, cannot be read, or is no regular file.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    return _regular(file, path, "rb")


def read_named(path: Path, most: int = MIB) -> bytes:
    """Read a file as :func:`open_named` opens it, `most` bytes at most. Raises OSError."""
    with open_named(path) as file:
        return whole(file, path, most)


def nowhere() -> TextIO:
    """What is written to it is gone."""
    return Path(os.devnull).open("w", encoding="utf-8")


def temporary() -> Path:
    """The system's directory for temporary files, where everybody may make some."""
    return named(tempfile.gettempdir())


def scratch() -> AbstractContextManager[str]:
    """A folder of our own for the time being, under a random name."""
    return tempfile.TemporaryDirectory(prefix="otel-goodput-")


def lasting_scratch() -> Path:
    """A folder of our own under a random name, which stays. Raises OSError."""
    return named(tempfile.mkdtemp(prefix="otel-goodput-"))


def nameless(folder: Path) -> IO[bytes]:
    """A file in `folder` that has no name and is gone when it is closed. Raises OSError."""
    return tempfile.TemporaryFile(dir=folder)


# --- folders of ours --------------------------------------------------------------------------------------------------


def make_folders(path: Path, of: Path, *, private: bool = False, make: bool = True) -> None:
    """Make the folder `path` and those above it, one by one, for their owner only.

    Args:
        path: the folder; no part of it may be a link.
        of: the directory that a person named, above it or the same. Whoever may write there is trusted: what lies
            between is to be theirs or ours, and no more open than it.
        private: what lies between is to be ours, and for us only.
        make: whether to make them; otherwise those that are there are looked at.

    Raises:
        OSError: a folder cannot be made, is a link, or is not to be trusted.
    """
    trusted: list[os.stat_result] = []
    of = of.absolute()

    def look(place: Path, folder: int) -> None:
        if place == of:
            trusted.append(os.fstat(folder))
        elif trusted and (why := _closed(folder) if private else _distrust(os.fstat(folder), trusted[0])):
            raise PermissionError(errno.EPERM, f"{why}, so it is not used", str(place))

    os.close(_walk(path, make=make, look=look))


def _distrust(found: os.stat_result, trusted: os.stat_result) -> str:
    """Why a folder below the named one is not used; empty where it is.

    The owner of the named one is trusted (some mounts give everything to one user), as is its group where that may
    write (``fsGroup``). A mount that keeps no modes gives all folders the same one.
    """
    writers = trusted.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    of_group = writers == stat.S_IWGRP and found.st_gid == trusted.st_gid
    if found.st_uid not in (0, os.geteuid(), trusted.st_uid) and not of_group:
        return f"it belongs to another user (uid {found.st_uid})"
    if found.st_mode & stat.S_IWOTH and stat.S_IMODE(found.st_mode) & 0o777 != stat.S_IMODE(trusted.st_mode) & 0o777:
        return "everybody may write there"
    return ""


def _closed(folder: int) -> str:
    """Why a folder is not private; one of ours that others may only read is closed to them."""
    found = os.fstat(folder)
    if found.st_uid != os.geteuid():
        return f"it belongs to another user (uid {found.st_uid})"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write there"
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.fchmod(folder, _FOLDER_MODE)
    return ""


def names(folder: Path) -> list[str]:
    """Names of what is in a folder of ours. Raises OSError."""
    with _inside(folder) as place, _telling(folder):
        return os.listdir(place)  # noqa: PTH208


# --- files of ours ----------------------------------------------------------------------------------------------------


def opened(path: Path) -> BinaryIO:
    """Open a file of ours for reading. Raises OSError."""
    return _regular(_open(path, os.O_RDONLY), path, "rb")


def read(path: Path, most: int = SMALL) -> bytes:
    """Read a file of ours whole.

    Raises:
        TooLarge: it holds more than `most` bytes.
        OSError: it cannot be read.
    """
    with opened(path) as file:
        return whole(file, path, most)


def whole(file: BinaryIO, path: Path, most: int) -> bytes:
    """All of an opened file from its beginning on.

    Raises:
        TooLarge: it holds more than `most` bytes.
        OSError: it cannot be read.
    """
    file.seek(0)
    data = file.read(most + 1) if _size(file) <= most else None
    if data is None or len(data) > most:
        raise TooLarge(errno.EFBIG, f"it holds more than {most} bytes", str(path))
    return data


def beginning(path: Path, size: int) -> bytes:
    """The first `size` bytes of a file of ours, or as many as there are. Raises OSError."""
    with opened(path) as file:
        return file.read(size)


def descriptor(path: Path, flags: int) -> int:
    """A descriptor of a file of ours, which is made where it is not there and `flags` have ``O_CREAT``.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    file = _open(path, flags)
    try:
        _check(file, path)
    except OSError:
        os.close(file)
        raise
    return file


def new(path: Path) -> int:
    """A descriptor, for reading and writing, of a file of ours that was not there before.

    Raises:
        FileExistsError: it was.
        OSError: it cannot be made.
    """
    return _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


def write_privately(path: Path, *pieces: ReadableBuffer) -> None:
    """Write a file of these pieces as a whole or not at all, mode 0600; a link in its place is replaced.

    Raises:
        OSError: it cannot be written.
    """
    part = f"{path.name}.{secrets.token_hex(8)}{PART}"
    with _inside(path.parent) as folder, _telling(path):
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _COMMON, _FILE_MODE, dir_fd=folder)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.writelines(pieces)
            os.replace(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise


def remove(path: Path) -> None:
    """Remove a file of ours, if it is there. Raises OSError."""
    with suppress(FileNotFoundError), _inside(path.parent) as folder, _telling(path):
        os.unlink(path.name, dir_fd=folder)


def set_aside(path: Path, word: str) -> Path:
    """Give a file of ours another name, that nobody looks for: its own, `word` and a number; returns where it is now.

    Raises:
        OSError: it cannot be renamed.
    """
    with _inside(path.parent) as folder, _telling(path):
        taken = set(os.listdir(folder))  # noqa: PTH208
        name = next(name for at in count(1) if (name := f"{path.name}.{word}-{at}") not in taken)
        os.rename(path.name, name, src_dir_fd=folder, dst_dir_fd=folder)
        return path.with_name(name)


def exists(path: Path) -> bool:
    """Whether a regular file of ours is there."""
    try:
        with _inside(path.parent) as folder:
            return stat.S_ISREG(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


# --- bounds -----------------------------------------------------------------------------------------------------------


def blocks_of_lines(file: IO[bytes], source: object, block: int = MIB) -> Iterator[list[bytes]]:
    """The lines of a file, called `source`, some at once, without their ends; `block` bytes are read at once.

    Raises:
        ValueError: one is longer than ``LONGEST_LINE``.
        OSError: the file cannot be read.
    """
    number, pieces, size = 0, [b""], 0
    while data := file.read(block):
        first, *others = data.split(b"\n")
        pieces.append(first)
        size += len(first)
        if size > LONGEST_LINE:
            raise ValueError(f"{source}: line {number + 1} is longer than {LONGEST_LINE // MIB} MiB")
        if not others:
            continue
        lines = [b"".join(pieces), *others[:-1]]
        pieces, size = [others[-1]], len(others[-1])
        number += len(lines)
        yield lines
    if size:
        yield [b"".join(pieces)]


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


# --- the way to a file ------------------------------------------------------------------------------------------------


def _open(path: Path, flags: int) -> int:
    with _inside(path.parent) as folder, _telling(path):
        return os.open(path.name, flags | _COMMON, _FILE_MODE, dir_fd=folder)


def _regular(file: int, path: Path, mode: str) -> BinaryIO:
    try:
        _check(file, path)
        return os.fdopen(file, mode)  # type: ignore[return-value]
    except BaseException:
        os.close(file)
        raise


def _check(file: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))


@contextmanager
def _inside(folder: Path) -> Iterator[int]:
    """A descriptor of the folder. Raises OSError."""
    descriptor = _walk(folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _walk(path: Path, *, make: bool = False, look: Callable[[Path, int], None] = lambda *_: None) -> int:
    """Go to a folder from the root on, and show each on the way to `look`; returns a descriptor of the last."""
    path = path.absolute()
    place = Path(path.anchor)
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        look(place, folder)
        for part in path.parts[1:]:
            place /= part
            with _telling(place):
                below = _step(part, folder, make)
            above, folder = folder, below
            os.close(above)
            look(place, folder)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _step(part: str, folder: int, make: bool) -> int:
    try:
        return _enter(part, folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(part, _FOLDER_MODE, dir_fd=folder)
    return _enter(part, folder)


def _enter(part: str, folder: int) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=folder)
    except PermissionError:
        if not hasattr(os, "O_PATH"):
            raise
        # One may pass through a folder without reading it.
        return os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    """Errors tell the whole path, and that a link is one."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link, which is not followed", str(path)) from None
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
