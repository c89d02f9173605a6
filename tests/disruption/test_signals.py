"""Real signals to real processes: what is announced, who still gets them, and how the process ends.

Longer than other files: it goes through the signals, and who else may handle them.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from waits import until

from otel_goodput._disruption.notices import Notices
from otel_goodput._disruption.signals import Signals

from .processes import Program, signalled

NOTICE = "told signal SIGTERM"
linux = pytest.mark.skipif(sys.platform != "linux", reason="the sender of a wake-up is known on Linux only")


# --- the default action ----------------------------------------------------------------------------------------------


def test_sigterm_still_kills_after_notice_and_flush() -> None:
    ended = signalled('take(); say("ready"); rest()')
    assert ended.status == -signal.SIGTERM
    assert ended.lines == ["ready", NOTICE, "flushed"] and not ended.errors


def test_a_flush_that_hangs_holds_up_the_end_for_the_grace_period_only() -> None:
    begin = time.monotonic()
    ended = signalled('take(flush=lambda _: time.sleep(60), grace=0.2); say("ready"); rest()')
    assert ended.status == -signal.SIGTERM and NOTICE in ended.lines
    assert time.monotonic() - begin < 20


def test_what_finishes_the_job_comes_last() -> None:
    ended = signalled(
        """
take(finish=lambda seconds: say("finished", 0 < seconds <= 10))
say("ready"); rest()
"""
    )
    assert ended.status == -signal.SIGTERM
    assert ended.lines == ["ready", NOTICE, "flushed", "finished True"]


def test_a_hanging_finish_holds_up_the_end_for_the_grace_period_only() -> None:
    ended = signalled('take(finish=lambda _: time.sleep(60), grace=0.3); say("ready"); rest()')
    assert ended.status == -signal.SIGTERM


def test_removing_the_handlers_may_be_what_finishes_the_job() -> None:
    """As a recorder's shutdown does, in a thread of ours."""
    ended = signalled(
        """
def finish(seconds):
    signals.remove()
    notices.close()
    say("finished")
notices, signals = take(finish=finish)
say("ready"); rest()
"""
    )
    assert ended.status == -signal.SIGTERM and ended.lines[-1] == "finished"


@linux
def test_a_main_thread_stuck_in_native_code_does_not_keep_the_process_alive() -> None:
    """As in a collective whose peer is gone: Python's handler never runs."""
    ended = signalled(
        """
take()
mutex = ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)
say("ready")
libc.pthread_mutex_lock(mutex)
"""
    )
    assert ended.status == -signal.SIGTERM
    assert ended.lines == ["ready", NOTICE, "flushed"]


def test_a_callback_saves_before_the_end() -> None:
    ended = signalled(
        """
notices, _ = take()
def save():
    say("saving")
    time.sleep(0.2)
    say("saved in", threading.current_thread() is not threading.main_thread())
notices.on_preemption(save)
say("ready"); rest()
"""
    )
    assert ended.status == -signal.SIGTERM
    assert ended.lines.index("saving") < ended.lines.index("saved in True")


@pytest.mark.parametrize("error", ["ValueError('disk on fire')", "SystemExit(3)"])
def test_a_raising_callback_is_one_warning(error: str) -> None:
    ended = signalled(
        f"""
notices, _ = take()
@notices.on_preemption
def save():
    raise {error}
notices.on_preemption(lambda: say("the next one"))
say("ready"); rest()
"""
    )
    assert ended.status == -signal.SIGTERM and "the next one" in ended.lines
    assert ended.errors.count("the preemption callback save failed; training goes on") == 1
    assert error.partition("(")[0] in ended.errors


def test_a_second_signal_is_recorded_once() -> None:
    program = Program(
        """
calls = []
def mine(*_):
    calls.append(1)
    say("mine")
signal.signal(signal.SIGTERM, mine)
notices, signals = take()
say("ready"); until(lambda: len(calls) == 3)
signals.remove()
assert notices.settled(10)
"""
    )
    program.wait_for("ready")
    for _ in range(3):
        program.send(signal.SIGTERM)
        program.wait_for("mine")
    ended = program.end()
    assert ended.status == 0 and ended.lines.count(NOTICE) == 1


