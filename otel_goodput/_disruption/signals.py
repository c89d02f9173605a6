"""Turn SIGTERM and SIGINT into notices, and leave the handlers of others in place.

Where the signal's action is the default one, which ends the process, a handler of ours finishes the recorders first. It
runs on the main thread and keeps it: training that went on would run into its own workers' deaths, and into spans that
have ended. Python's handlers of other signals, such as that of a data loader for the death of its workers, are out of
force from then on. Last, it restores the default action and raises the signal again. Two things make it wait: a
callback of the user's runs while training goes on, and a main thread in native code (waiting for a dead peer, say) does
not come to run a Python handler. So a thread of ours does the work; the interpreter's wake-up descriptor notifies it of
every signal at once.

A Python handler of other code is neither replaced nor called: the wake-up descriptor reports the signal. Native
code's handlers (JAX's preemption service is one) are hidden from the interpreter. Ours is put in front of them, and
passes the signal on.

Longer than other files: handlers, wake-up descriptor and thread are put in place and taken back in one order.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, Final, NamedTuple

from otel_goodput._disruption.notices import Notices
from otel_goodput._runtime import deadline
from otel_goodput._runtime.guard import contain, contained, report_once, started
from otel_goodput._runtime.host import Clock
from otel_goodput.semconv import GOODPUT_NOTICE_SOURCE, Reason

try:
    import ctypes
except ImportError:  # Python may be built without it
    ctypes = None  # type: ignore[assignment]

DEFAULT: Final = 0  # SIG_DFL
IGNORE: Final = 1  # SIG_IGN
_SIGINFO: Final = 0x40 if sys.platform == "darwin" else 4  # SA_SIGINFO: the handler takes three arguments


class Action(NamedTuple):
    """One action: address of the handler, flags, and the whole ``struct sigaction``."""

    handler: int
    flags: int
    raw: bytes


if ctypes is not None:

    class _Sigaction(ctypes.Structure):
        if sys.platform == "darwin":
            _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_uint32), ("flags", ctypes.c_int)]
        else:
            _fields_ = [
                ("handler", ctypes.c_void_p),
                ("mask", ctypes.c_ulong * (1024 // 8 // ctypes.sizeof(ctypes.c_ulong))),
                ("flags", ctypes.c_int),
                ("restorer", ctypes.c_void_p),
            ]

    _IGNORING = Action(IGNORE, 0, bytes(_Sigaction(handler=IGNORE)))

_SIGACTION: Any = None  # the C library's
if ctypes is not None and sys.platform != "win32":
    with suppress(OSError, AttributeError):
        _SIGACTION = ctypes.CDLL(None).sigaction


def read_action(signum: int) -> Action | None:
    if _SIGACTION is None:
        return None
    action = _Sigaction()
    if _SIGACTION(ctypes.c_int(signum), None, ctypes.byref(action)) != 0:
        return None
    return Action(action.handler or DEFAULT, action.flags, bytes(action))


def write_action(signum: int, action: Action | None) -> bool:
    """Put `action` in force, or the default one if it is None. From any thread. Return False if that is impossible."""
    if _SIGACTION is None:
        return False
    wanted = _Sigaction() if action is None else _Sigaction.from_buffer_copy(action.raw)
    return bool(_SIGACTION(ctypes.c_int(signum), ctypes.byref(wanted), None) == 0)


def call_action(signum: int, action: Action) -> None:
    """Call the handler of `action` on this thread, as the signal would."""
    if action.flags & _SIGINFO:
        # The sender is unknown: siginfo has the signal's number and otherwise zeros, in a buffer of ample size.
        siginfo, context = ctypes.create_string_buffer(256), ctypes.create_string_buffer(8192)
        ctypes.memmove(siginfo, ctypes.byref(ctypes.c_int(signum)), ctypes.sizeof(ctypes.c_int))
        handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(action.handler)
        handler(signum, ctypes.addressof(siginfo), ctypes.addressof(context))
    else:
        ctypes.CFUNCTYPE(None, ctypes.c_int)(action.handler)(signum)


SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# Their default action does nothing. To ignore SIGCHLD does: the kernel then reaps children in our place.
IDLE: Final = {getattr(signal, name, None) for name in ("SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH")}
SYNC: Final = 0  # no signal has this number
RAN: Final = 128  # added to a signal's number to say that its Python handler ran
RECORDING_S: Final = 0.5  # s that a native handler waits at most until the notice is in the journal
KEPT_S: Final = 1.0  # s that the main thread is kept beyond the grace period
ARRIVING_S: Final = 0.3  # s for the main thread to come to its handler, before its recorders end without it
ECHO_S: Final = 0.5  # s within which a native handler that passes a signal on makes it come again

Handler = Callable[[int, "FrameType | None"], Any]


class _Link:
    """What handled one signal before. With neither `python` nor `native`, it was the default action.

    `theirs`: it is left alone, and only watched.
    """

    __slots__ = ("called", "due", "handler_due", "native", "ours", "python", "theirs")

    def __init__(self, python: Handler | None, native: Action | None, *, theirs: bool = False) -> None:
        self.theirs = theirs
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
    """Handlers of SIGTERM and SIGINT that announce the signals to `notices` and pass them on.

    From a signal whose default action ends the process to that end there are `grace_s` seconds at most. Before it,
    `finish` is called with the seconds left, after the notice was recorded and flushed.
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
        self._finishing = False  # the main thread must not go on
        self._kept = threading.Event()  # the main thread is kept
        self._kept_until = 0.0  # monotonic s
        self._ended_by: int = signal.SIGTERM
        self._thread: threading.Thread | None = None
        self._caught_up = threading.Event()
        self._wakeup: tuple[socket.socket, socket.socket] | None = None  # read end, write end

    def install(self) -> bool:
        """Install the handlers; return False if none could be, for example off the main thread. Call once.

        A signal that is ignored stays ignored. Another recorder of this process may have installed them already.
        """
        if threading.current_thread() is not threading.main_thread() or not hasattr(socket, "socketpair"):
            return False
        others = any(each._links and not each._removed for each in _installed)
        _installed.add(self)
        if not others:
            self._take()
            if not self._links:
                self.remove()
        return others or bool(self._links)

    def _take(self) -> None:
        """Be the one of this process's recorders that handles the signals."""
        try:
            self._listen()
            for signum in SIGNALS:
                self._install(signum)
        except Exception as error:  # ValueError in a subinterpreter
            contain("installing signal handlers", error)

    def renew(self) -> None:
        """Put our handlers back where native code has silently replaced them since, and pass the signals on to it.

        A signal that Python code has taken, or that is ignored now, is left alone. Cheap; from any thread.
        """
        if self._removed or self._ending or os.getpid() != self._pid:
            return
        for signum, link in self._links.items():
            now = read_action(signum)
            if now is None or link.theirs or link.ours is None or now.handler in (link.ours.handler, IGNORE):
                continue
            if signal.getsignal(signum) == self._handle:
                if now.handler == DEFAULT:
                    link.python = link.native = None
                else:
                    link.native = now
                write_action(signum, link.ours)

    def remove(self) -> None:
        """Stop announcing, and restore the previous handlers wherever ours are still in force.

        Off the main thread, Python handlers cannot be restored: there ours stay and only pass signals on.
        """
        self._catch_up()
        self._removed = True
        _installed.discard(self)
        if threading.current_thread() is threading.main_thread():
            took = self._wakeup is not None
            self._step_aside()
            for other in tuple(_installed):
                if took and not other._removed and os.getpid() == other._pid:
                    other._take()
                    return
            return
        for signum, link in self._links.items():
            if not link.theirs and self._in_force(signum, link) and (link.native is not None or link.python is None):
                write_action(signum, link.native)

    def _catch_up(self) -> None:
        """Wait until our thread has announced the signals that have arrived, for a moment at most."""
        ears, self._caught_up = self._wakeup, threading.Event()
        if ears is None or self._removed or os.getpid() != self._pid or threading.current_thread() is self._thread:
            return
        with suppress(OSError):
            ears[1].send(bytes([SYNC]))
            self._caught_up.wait(RECORDING_S)

    # --- taking and giving back ---------------------------------------------------------------------------------------

    def _install(self, signum: int) -> None:
        before, shown = read_action(signum), signal.getsignal(signum)
        if shown is None and before is None:
            return  # a native handler that could not be called
        if (shown == signal.SIG_IGN) if before is None else (before.handler == IGNORE):
            return
        python = shown if callable(shown) else None
        default = python is signal.default_int_handler
        if python is not None and not default and (before is None or before.handler == _trampoline()):
            self._links[signum] = _Link(python, None, theirs=True)
            return
        # Enough for a signal that arrives before the lines below have run.
        link = self._links[signum] = _Link(python, None)
        signal.signal(signum, self._handle)
        link.ours = ours = read_action(signum)
        if before is not None and ours is not None:
            if before.handler == DEFAULT:
                link.python = None  # even if Python still shows a handler
            elif before.handler != ours.handler:
                link.native = before

    def _in_force(self, signum: int, link: _Link) -> bool:
        now = read_action(signum)
        native_too = now is None or link.ours is None or now.handler == link.ours.handler
        return native_too and signal.getsignal(signum) == self._handle

    def _step_aside(self) -> None:
        """Restore all handlers and end our thread; on the main thread."""
        for signum, link in self._links.items():
            if not link.theirs and self._in_force(signum, link):
                signal.signal(signum, link.python or signal.SIG_DFL)
                if link.native is not None:
                    write_action(signum, link.native)
        _installed.discard(self)
        if self._wakeup is None:
            return
        reader, writer = self._wakeup
        with suppress(OSError, ValueError):
            fd = signal.set_wakeup_fd(-1)
            if fd not in (-1, writer.fileno()):
                signal.set_wakeup_fd(fd)
        self._wakeup = None
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
                try:
                    self._announce(signum)
                    if self._wakeup is not None:
                        self._wakeup[1].send(bytes([signum + RAN]))
                finally:  # whatever another signal's handler has raised in there
                    holds = self._finishing or (link.python is None and link.native is None and self._holds())
                    if holds and threading.get_ident() not in deadline.closing:
                        self._keep()
            elif link.native is not None and not passed_on:
                link.called = time.monotonic()
                call_action(signum, link.native)
            elif python is None:
                signal.signal(signum, signal.SIG_DFL)
                os.kill(os.getpid(), signum)
        except Exception:
            contained["signal handler"] += 1  # no logging: the interrupted code may hold its locks
        finally:
            if python is not None:
                python(signum, frame)

    def _holds(self) -> bool:
        """Whether the main thread is kept from now on: the signal ends the process, and there is no callback."""
        return os.getpid() != 1 and not any(each._notices.called_back for each in _installed if not each._removed)

    def _keep(self) -> None:
        """Keep the main thread until the recorders have finished; our thread then ends the process.

        A handler of another signal that is due already may raise anything here, which is of no interest any more.
        """
        while not self._ending:
            try:
                self._silence_others()
                if not self._kept.is_set():  # else another signal meanwhile
                    self._kept_until = time.monotonic() + self._grace_s + KEPT_S
                    self._kept.set()
                time.sleep(max(0.0, self._kept_until - time.monotonic()))
                self._ending = True
            except BaseException:
                continue
        signal.signal(self._ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), self._ended_by)
        time.sleep(KEPT_S)  # the signal is delivered before this has ended

    def _silence_others(self) -> None:
        """Take Python's handlers of all other signals out of force: the main thread, on which they run, has ended."""
        ours = next((link.ours.handler for link in self._links.values() if link.ours is not None), None)
        for signum in signal.valid_signals() - {*SIGNALS}:
            action = read_action(signum)
            if action is not None and action.handler == ours:
                write_action(signum, None if signum in IDLE else _IGNORING)

    def _announce(self, signum: int) -> None:
        moment = self._clock()
        for each in {self, *_installed}:
            if not each._removed and os.getpid() == each._pid:
                source = signal.Signals(signum).name
                each._notices.announce(Reason.SIGNAL, moment, **{GOODPUT_NOTICE_SOURCE: source})

    # --- in our thread ------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Start a thread, and have the interpreter notify it of every signal at once."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        self._wakeup = (reader, writer)
        self._thread = threading.Thread(target=self._receive_all, args=(reader,), name="goodput-signals", daemon=True)
        if not started(self._thread, "signals are noticed only when the main thread handles them"):
            self._wakeup = None
            reader.close()
            writer.close()
            return
        if not hasattr(socket, "SO_PASSCRED"):
            return  # without the sender's process, signals of forked children would be taken for ours
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        taken = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if taken != -1:
            signal.set_wakeup_fd(taken)

    def _receive_all(self, reader: socket.socket) -> None:
        with reader:
            for received in iter(partial(_receive, reader), None):
                for word in received:
                    try:
                        self._noticed(word, reader)
                    except Exception as error:
                        report_once("signal", "passing on a signal failed: %s: %s", type(error).__name__, error)

    def _noticed(self, word: int, reader: socket.socket) -> None:
        if word == SYNC:
            self._caught_up.set()
            return
        ran, signum = divmod(word, RAN)
        link = self._links.get(signum)
        if link is None:
            return
        if ran:
            known, link.handler_due = link.handler_due, False
            if known:
                return
        elif link.theirs:
            if signal.getsignal(signum) == link.python:
                self._announce(signum)
            return
        elif signal.getsignal(signum) != self._handle:
            return  # someone else handles it now; if they pass it on, our handler notifies us
        else:
            link.handler_due = True
        if link.echoes():
            return
        self._announce(signum)
        if link.native is not None:
            self._notices.wait_recorded(RECORDING_S)  # some native handlers end the process
            if not self._passed_on(signum, link, link.native, reader):
                return
            if link.python is not None and link.ours is not None:
                link.due = True
                call_action(signum, link.ours)
        if link.python is None:
            self._end(signum)

    def _passed_on(self, signum: int, link: _Link, native: Action, reader: socket.socket) -> bool:
        """Call the native handler; return whether it raised the signal again, as it does to call its predecessor."""
        link.called = time.monotonic()
        call_action(signum, native)
        link.called = time.monotonic()
        reader.setblocking(False)
        try:
            received = _receive(reader)
        except BlockingIOError:
            return False
        finally:
            reader.setblocking(True)
        for word in received or b"":
            if word != signum:
                self._noticed(word, reader)
        return signum in (received or b"")

    def _end(self, signum: int) -> None:
        """Finish the recorders within the grace period, then carry out the default action."""
        if self._ending or self._finishing or os.getpid() == 1:
            return  # the default action spares process 1 of a container: it goes on, and so does its recording
        self._ended_by = signum
        until = time.monotonic() + self._grace_s
        if self._holds():
            self._silence_others()
        # Other recorders of this process end with it, and were notified of the signal before us or together with us.
        ending = [signals for signals in {self, *_installed} if not signals._removed]
        for signals in ending:
            signals._notices.settled(max(0.0, until - time.monotonic()))
        self._finishing = True
        self._silence_others()
        # Training went on while a callback ran; what another handler raised has led the main thread past ours; or
        # the main thread is in native code.
        if not self._kept.is_set():
            main = threading.main_thread().ident
            if main is not None and hasattr(signal, "pthread_kill"):
                signal.pthread_kill(main, signum)
                self._kept.wait(ARRIVING_S)
        jobs = [partial(_finish, signals._finish) for signals in ending if signals._finish is not None]
        if jobs:
            deadline.close_all([("the job", job) for job in jobs], until - time.monotonic())
        self._ending = True
        write_action(signum, None)  # if that is impossible, our handler does it on the main thread
        os.kill(os.getpid(), signum)


def _trampoline() -> int | None:
    """Return the address by which the interpreter handles all signals that have a Python handler; on the main thread.

    SIGURG, which is rarely used, is given one for a moment if it has none.
    """
    before = signal.getsignal(signal.SIGURG)
    if not callable(before):
        signal.signal(signal.SIGURG, lambda *_: None)
    action = read_action(signal.SIGURG)
    if not callable(before):
        signal.signal(signal.SIGURG, signal.SIG_DFL if before is None else before)
    return None if action is None else action.handler


def _finish(finish: Callable[[float], object], milliseconds: int) -> None:
    finish(milliseconds / 1000)


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


_installed: set[Signals] = set()
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
