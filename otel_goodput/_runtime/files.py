"""Opens every file of this package safely, even if other users have put something else in its place.

Other users of the machine, of a shared folder or of a bucket may create any file or link there. Therefore

* a directory that the user names (:func:`named`) may be a link, or belong to somebody else or a group; its links are
  resolved once;
* after that, every part of a path is opened separately, from the root of the file system on, and none may be a link;
* folders that this package makes are closed to others, and existing ones must have a trusted owner;
* only regular files are opened, without blocking (a FIFO may never get a writer), and read up to a limit;
* a file is replaced by writing a new one under a random name and renaming it.

All functions raise ``OSError`` with the whole path, and those that read ``TooLarge``, beyond the bytes of their limit.
"""

from __future__ import annotations

import errno
import gzip
import os
import re
import secrets
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Final, TextIO

if TYPE_CHECKING:
    from importlib.abc import Traversable

    from _typeshed import ReadableBuffer

SMALL: Final = 4096  # bytes: limit for small files, such as those that processes exchange
KIB: Final = 2**10
MIB: Final = 2**20
LONGEST_LINE: Final = 32 * MIB
PART: Final = ".part"  # suffix of a file that is still being written

_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
# Of what others of this machine are to read too, less the umask.
_SHARED_FOLDER_MODE: Final = 0o777
_SHARED_FILE_MODE: Final = 0o666
_COMMON: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | _COMMON
_FRONT: Final = 16 * KIB  # read first of a file that is written from the front
_LARGE: Final = Path("/var/tmp")  # by convention for large temporary files, and on a disk
_MOUNTS: Final = Path("/proc/self/mountinfo")
_IN_MEMORY: Final = re.compile(" - (tmpfs|ramfs) ")  # a file system, in a line of that
_EMPTY: Final = bytes(4 * KIB)  # so much without a byte written: the rest may be empty, too


class TooLarge(OSError):
    """A file is larger than the limit for its kind."""


# --- files of the user and the system ---------------------------------------------------------------------------------


def named(place: str | Path) -> Path:
    """Resolve a path that the user gives: absolute, ``~`` expanded, links followed. It need not exist."""
    try:
        return Path(place).expanduser().resolve()
    except RuntimeError as error:
        raise OSError(errno.EINVAL, str(error), str(place)) from error


def open_to_all(folder: Path) -> bool:
    """Whether every user of this machine may replace files in `folder`: it is world-writable without the sticky bit."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def open_given(path: Path) -> BinaryIO:
    """Open for reading a file or pipe given on the command line."""
    return path.open("rb")


def open_named(path: Path) -> BinaryIO:
    """Open for reading a regular file of the user or the system; links are followed. Does not block on a FIFO."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    return os.fdopen(_regular(file, path), "rb")


def read_named(path: Path, most: int = MIB) -> bytes:
    with open_named(path) as file:
        return whole(file, path, most)


@contextmanager
def writing_named(path: Path) -> Iterator[BinaryIO]:
    """Open a file of the user for writing, in a ``with`` block; what is there is replaced once the block has ended.

    If the block raises, the file stays as it was. What is no regular file, such as a pipe, is written to directly.
    """
    place = named(path)
    if _is_special(place):
        with place.open("wb") as stream:
            yield stream
        return
    part = place.with_name(f"{place.name}.{secrets.token_hex(8)}{PART}")
    try:
        with part.open("xb") as stream:
            yield stream
        part.replace(place)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.filename == str(part):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def packed(stream: BinaryIO) -> AbstractContextManager[gzip.GzipFile]:
    """Return a context manager that compresses into `stream`, without a name and a time: the same each time."""
    return gzip.GzipFile(filename="", fileobj=stream, mode="wb", compresslevel=6, mtime=0)


def write_named(path: Path, data: bytes) -> None:
    with writing_named(path) as stream:
        stream.write(data)


def write_for_owner(place: Path, data: bytes) -> None:
    """Write a file of the user that only its owner may read, whole or not at all; `place` is as :func:`named` gives it.

    What is no regular file, such as a pipe or ``/dev/null``, is written to and not replaced.
    """
    if _is_special(place):
        write_named(place, data)
    else:
        write_privately(place, data)


def _is_special(place: Path) -> bool:
    """Whether something is there that is no regular file."""
    try:
        return not stat.S_ISREG(place.stat().st_mode)
    except FileNotFoundError:
        return False


def nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def temporary() -> Path:
    """Return the system's directory for temporary files, where every user may create some."""
    return named(tempfile.gettempdir())