def test_training_does_not_go_on_while_the_recorders_finish() -> None:
    """What its workers' deaths raise in it, and what it would do with spans that have ended, comes to nothing."""
    ended = signalled(
        """
signal.signal(signal.SIGCHLD, lambda *_: (_ for _ in ()).throw(RuntimeError("a worker was killed")))
def finish(seconds):
    ended.append(1)
    os.kill(os.getpid(), signal.SIGCHLD)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGTERM)  # a launcher says it twice
    time.sleep(0.3)
ended = []
_, signals = take(finish=finish)
say("ready")
while True:
    time.sleep(0.001)
    if ended: say("training")
"""
    )
    assert ended.status == -signal.SIGTERM and not ended.errors
    assert ended.lines == ["ready", NOTICE, "flushed"]


def test_training_does_not_go_on_although_another_handler_raises_inside_of_ours() -> None:
    ended = signalled(
        """
signal.signal(signal.SIGCHLD, lambda *_: (_ for _ in ()).throw(RuntimeError("a worker was killed")))
def interrupted_clock():
    if threading.current_thread() is threading.main_thread():
        os.kill(os.getpid(), signal.SIGCHLD)
    return time.time_ns()
def finish(seconds):
    ended.append(1)
    time.sleep(0.3)
ended = []
notices = Notices(lambda *_: say("told"), lambda _: None)
assert Signals(notices, interrupted_clock, finish=finish).install()
say("ready")
while True:
    time.sleep(0.001)
    if ended: say("training")
"""
    )
    assert ended.status == -signal.SIGTERM and not ended.errors
    assert ended.lines == ["ready", "told"]


def test_training_goes_on_while_a_callback_waits_for_it_and_not_beyond() -> None:
    ended = signalled(
        """
wanted, saved, ended = threading.Event(), threading.Event(), []
def finish(seconds):
    ended.append(1)
    time.sleep(0.3)
notices, signals = take(finish=finish)
@notices.on_preemption
def save():
    wanted.set()
    saved.wait(10)
say("ready")
while True:
    time.sleep(0.001)
    if wanted.is_set() and not saved.is_set():
        say("saved by the loop"); saved.set()
    if ended: say("training")
"""
    )
    assert ended.status == -signal.SIGTERM and not ended.errors
    assert ended.lines.count("saved by the loop") == 1 and "training" not in ended.lines


# --- Python handlers -------------------------------------------------------------------------------------------------


def test_the_own_handler_is_called_and_decides() -> None:
    ended = signalled(
        """
def mine(signum, frame):
    say("mine", signum, frame is not None, threading.current_thread() is threading.main_thread())
    sys.exit(7)
signal.signal(signal.SIGTERM, mine)
notices, signals = take()
atexit.register(lambda: (signals.remove(), notices.close(10)))
say("ready"); rest()
"""
    )
    assert ended.status == 7
    assert ended.lines.count("mine 15 True True") == 1 and NOTICE in ended.lines


def test_the_own_handler_stays_in_place() -> None:
    ended = signalled(
        """
def mine(*_): say("mine"); sys.exit(3)
signal.signal(signal.SIGTERM, mine)
take()
assert signal.getsignal(signal.SIGTERM) is mine
if not os.fork():
    os._exit(signal.getsignal(signal.SIGTERM) is not mine)
assert os.wait()[1] == 0
say("ready"); rest()
"""
    )
    assert ended.status == 3 and "mine" in ended.lines


def test_training_goes_on_if_the_own_handler_lets_it() -> None:
    ended = signalled(
        """
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
notices, signals = take()
say("ready"); until(lambda: stop)
signals.remove()  # what has arrived is announced before
assert notices.settled(10)
say(len(stop))
"""
    )
    assert ended.status == 0 and not ended.errors
    assert ended.lines == ["ready", NOTICE, "flushed", "1"]


def test_what_the_own_handler_raises_reaches_training() -> None:
    ended = signalled(
        """
def mine(*_): raise RuntimeError("stop here")
signal.signal(signal.SIGTERM, mine)
notices, signals = take()
try:
    say("ready"); rest()
except RuntimeError as error:
    signals.remove()
    notices.wait_recorded(10)
    say(error)
"""
    )
    assert ended.status == 0 and NOTICE in ended.lines and "stop here" in ended.lines


