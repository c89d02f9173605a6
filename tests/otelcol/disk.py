"""A small disk of a test's own, which others may fill and which may grow: a tmpfs that only those see who are started
in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# A user who is not root is root in a namespace of his own.
_OWN = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
_READY = b"ready\n"


class SmallDisk:
    """A file system of `size` bytes at a directory, in a namespace of mounts of its own; a context manager.

    It is gone with the process that holds it, which ends when this one does.
    """

    def __init__(self, directory: Path, size: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._size = size

    def __enter__(self) -> SmallDisk:
        mount = f'mount -t tmpfs -o size={self._size},mode=0777 tmpfs "$1" && echo ready && exec cat >/dev/null'
        self._holder = subprocess.Popen(
            [*_OWN, "sh", "-c", mount, "sh", str(self._directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == _READY, "no file system can be mounted here, not even in a namespace"
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.communicate()

    @property
    def within(self) -> list[str]:
        """What a command begins with that sees it."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", f"--target={self._holder.pid}", "--mount", *user, "--"]

    @property
    def path(self) -> Path:
        """Where all others see it."""
        return Path(f"/proc/{self._holder.pid}/root{self._directory}")

    @property
    def free(self) -> int:
        """Bytes."""
        figures = os.statvfs(self.path)
        return figures.f_bavail * figures.f_frsize

    def fill(self, leaving: int = 0) -> None:
        """With a file of somebody else's."""
        with (self.path / "others").open("ab", buffering=0) as file:
            while (left := self.free - leaving) > 0:
                try:
                    file.write(bytes(min(left, 1 << 20)))
                except OSError:
                    return

    def clear(self) -> None:
        """Of what :meth:`fill` wrote."""
        (self.path / "others").unlink()

    def grow(self, size: int) -> None:
        """To so many bytes."""
        command = ["mount", "-o", f"remount,size={size}", str(self._directory)]
        subprocess.run([*self.within, *command], check=True, timeout=30)