def for_large() -> list[Path]:
    """Return the directories for large temporary files, the best first; none of them is in memory."""
    return [folder for folder in dict.fromkeys((temporary(), _LARGE)) if folder.is_dir() and not _in_memory(folder)]


def _in_memory(folder: Path) -> bool:
    """Whether what is written there takes memory, not a disk, as far as the system says that."""
    device = folder.stat().st_dev
    place = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # only Linux has it
        return False
    return any(f" {place} " in mount and _IN_MEMORY.search(mount) for mount in mounts)


def scratch() -> AbstractContextManager[str]:
    """Return a context manager that creates a private folder with a random name, and removes it at the end."""
    return tempfile.TemporaryDirectory(prefix="otel-goodput-")


def lasting_scratch() -> Path:
    """Create a private folder with a random name; it is not removed."""
    return named(tempfile.mkdtemp(prefix="otel-goodput-"))


def nameless(folder: Path) -> IO[bytes]:
    """Open a file in `folder` that has no name and disappears when it is closed."""
    return tempfile.TemporaryFile(dir=folder)


# --- files that come with this package -------------------------------------------------------------------------------


def resources(package: str, *folders: str) -> list[str]:
    """Return the names in a folder of a package, sorted."""
    return sorted(entry.name for entry in _resource(package, folders).iterdir())


def resource(package: str, *path: str) -> str:
    """Read a text file of a package; if it is not there, the installation is not whole."""
    return _resource(package, path).read_text(encoding="utf-8")


def _resource(package: str, path: Sequence[str]) -> Traversable:
    from importlib import resources as installed  # not for every job: only who writes a page needs it

    place: Traversable = installed.files(package)
    for part in path:
        place = place / part
    return place


# --- folders of this package ------------------------------------------------------------------------------------------


def make_folders(path: Path, of: Path, *, private: bool = False, make: bool = True, shared: bool = False) -> None:
    """Create the folder `path`, unless `make` is false, and its parents, for their owner only; check those that exist.

    No part of it may be a link. Missing folders that are `shared` are open to others as far as the umask allows.

    Args:
        of: the directory that the user named: `path` itself or one above it. Its owner, and its group if that may
            write, are trusted. Folders below it must belong to them, root or this user and be no more open.
        private: folders below `of` must belong to this user and be writable by no other; read access of others is
            removed.
    """
    trusted: list[os.stat_result] = []
    of = of.absolute()

    def look(place: Path, folder: int) -> None:
        if place == of:
            trusted.append(os.fstat(folder))
        elif trusted and (why := _closed(folder) if private else _distrust(os.fstat(folder), trusted[0])):
            raise PermissionError(errno.EPERM, f"not used, because {why}", str(place))

    mode = _SHARED_FOLDER_MODE if shared else _FOLDER_MODE
    os.close(_walk(path, make=mode if make else None, look=look))


def _distrust(status: os.stat_result, trusted: os.stat_result) -> str:
    """Return why a folder below the named one (`trusted`) is not used; empty if it is.

    The owner of the named one is trusted (some mounts give everything to one user), and so is its group if that may
    write (``fsGroup``). A world-writable folder is accepted if both have the same mode: some mounts keep no modes.
    """
    writers = trusted.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    of_group = writers == stat.S_IWGRP and status.st_gid == trusted.st_gid
    if status.st_uid not in (0, os.geteuid(), trusted.st_uid) and not of_group:
        return f"it belongs to another user (uid {status.st_uid})"
    if status.st_mode & stat.S_IWOTH and stat.S_IMODE(status.st_mode) & 0o777 != stat.S_IMODE(trusted.st_mode) & 0o777:
        return "it is writable by every user"
    return ""


def _closed(folder: int) -> str:
    """Return why a folder is not private, else an empty string; read access of others is removed."""
    status = os.fstat(folder)
    if status.st_uid != os.geteuid():
        return f"it belongs to another user (uid {status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "it is writable by other users"
    if status.st_mode & 0o077:
        os.fchmod(folder, _FOLDER_MODE)
    return ""


def names(folder: Path) -> list[str]:
    with _inside(folder) as place, _naming(folder):
        return os.listdir(place)  # noqa: PTH208


def changed(folder: Path) -> int:
    """Return when a name was last added to a folder or removed from it, ns since the epoch."""
    with _inside(folder) as place, _naming(folder):
        return os.fstat(place).st_mtime_ns