def test_sigint_is_a_keyboard_interrupt_at_once() -> None:
    ended = signalled(
        """
notices, _ = take(flush=lambda _: time.sleep(60))
try:
    say("ready"); begin = time.monotonic(); time.sleep(60)
except KeyboardInterrupt:
    notices.wait_recorded(10)
    say("interrupted")
""",
        signal.SIGINT,
    )
    assert ended.status == 0
    assert ended.lines == ["ready", "told signal SIGINT", "interrupted"]


def test_an_uncaught_keyboard_interrupt_ends_as_ever() -> None:
    ended = signalled('take(); say("ready"); rest()', signal.SIGINT)
    assert ended.status == -signal.SIGINT and "KeyboardInterrupt" in ended.errors


def test_a_handler_installed_later_that_chains_to_ours() -> None:
    ended = signalled(
        """
notices, signals = take()
before = signal.getsignal(signal.SIGTERM)
def later(signum, frame):
    say("later")
    before(signum, frame)
signal.signal(signal.SIGTERM, later)
signals.renew()
say("ready"); rest()
"""
    )
    assert ended.status == -signal.SIGTERM
    assert ended.lines == ["ready", "later", NOTICE, "flushed"]


def test_a_handler_installed_later_that_does_not_chain_has_the_signal_to_itself() -> None:
    ended = signalled(
        """
notices, signals = take()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
signals.renew()
say("ready"); rest()
"""
    )
    assert ended.status == 5 and ended.lines == ["ready"]


# --- ignored ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["", 'trap "" TERM INT'])
def test_an_ignored_signal_stays_ignored(shell: str) -> None:
    program = Program(
        f"""
if not {shell!r}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
signals = Signals(Notices(lambda *_: say("told"), lambda _: None), time.time_ns)
assert not signals.install()
signals.renew()
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
say("ready"); rest()
""",
        shell=shell,
    )
    program.wait_for("ready")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        program.send(number)
    ended = program.end()
    assert ended.status == 0 and ended.lines == ["ready"]


# --- handlers of native code -----------------------------------------------------------------------------------------

# close(2) as the handler: SIGTERM closes descriptor 15. Real native code, and one can see that it ran.
NATIVE = """
os.dup2(1, 15)
def install_native(): native(signal.SIGTERM, libc.close)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_native_handler_is_called_too(when: str) -> None:
    ended = signalled(
        NATIVE
        + f"""
if {when!r} == "before":
    install_native()
notices, signals = take()
if {when!r} == "after":
    install_native()
    signals.renew()
say("ready"); until(lambda: not is_open(15))
assert notices.settled(10)
signals.remove()
now = actions.read_action(signal.SIGTERM)
say(now.handler == ctypes.cast(libc.close, ctypes.c_void_p).value)
"""
    )
    assert ended.status == 0 and not ended.errors
    assert ended.lines == ["ready", NOTICE, "flushed", "True"]


def test_a_native_handler_that_ends_the_process_comes_after_the_notice() -> None:
    ended = signalled('native(signal.SIGTERM, libc._exit); take(); say("ready"); rest()')
    assert ended.status == signal.SIGTERM  # _exit(15), no signal
    assert ended.lines[:2] == ["ready", NOTICE]


def test_a_native_handler_displaces_the_python_handler_before_as_ever() -> None:
    ended = signalled(
        NATIVE
        + """
signal.signal(signal.SIGTERM, lambda *_: say("displaced"))
install_native()
take()
say("ready"); until(lambda: not is_open(15))
"""
    )
    assert ended.status == 0 and "displaced" not in ended.lines and NOTICE in ended.lines


@linux
def test_a_native_handler_is_called_while_the_main_thread_is_stuck() -> None:
    ended = signalled(
        NATIVE
        + """
install_native()
take()
def leave():
    until(lambda: not is_open(15))
    os._exit(9)
threading.Thread(target=leave, daemon=True).start()
mutex = ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)
say("ready")
libc.pthread_mutex_lock(mutex)
"""
    )
    assert ended.status == 9


def test_a_native_handler_with_three_arguments() -> None:
    ended = signalled(
        """
calls = []
@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_void_p)
def handler(signum, siginfo, context):
    calls.append((signum, siginfo[0], context is not None))
