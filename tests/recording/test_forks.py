"""A forked child asks its parent's account: it is answered at once, whatever the parent's threads were doing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun

# One thread asks for totals all the time, which holds the account's lock; the main thread trains and forks.
PROGRAM = """
import json, os, select, signal, sys, threading
import otel_goodput as goodput
goodput.configure("forks", run_id="run", directory=sys.argv[1] or os.devnull, exporters="none", integrations="none")
stop = threading.Event()

def ask():
    while not stop.is_set():
        goodput.totals()

asking = threading.Thread(target=ask)
answers = []
with goodput.job():
    for number in range(200):
        with goodput.step(number):
            pass
    goodput.totals()
    asking.start()
    for number in range(200, 600):
        with goodput.step(number):
            pass
        if number % 20 == 0:
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                signal.alarm(30)  # whoever hangs dies of it
                report = goodput.report().to_json()
                os.write(write, json.dumps([goodput.totals().kept, report["elapsed_s"], report["goodput"]]).encode())
                goodput.flush()
                goodput.shutdown()
                os._exit(0)
            os.close(write)
            with open(read, "rb") as output:
                answer = json.loads(output.read() or "[0]")
            answers.append([number, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), answer])
    stop.set()
    asking.join()
print(json.dumps(answers))
"""


@pytest.mark.parametrize("disk", ["a disk", "no disk"])
def test_a_child_is_answered_whoever_held_the_account(disk: str, tmp_path: Path) -> None:
    directory = str(tmp_path) if disk == "a disk" else ""
    done = warm.run(
        [sys.executable, "-c", PROGRAM, directory], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) == 20
    for number, status, answer in answers:
        assert status == 0, "it hung"
        if directory:
            kept, elapsed, _ = answer
            assert 200 <= kept <= number + 1 and elapsed > 0


ORPHANED = """
import os, sys, time
import otel_goodput as goodput
goodput.configure("forks", run_id="run", directory=sys.argv[1], exporters="none")
with goodput.job(), goodput.step(0):
    if os.fork() == 0:
        print("forked", flush=True)
        sys.stdin.read()  # a loader's worker that does not notice that its parent is gone
        os._exit(0)
    time.sleep(60)
"""


def test_a_child_does_not_keep_a_dead_parent_alive(tmp_path: Path) -> None:
    with warm.Process(
        [sys.executable, "-c", ORPHANED, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        assert parent.stdout.readline() == "forked\n"
        run = RunDirectory(tmp_path / "run")
        assert run.alive(0, 0)
        parent.send_signal(signal.SIGKILL)
        parent.wait(60)
        assert not run.alive(0, 0), "the child holds its parent's lock"
        parent.stdin.close()


GOES_ON = """
import os, pathlib, signal, sys
import otel_goodput as goodput
from otel_goodput._live import keeper
keeper.Keeper.tick = lambda keeper: None  # only the loop writes records
goodput.configure("forks", run_id="run", directory=sys.argv[1], exporters="none", integrations="none")

def journal():
    (segment,) = pathlib.Path(sys.argv[1]).glob("run/journal/*-000000.segment")
    return segment.read_bytes()[64:]  # without the heartbeat

def batches():
    for number in range(400):
        if number in (150, 250):
            before = journal()
            child = os.fork()
            if child:
                assert os.waitpid(child, 0)[1] == 0 and journal() == before
            else:
                signal.alarm(30)
                goodput.totals()
        yield number

parent = os.getpid()
with goodput.job():
    for step, _ in goodput.steps(batches()):
        pass
    if os.getpid() != parent:
        os._exit(0)
print(goodput.totals().kept)
"""


def test_a_child_that_goes_on_with_the_loop_harms_no_record_of_its_parent(tmp_path: Path) -> None:
    """It was forked in a data load, and is in the loop before that notices."""
    done = warm.run(
        [sys.executable, "-c", GOES_ON, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "400\n"), done.stderr
    report = RecordedRun(RunDirectory(tmp_path / "run")).report().to_json()
    assert report["steps"] == {"executed": 400, "kept": 400, "lost": 0} and not report["damage"]


HELD = """
import os, signal, sys, threading
from otel_goodput import api
import otel_goodput as goodput
goodput.configure("forks", directory=sys.argv[1], exporters="none", integrations="none")
with goodput.job():
    for step, _ in goodput.steps(range(10)):
        pass
    journal = api._recorder._account.journal
    held, go = threading.Event(), threading.Event()

    def hold():
        with journal._changing:  # as while a segment is changed
            held.set()
            go.wait()

    threading.Thread(target=hold).start()
    held.wait()
    child = os.fork()
    if not child:
        signal.alarm(30)
        for _ in range(2):  # the parent goes on meanwhile
            print(goodput.totals().executed, flush=True)
            journal.roll(journal.current)
        os._exit(0)
    go.set()
    assert os.waitpid(child, 0)[1] == 0
    for step, _ in goodput.steps(range(10)):
        pass
print(goodput.totals().executed)
"""


def test_a_child_waits_for_no_thread_of_its_parent_that_changed_the_journal(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HELD, str(tmp_path)]
    done = warm.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "10\n10\n20\n"), done.stderr