# --- files of this package --------------------------------------------------------------------------------------------


def opened(path: Path) -> BinaryIO:
    """Open a file for reading; no part of its path may be a link."""
    return os.fdopen(descriptor(path, os.O_RDONLY), "rb")


def read(path: Path, most: int = SMALL) -> bytes:
    """Read a whole file; no part of its path may be a link."""
    with opened(path) as file:
        return whole(file, path, most)


def whole(file: BinaryIO, path: Path, most: int) -> bytes:
    """Read the whole of an open file from its beginning; `path` is for errors."""
    file.seek(0)
    size = os.fstat(file.fileno()).st_size
    if size <= most:
        # read() allocates as much as it may return. The file may grow, or be one of the kernel's, of size 0.
        data = file.read(size + 1)
        while len(data) <= most and (more := file.read(min(MIB, most + 1 - len(data)))):
            data += more
        if len(data) <= most:
            return data
    raise TooLarge(errno.EFBIG, f"it holds more than {most} bytes", str(path))


def written(path: Path, most: int) -> tuple[bytes, int]:
    """Read a file that has its full size from the start and is written from the front: its contents, and its size.

    The contents lack zeros at the end that the file system knows to have never been written; those that it does not
    know of are read.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if _FRONT < size <= most and hasattr(os, "SEEK_DATA"):
            front = os.pread(file.fileno(), _FRONT, 0)
            if front.endswith(_EMPTY):
                try:
                    os.lseek(file.fileno(), len(front), os.SEEK_DATA)
                except OSError as error:
                    if error.errno == errno.ENXIO:  # nothing was written there or after it
                        return front, size
        data = whole(file, path, most)
        return data, len(data)


def beginning(path: Path, size: int) -> bytes:
    """Read the first `size` bytes of a file, or all if there are fewer."""
    with opened(path) as file:
        return file.read(size)


def descriptor(path: Path, flags: int, *, shared: bool = False) -> int:
    """Return a descriptor of a regular file, opened with `flags`; with ``O_CREAT`` it is created if missing.

    Only its owner may read it then; if it is to be `shared`, others too, as far as the umask allows.
    """
    return _regular(_open(path, flags, _SHARED_FILE_MODE if shared else _FILE_MODE), path)


def new(path: Path) -> int:
    return _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


def write_privately(path: Path, *pieces: ReadableBuffer, size: int = 0, given: bool = False) -> None:
    """Write a file atomically from `pieces`, with mode 0600; a link in its place is replaced.

    If it is shorter than `size` bytes, the rest reads as zeros, and takes no room where the file system can do that.
    If root writes it and it is to be `given`, it belongs to the owner of its folder.
    """
    part = f"{path.name}.{secrets.token_hex(8)}{PART}"
    with _inside(path.parent) as folder, _naming(path):
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _COMMON, _FILE_MODE, dir_fd=folder)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.writelines(pieces)
                if stream.tell() < size:
                    stream.truncate(size)
                if given and os.geteuid() == 0:
                    os.fchown(file, (about := os.fstat(folder)).st_uid, about.st_gid)
            os.replace(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise


def append_whole(file: int, data: bytes) -> None:
    """Append to a descriptor that was opened with ``O_APPEND``, with one write; a partial write is undone."""
    size = os.fstat(file).st_size
    if os.write(file, data) != len(data):
        os.ftruncate(file, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def append_lines(path: Path, data: bytes) -> None:
    """Add whole lines to the end of a file with one write, which no other appending process can split, and sync it.

    The file is created with mode 0600 if it is missing. A torn last line, of a process that died, is ended first.
    """
    file = descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        size = os.lseek(file, 0, os.SEEK_END)
        if size:
            os.lseek(file, size - 1, os.SEEK_SET)
            if os.read(file, 1) != b"\n":
                data = b"\n" + data
        with _naming(path):
            append_whole(file, data)
            os.fsync(file)
    finally:
        os.close(file)


def remove(path: Path) -> None:
    with suppress(FileNotFoundError), _inside(path.parent) as folder, _naming(path):
        os.unlink(path.name, dir_fd=folder)


def remove_folder(path: Path) -> None:
    with suppress(FileNotFoundError), _inside(path.parent) as folder, _naming(path):
        try:
            os.rmdir(path.name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def set_aside(path: Path, word: str) -> Path:
    """Rename a file to ``<name>.<word>-<number>``, which no code reads; returns the new path."""
    with _inside(path.parent) as folder, _naming(path):
        taken = set(os.listdir(folder))  # noqa: PTH208
        name = next(name for at in count(1) if (name := f"{path.name}.{word}-{at}") not in taken)
        os.rename(path.name, name, src_dir_fd=folder, dst_dir_fd=folder)
        return path.with_name(name)


def is_folder(path: Path) -> bool:
    """Whether `path` is a directory, or a link to one; False too if a parent may not be entered."""
    try:
        return path.is_dir()
    except OSError:
        return False


def exists(path: Path) -> bool:
    """Whether `path` is a regular file; no part of the path may be a link."""
    return _regular_one(path) is not None


def is_nowhere(path: Path) -> bool:
    """Whether there is nothing at `path`, nor a link; False too if that cannot be known."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def version(path: Path) -> tuple[int, int]:
    """Return the size (bytes) and the time of the last change (ns) of a regular file; (0, 0) if there is none."""
    about = _regular_one(path)
    return (0, 0) if about is None else (about.st_size, about.st_mtime_ns)