wanted = actions._Sigaction(handler=ctypes.cast(handler, ctypes.c_void_p).value, flags=actions._SIGINFO)
libc.sigaction(signal.SIGTERM, ctypes.byref(wanted), None)
take()
say("ready"); until(lambda: calls)
say(calls)
"""
    )
    # The flush goes on in another thread, and may end behind it.
    assert ended.status == 0 and "[(15, 15, True)]" in ended.lines


@linux
def test_a_native_handler_that_passes_the_signal_on_is_no_circle() -> None:
    """faulthandler's calls its predecessor, which is ours, whose predecessor is the default action."""
    ended = signalled(
        """
_, signals = take()
faulthandler.register(signal.SIGTERM, chain=True)
signals.renew()
say("ready"); rest()
"""
    )
    assert ended.status == -signal.SIGTERM
    assert ended.lines == ["ready", NOTICE, "flushed"]
    assert ended.errors.count("most recent call first") >= 1


@linux
def test_a_native_handler_passes_the_signal_on_to_the_own_handler() -> None:
    ended = signalled(
        """
calls = []
signal.signal(signal.SIGTERM, lambda *_: calls.append(1))
notices, signals = take()
faulthandler.register(signal.SIGTERM, chain=True)
signals.renew()
called = []
notices.on_preemption(lambda: called.append(1))  # the notice may come after the handler was called
say("ready"); until(lambda: calls and called)
assert notices.settled(10)
say(len(calls))
"""
    )
    assert ended.status == 0
    assert ended.lines == ["ready", NOTICE, "flushed", "1"]
    assert "most recent call first" in ended.errors


def test_native_code_that_restores_the_default_is_followed() -> None:
    """As JAX's service does when it is shut down."""
    ended = signalled(
        NATIVE
        + """
install_native()
_, signals = take()
actions.write_action(signal.SIGTERM, None)
signals.renew()
say("ready"); rest()
"""
    )
    assert ended.status == -signal.SIGTERM
    assert ended.lines == ["ready", NOTICE, "flushed"]


def test_native_code_that_ignores_the_signal_is_left_alone() -> None:
    ended = signalled(
        """
_, signals = take()
libc.signal.restype = ctypes.c_void_p
libc.signal(signal.SIGTERM, ctypes.c_void_p(1))
signals.renew()
assert actions.read_action(signal.SIGTERM).handler == actions.IGNORE
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
say("ready")
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGUSR1)
time.sleep(60)
"""
    )
    assert ended.lines == ["ready"] and ended.status in (0, -signal.SIGTERM)


# --- forks, other people's wake-ups, removal -------------------------------------------------------------------------


@pytest.mark.parametrize("hooks", [True, False])
def test_the_end_of_a_forked_child_is_not_that_of_the_job(hooks: bool) -> None:
    """A data loader's worker that is terminated: it dies at once, and its parent hears nothing."""
    program = Program(
        f"""
notices, signals = take()
if not {hooks}:
    from otel_goodput._disruption import signals as module
    module._installed.clear()  # as where a child runs none of Python's hooks
child = os.fork()
if not child:
    if not {hooks}: os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
    os._exit(1)
if {hooks}: os.kill(child, signal.SIGTERM)
_, status = os.waitpid(child, 0)
say("child", os.waitstatus_to_exitcode(status))
assert notices.settled(10)
say("ready"); rest()
""",
        strict=False,
    )
    program.wait_for("ready")
    assert program.lines == ["child -15", "ready"]
    program.send(signal.SIGTERM)
    ended = program.end()
    assert ended.status == -signal.SIGTERM and ended.lines[2:] == [NOTICE, "flushed"]


def test_a_forked_child_keeps_the_handlers_there_before() -> None:
    ended = signalled(
        """
signal.signal(signal.SIGTERM, lambda *_: os._exit(4))
take()
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
say("ready"); rest()
""",
        strict=False,
    )
    assert ended.lines[:2] == ["child 4", "ready"] and ended.status == 4


def test_someone_elses_wake_up_descriptor_stays_theirs() -> None:
    ended = signalled(
        """
import asyncio
async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stop.set)
    take()
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(stop.wait(), 20)
    say("ready")
    await asyncio.sleep(60)
asyncio.run(main())
"""
    )
    assert ended.status == -signal.SIGTERM
    assert ended.lines == ["ready", NOTICE, "flushed"]


