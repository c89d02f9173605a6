"""``otel-goodput run``: a program behaves as without it, and is recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm
from waits import PATIENCE_S

from .commands import environment, goodput

SAYS = "otel-goodput: recording run"

SELF = """
import __main__, pickle, sys
class Held:
    pass
print(__name__, __package__, getattr(__spec__, "name", None), __file__, sys.argv, sys.path[0])
print(sorted(name for name in globals() if name.startswith("__")), type(__loader__).__name__)
print(sys.modules["__main__"] is __main__, vars(__main__) is globals())
print(type(pickle.loads(pickle.dumps(Held()))) is Held)
"""
ERROR = """
class Wrong(Exception):
    pass
def inner():
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise Wrong("x") from error
if __name__ == "__main__":
    inner()
"""
HOOK = """
import sys, traceback
def show(kind, error, where):
    frames = [frame.name for frame in traceback.extract_tb(where)]
    print("shown", kind.__name__, frames, where is error.__traceback__ is sys.last_traceback)
sys.excepthook = show
raise RuntimeError("r")
"""
THREAD = """
import atexit, threading, time
atexit.register(print, "at exit")
main = threading.current_thread()
def go_on():
    main.join()
    print("in a thread")
threading.Thread(target=go_on).start()
print("done")
"""
SPAWN = """
import multiprocessing
class Number:
    def __init__(self, value):
        self.value = value
def double(number):
    return Number(2 * number.value)
if __name__ == "__main__":
    for way in ("fork", "spawn"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            print(way, [one.value for one in pool.map(double, [Number(1), Number(2)])])
"""
LOG = """
import gc, logging, warnings
logging.basicConfig(level=logging.INFO, format="%(message)s")
logging.info("logged")
print(gc.isenabled(), logging.getLogger().handlers[1:])
"""
SCRIPTS = {
    "self": SELF,
    "seven": "import sys; sys.exit(7)",
    "text": "import sys; sys.exit('failed: x')",
    "error": ERROR,
    "hook": HOOK,
    "syntax": "x = 1\ndef f(:\n",
    "thread": THREAD,
    "log": LOG,
    "leaves": "import os; print('out', flush=True); os._exit(9)",
    "interrupted": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)",
    "terminated": "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, text in SCRIPTS.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "package" / "inner").mkdir(parents=True)
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "inner" / "__init__.py").write_text("VALUE = 5")
    (folder / "package" / "module.py").write_text(f"from .inner import VALUE\n{SELF}\nprint(VALUE)")
    (folder / "whole").mkdir()
    (folder / "whole" / "__main__.py").write_text(SELF)
    return folder


def both(folder: Path, place: Path, *program: str, fresh: bool = False) -> list[tuple[int, str, str]]:
    """Status, output and errors of a program: without the command, and with it. What the command says is left out."""
    variables = environment(OTEL_GOODPUT_DIR=place, OTEL_GOODPUT_EXPORTERS="none")
    run: Any = subprocess.run if fresh else warm.run
    answers = []
    for command in ([], ["-m", "otel_goodput", "run"]):
        words = [sys.executable, *command, *program]
        done = run(words, capture_output=True, text=True, cwd=folder, env=variables, timeout=PATIENCE_S)
        errors = "".join(line for line in done.stderr.splitlines(keepends=True) if not line.startswith(SAYS))
        answers.append((done.returncode, done.stdout, errors))
    return answers


def reported(place: Path, *arguments: str) -> dict[str, Any]:
    answer = goodput("report", place, "--json", *arguments)
    assert answer.returncode == 0, answer.stderr
    report: dict[str, Any] = json.loads(answer.stdout)
    return report


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "self"])
def test_a_script_behaves_as_without(name: str, folder: Path, tmp_path: Path) -> None:
    without, with_it = both(folder, tmp_path, str(folder / f"{name}.py"), "--lr", "1", "--", "-m")
    assert with_it == without
    assert [path.name for path in tmp_path.iterdir()] == ([] if name == "syntax" else [name])


@pytest.mark.slow
@pytest.mark.parametrize("program", [("self.py", "-m"), ("-m", "package.module", "-x"), ("whole", "--name", "x")])
def test_a_program_of_any_kind_is_main(program: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    without, with_it = both(folder, tmp_path, *program, fresh=True)
    assert with_it == without


@pytest.mark.slow
def test_children_of_multiprocessing_know_the_program(folder: Path, tmp_path: Path) -> None:
    (folder / "spawn.py").write_text(SPAWN)
    without, with_it = both(folder, tmp_path, "spawn.py", fresh=True)
    assert with_it == without and "spawn [2, 4]" in with_it[1]
    assert [path.name for path in tmp_path.iterdir()] == ["spawn"]


def test_a_missing_program_records_nothing(tmp_path: Path) -> None:
    without, with_it = both(tmp_path, tmp_path / "runs", "no.py", fresh=True)
    assert with_it == without and with_it[0] == 2
    without, with_it = both(tmp_path, tmp_path / "runs", "-m", "none.such")
    assert with_it == without and with_it[0] == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "ending"),
    [("self", "ended"), ("seven", "failed"), ("error", "failed"), ("leaves", "died"), ("thread", "ended")],
)
def test_the_job_ends_as_the_program_does(name: str, ending: str, folder: Path, tmp_path: Path) -> None:
    variables = {"OTEL_GOODPUT_DIR": tmp_path, "OTEL_GOODPUT_EXPORTERS": "none"}
    goodput("run", f"{name}.py", cwd=folder, **variables)
    answer = goodput("runs", tmp_path, "--json")
    (run,) = json.loads(answer.stdout)["runs"]
    assert (run["run_id"], run["state"]) == (name, ending)


def test_it_says_once_what_it_records(folder: Path, tmp_path: Path) -> None:
    answer = goodput("run", "--name", "mine", "--directory", tmp_path, "--exporters", "none", "self.py", cwd=folder)
    assert answer.stderr == f"{SAYS} 'mine'; to see it: otel-goodput report {tmp_path}/mine\n"


def test_a_wrong_option_is_no_program(folder: Path, tmp_path: Path) -> None:
    answer = goodput("run", "--integrations", "nothing", "self.py", cwd=folder, OTEL_GOODPUT_DIR=tmp_path / "runs")
    assert answer.returncode == 2 and "integrations must be" in answer.stderr and answer.stdout == ""
    assert goodput("run").returncode == goodput("run", "--name", "x").returncode == 2
    assert not (tmp_path / "runs").exists()


OWN = """
import otel_goodput as goodput
recorder = goodput.configure("mine", exporters="none")
print("torch" in recorder.config.integrations)
with goodput.job():
    for step, batch in goodput.steps(range(5)):
        pass
print(goodput.totals().kept)
"""


def test_a_program_that_configures_itself_has_its_own_run(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    answer = goodput("run", "own.py", cwd=tmp_path)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "True\n5\n", "")
    assert [path.name for path in (tmp_path / "goodput").iterdir() if not path.name.startswith(".")] == ["mine"]


def test_a_job_of_the_program_begins_with_the_program(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import time\nimport otel_goodput as goodput\ntime.sleep(0.2)\n"
        "with goodput.job():\n    for step, batch in goodput.steps(range(5)):\n        pass\n"
    )
    answer = goodput("run", "--exporters", "none", "own.py", cwd=tmp_path)
    assert answer.returncode == 0 and "WARN" not in answer.stderr
    report = reported(tmp_path / "goodput")
    assert report["attempts"] == 1 and report["seconds"]["other"] > 0.2
