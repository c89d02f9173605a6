"""Turn SIGTERM and SIGINT into notices; the handlers that were there before are still called.

Python runs its handlers on the main thread, once it is back in Python code. If it waits for a dead peer in native code,
it never is, and a SIGTERM that used to end such a process must still end it. So a thread of ours does all that does not
need the main thread. The interpreter's wake-up descriptor notifies it of every signal at once: it announces the signal,
calls the native handler, and carries out the default action. The main thread only calls the Python handler that was
there before, and notifies our thread, too, in case the wake-up descriptor belongs to someone else.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from otel_goodput import deadline
from otel_goodput.clock import Clock
from otel_goodput.disruption import actions
from otel_goodput.disruption.actions import Action
from otel_goodput.disruption.notices import Notices
from otel_goodput.guard import contain, contained, report_once
from otel_goodput.semconv import GOODPUT_NOTICE_SOURCE, Reason

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
RAN: Final = 128  # added to a signal's number to say that its Python handler ran
TELLING_S: Final = 0.5  # s that a native handler waits at most until the notice is in the journal
ECHO_S: Final = 0.5  # s within which a native handler that passes a signal on makes it come again

Handler = Callable[[int, "FrameType | None"], Any]


class _Link:
    """What handled one signal before. With neither `python` nor `native`, it was the default action."""

    __slots__ = ("called", "due", "handler_due", "native", "ours", "python")

    def __init__(self, python: Handler | None, native: Action | None) -> None:
        self.python = python  # if there is a native handler, called only when that passes the signal on
        self.native = native
        self.ours: Action | None = None
        self.handler_due = False  # the descriptor has notified us of the signal, its Python handler has yet to run
        self.due = False  # the native handler passed the signal on to the Python handler
        self.called = float("-inf")  # when the native handler was called, monotonic s

    def echoes(self) -> bool:
        """Return whether a signal that arrives now is the one just given to the native handler, passed on by it."""
        return time.monotonic() - self.called < ECHO_S


class Signals:
    """Handlers of SIGTERM and SIGINT that announce the signals and pass them on.

    Args:
        notices: where a signal is announced.
        clock: ns since the epoch.
        grace_s: seconds at most from a signal whose default action ends the process to that end.
        finish: called before such an end with the seconds left, after the notice was recorded and flushed.
    """

    def __init__(
        self, notices: Notices, clock: Clock, grace_s: float = 10.0, finish: Callable[[float], object] | None = None
    ) -> None:
        self._notices = notices
        self._clock = clock
        self._grace_s = grace_s
        self._finish = finish
        self._pid = os.getpid()
        self._links: dict[int, _Link] = {}
        self._removed = False
        self._ending = False
        self._ears: tuple[socket.socket, socket.socket] | None = None  # read end, write end

    def install(self) -> bool:
        """Install the handlers; return False if none could be, for example off the main thread. Call once.

        A signal that is ignored stays ignored.
        """
        if threading.current_thread() is not threading.main_thread() or not hasattr(socket, "socketpair"):
            return False
        try:
            self._listen()
            for signum in SIGNALS:
                self._install(signum)
        except Exception as error:  # ValueError in a subinterpreter
            contain("installing signal handlers", error)
        if not self._links:
            self.remove()
        return bool(self._links)

    def renew(self) -> None:
        """Put our handlers back where native code has silently replaced them since, and pass the signals on to it.

        A signal that Python code has taken, or that is ignored now, is left alone. Cheap; from any thread.
        """
        if self._removed or self._ending or os.getpid() != self._pid:
            return
        for signum, link in self._links.items():
            now = actions.read(signum)
            if now is None or link.ours is None or now.handler in (link.ours.handler, actions.IGNORE):
                continue
            if signal.getsignal(signum) == self._handle:
                if now.handler == actions.DEFAULT:
                    link.python = link.native = None
                else:
                    link.native = now
                actions.write(signum, link.ours)

    def remove(self) -> None:
        """Stop announcing, and restore the previous handlers wherever ours are still in force.

        Off the main thread, Python handlers cannot be restored: there ours stay and only pass signals on.
        """
        self._removed = True
        if threading.current_thread() is threading.main_thread():
            self._step_aside()
            return
        for signum, link in self._links.items():
            if self._in_force(signum, link) and (link.native is not None or link.python is None):
                actions.write(signum, link.native)

    # --- taking and giving back ---------------------------------------------------------------------------------------

    def _install(self, signum: int) -> None:
        before, shown = actions.read(signum), signal.getsignal(signum)
        if shown is None and before is None:
            return  # a native handler that could not be called
        if (shown == signal.SIG_IGN) if before is None else (before.handler == actions.IGNORE):
            return
        python = shown if callable(shown) else None
        # Enough for a signal that arrives before the lines below have run.
        link = self._links[signum] = _Link(python, None)
        signal.signal(signum, self._handle)
        link.ours = ours = actions.read(signum)
        if before is None or ours is None:
            return
        if before.handler == actions.DEFAULT:
            link.python = None  # even if Python still shows a handler
        elif before.handler != ours.handler:
            link.native = before

    def _in_force(self, signum: int, link: _Link) -> bool:
        now = actions.read(signum)
        native_too = now is None or link.ours is None or now.handler == link.ours.handler
        return native_too and signal.getsignal(signum) == self._handle

    def _step_aside(self) -> None:
        """Restore all handlers and end our thread; on the main thread."""
        for signum, link in self._links.items():
            if self._in_force(signum, link):
                signal.signal(signum, link.python or signal.SIG_DFL)
                if link.native is not None:
                    actions.write(signum, link.native)
        _installed.discard(self)
        if self._ears is None:
            return
        reader, writer = self._ears
        with suppress(OSError, ValueError):
            fd = signal.set_wakeup_fd(-1)
            if fd not in (-1, writer.fileno()):
                signal.set_wakeup_fd(fd)
        self._ears = None
        writer.close()  # ends the thread
        if os.getpid() != self._pid:
            reader.close()

    # --- on the main thread -------------------------------------------------------------------------------------------

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        link = self._links[signum]
        # Our thread does nothing after removal or in a forked child, and cannot end the process without ctypes.
        alone = self._removed or self._ending or os.getpid() != self._pid
        passed_on = link.due or (alone and link.echoes())
        link.due = False
        python = link.python if link.native is None or passed_on else None
        try:
            if not alone:
                self._announce(signum)
                if self._ears is not None:
                    self._ears[1].send(bytes([signum + RAN]))
            elif link.native is not None and not passed_on:
                link.called = time.monotonic()
                actions.call(signum, link.native)
            elif python is None:
                signal.signal(signum, signal.SIG_DFL)
                os.kill(os.getpid(), signum)
        except Exception:
            contained["signal handler"] += 1  # no logging: the interrupted code may hold its locks
        finally:
            if python is not None:
                python(signum, frame)

    def _announce(self, signum: int) -> None:
        if not self._removed:
            self._notices.announce(Reason.SIGNAL, self._clock(), **{GOODPUT_NOTICE_SOURCE: signal.Signals(signum).name})

    # --- in our thread ------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Start a thread, and have the interpreter notify it of every signal at once."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        self._ears = (reader, writer)
        _installed.add(self)
        threading.Thread(target=self._hear, args=(reader,), name="goodput-signals", daemon=True).start()
        if not hasattr(socket, "SO_PASSCRED"):
            return  # without the sender's process, signals of forked children would be taken for ours
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        taken = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if taken != -1:
            signal.set_wakeup_fd(taken)

    def _hear(self, reader: socket.socket) -> None:
        with reader:
            while True:
                heard = _receive(reader)
                if heard is None:
                    return
                for word in heard:
                    try:
                        self._heard(word, reader)
                    except Exception as error:
                        report_once("signal", "passing on a signal failed: %s: %s", type(error).__name__, error)

    def _heard(self, word: int, reader: socket.socket) -> None:
        ran, signum = divmod(word, RAN)
        link = self._links.get(signum)
        if link is None:
            return
        if ran:
            known, link.handler_due = link.handler_due, False
            if known:
                return
        elif signal.getsignal(signum) != self._handle:
            return  # someone else handles it now; if they pass it on, our handler notifies us
        else:
            link.handler_due = True
        if link.echoes():
            return
        self._announce(signum)
        if link.native is not None:
            self._notices.told(TELLING_S)  # some native handlers end the process
            if not self._passed_on(signum, link, link.native, reader):
                return
            if link.python is not None and link.ours is not None:
                link.due = True
                actions.call(signum, link.ours)
        if link.python is None:
            self._end(signum)

    def _passed_on(self, signum: int, link: _Link, native: Action, reader: socket.socket) -> bool:
        """Call the native handler; return whether it raised the signal again, as it does to call its predecessor."""
        link.called = time.monotonic()
        actions.call(signum, native)
        link.called = time.monotonic()
        reader.setblocking(False)
        try:
            heard = _receive(reader)
        except BlockingIOError:
            return False
        finally:
            reader.setblocking(True)
        for word in heard or b"":
            if word != signum:
                self._heard(word, reader)
        return signum in (heard or b"")

    def _end(self, signum: int) -> None:
        """Finish the recorders within the grace period, then carry out the default action."""
        if self._ending:
            return
        until = time.monotonic() + self._grace_s
        # Other recorders of this process end with it, and were notified of the signal before us or together with us.
        ending = [signals for signals in {self, *_installed} if not signals._removed]
        for signals in ending:
            signals._notices.settled(max(0.0, until - time.monotonic()))
        jobs = [("the job", _finishing(signals._finish)) for signals in ending if signals._finish is not None]
        if jobs:
            deadline.close_all(jobs, until - time.monotonic())
        self._ending = True
        actions.write(signum, None)  # if that is impossible, our handler does it on the main thread
        os.kill(os.getpid(), signum)


def _finishing(finish: Callable[[float], object]) -> Callable[[float], object]:
    return lambda milliseconds: finish(milliseconds / 1000)


def _receive(reader: socket.socket) -> bytes | None:
    """Return the bytes that this process wrote, without those of other processes; None at the end."""
    if not hasattr(socket, "SCM_CREDENTIALS"):
        return reader.recv(256) or None
    data, ancillary, _, _ = reader.recvmsg(256, socket.CMSG_SPACE(struct.calcsize("3i")))
    if not data:
        return None
    for _, kind, credentials in ancillary:
        if kind == socket.SCM_CREDENTIALS and struct.unpack("3i", credentials)[0] != os.getpid():
            return b""
    return data


_installed: weakref.WeakSet[Signals] = weakref.WeakSet()
_masks = threading.local()


def _before_fork() -> None:
    """Block the signals: Python drops those that reach a child before it is ready, and the child would run on."""
    if _installed:
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    before = _masks.__dict__.pop("before", None)
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _after_fork_in_child() -> None:
    """Restore the previous handlers in the child, and detach it from its parent's wake-up socket."""
    for signals in tuple(_installed):
        try:
            signals._step_aside()
        except Exception as error:
            report_once("signals of a forked child", "restoring signal handlers after a fork failed: %s", error)
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