def test_removed_handlers_leave_things_as_they_were() -> None:
    ended = signalled(
        """
before = [(signal.getsignal(each), actions.read_action(each).handler) for each in (signal.SIGTERM, signal.SIGINT)]
_, signals = take()
signals.remove()
after = [(signal.getsignal(each), actions.read_action(each).handler) for each in (signal.SIGTERM, signal.SIGINT)]
assert after == before
assert signal.set_wakeup_fd(-1) == -1
until(lambda: "goodput-signals" not in {thread.name for thread in threading.enumerate()})
signals.remove(); signals.renew()
say("ready"); rest()
"""
    )
    assert ended.status == -signal.SIGTERM and ended.lines == ["ready"] and not ended.errors


def test_removal_leaves_a_later_handler_in_place() -> None:
    ended = signalled(
        """
_, signals = take()
before = signal.getsignal(signal.SIGTERM)
def later(*arguments): say("later"); before(*arguments)
signal.signal(signal.SIGTERM, later)
signals.remove()
assert signal.getsignal(signal.SIGTERM) is later
say("ready"); rest()
"""
    )
    assert ended.status == -signal.SIGTERM and ended.lines == ["ready", "later"]


@pytest.mark.parametrize(("before", "status"), [("None", -15), ("lambda *_: sys.exit(6)", 6)])
def test_removal_off_the_main_thread(before: str, status: int) -> None:
    ended = signalled(
        f"""
before = {before}
if before: signal.signal(signal.SIGTERM, before)
_, signals = take()
thread = threading.Thread(target=signals.remove); thread.start(); thread.join()
say("ready"); rest()
"""
    )
    assert ended.status == status and ended.lines == ["ready"] and not ended.errors


def test_nothing_is_installed_off_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    notices = Notices(lambda *_: None, lambda _: None)
    installed = []
    thread = threading.Thread(target=lambda: installed.append(Signals(notices, time.time_ns).install()))
    thread.start()
    thread.join()
    notices.close()
    assert installed == [False] and signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("slow", [0, 1])
def test_two_recorders_in_one_process(slow: int) -> None:
    """Whichever of them carries out the signal's default action, it waits for the other."""
    ended = signalled(
        f"""
def flush(which):
    time.sleep(0.7 if which == {slow} else 0)
    say("flushed", which)
for which in range(2):
    take(lambda seconds, which=which: flush(which), finish=lambda seconds, which=which: say("finished", which))
say("ready"); rest()
"""
    )
    assert ended.status == -signal.SIGTERM and ended.lines.count(NOTICE) == 2
    assert {"flushed 0", "flushed 1", "finished 0", "finished 1"} <= set(ended.lines)


@pytest.mark.jax
@pytest.mark.parametrize("when", ["before", "after"])
def test_jax_still_learns_of_the_preemption(when: str) -> None:
    """JAX's preemption service sets its handler in native code, displacing Python's."""
    pytest.importorskip("jax")
    ended = signalled(
        f"""
import socket
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
from jax._src import distributed
held = socket.socket()  # the port is its own until it comes to it, which asks for it by number
held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
held.bind(("127.0.0.1", 0))
address = "127.0.0.1:%d" % held.getsockname()[1]
def initialize(): jax.distributed.initialize(address, 1, 0)
if {when!r} == "before":
    initialize()
notices, signals = take()
if {when!r} == "after":
    initialize()
    signals.renew()
sync = distributed.global_state.preemption_sync_manager
steps = iter(range(10**9))
assert not sync.reached_sync_point(next(steps))
say("ready"); until(lambda: sync.reached_sync_point(next(steps)))
assert notices.settled(10)
say("in sync")
sys.stdout.flush()
os._exit(0)
""",
        strict=False,
    )
    assert ended.status == 0, ended.errors
    assert ended.lines == ["ready", NOTICE, "flushed", "in sync"]


def test_this_process_is_left_as_it_was() -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    descriptors = len(list(Path("/dev/fd").iterdir()))
    notices = Notices(lambda *_: None, lambda _: None)
    for _ in range(5):
        signals = Signals(notices, time.time_ns)
        if signals.install():
            signals.remove()
    notices.close()
    assert {each: signal.getsignal(each) for each in before} == before
    until(lambda: len(list(Path("/dev/fd").iterdir())) <= descriptors)