def _regular_one(path: Path) -> os.stat_result | None:
    with suppress(OSError), _inside(path.parent) as folder:
        about = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(about.st_mode):
            return about
    return None


# --- limits -----------------------------------------------------------------------------------------------------------


def blocks_of_lines(file: IO[bytes], source: object, block: int = MIB) -> Iterator[list[bytes]]:
    """Yield the lines of a file in lists, without line ends; `block` is the number of bytes read at a time.

    Raises ValueError, which names `source`, if a line is longer than ``LONGEST_LINE``.
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


# --- opening a path part by part --------------------------------------------------------------------------------------


def _open(path: Path, flags: int, mode: int = _FILE_MODE) -> int:
    with _inside(path.parent) as folder, _naming(path):
        return os.open(path.name, flags | _COMMON, mode, dir_fd=folder)


def _regular(file: int, path: Path) -> int:
    """Return the descriptor of a regular file; that of anything else is closed."""
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    except BaseException:
        os.close(file)
        raise
    return file


class _Held(threading.local):
    """The folders that a thread keeps open, with their descriptors."""

    def __init__(self) -> None:
        self.folders: dict[Path, int] = {}


_held: Final = _Held()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep a folder open for the time of a ``with`` block, for this thread, which opens many of its files.

    What takes the folder's place meanwhile is not seen. A folder that cannot be opened is not held, and does not raise.
    """
    descriptor = -1
    if folder not in _held.folders:
        with suppress(OSError):
            descriptor = _held.folders[folder] = _walk(folder)
    try:
        yield
    finally:
        if descriptor >= 0:
            del _held.folders[folder]
            os.close(descriptor)


@contextmanager
def _inside(folder: Path) -> Iterator[int]:
    """Open a folder for the time of a ``with`` block, unless it is held; yields its descriptor."""
    if folder in _held.folders:
        yield _held.folders[folder]
        return
    descriptor = _walk(folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _walk(path: Path, *, make: int | None = None, look: Callable[[Path, int], None] | None = None) -> int:
    """Open a folder part by part from the root, calling `look` with each; returns the descriptor of the last.

    Missing parts are made with the mode `make`, if it is given.
    """
    parts = path.absolute().parts
    folder = os.open(parts[0], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if look is not None:
            look(Path(parts[0]), folder)
        for at, part in enumerate(parts[1:], 2):
            try:
                below = _step(part, folder, make)
            except OSError as error:
                raise _named(error, Path(*parts[:at])) from None
            above, folder = folder, below
            os.close(above)
            if look is not None:
                look(Path(*parts[:at]), folder)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _step(part: str, folder: int, make: int | None) -> int:
    try:
        return _enter(part, folder)
    except FileNotFoundError:
        if make is None:
            raise
    with suppress(FileExistsError):
        os.mkdir(part, make, dir_fd=folder)
    return _enter(part, folder)


def _enter(part: str, folder: int) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=folder)
    except PermissionError:
        if not hasattr(os, "O_PATH"):
            raise
        # A folder that cannot be read may still be passed through.
        return os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Re-raise OSErrors with the whole path; say so if the path is a link."""
    try:
        yield
    except OSError as error:
        raise _named(error, path) from None


def _named(error: OSError, path: Path) -> OSError:
    """Return the error of an operation on `path`."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR) and path.is_symlink():
        return OSError(errno.ELOOP, "it is a link, which is not followed", str(path))
    return OSError(error.errno, error.strerror or str(error), str(path))
