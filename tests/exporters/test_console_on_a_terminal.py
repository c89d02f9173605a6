"""The console's line on a real terminal: it changes nothing of the user's, and leaves bars and displays whole."""

from __future__ import annotations

import re

import pytest

from .screen import on_a_terminal

pytestmark = pytest.mark.timeout(120)

# Exports without a pause in a thread, while the program goes on.
EXPORTED = """
import sys, threading
from exporters.test_console import whole_run
from otel_goodput.exporters.console import ConsoleMetricExporter
exporter, figures = ConsoleMetricExporter(None, terminal=True), whole_run()
over, written = threading.Event(), threading.Event()
def export():
    while not over.is_set():
        exporter.export(figures)
        written.set()
thread = threading.Thread(target=export)
thread.start()
written.wait(30)
def end():
    for _ in range(2):
        written.clear()
        written.wait(30)
    over.set()
    thread.join()
    exporter.shutdown()
"""
OURS = "goodput 87.3 % · step 1240 · 3.1 s/step"


def theirs(code: str, **more: object) -> list[str]:
    """What the program has on the screen besides our lines, which must stand alone and whole."""
    screen, status = on_a_terminal(code, **more)  # type: ignore[arg-type]
    assert status == 0, screen.lines
    assert any(line.startswith(OURS) for line in screen.lines)
    others = [line for line in screen.lines if not line.startswith(OURS)]
    assert not [line for line in others if "goodput" in line]
    return others


def test_prints_and_logs_stand_alone() -> None:
    lines = theirs(
        "import logging\n" + EXPORTED + """
logger = logging.getLogger("theirs")
logger.addHandler(logging.StreamHandler())
for number in range(300):
    print("loss", number)
    logger.warning("logged %d", number)
end()
print("afterwards")
"""
    )  # fmt: skip
    assert lines == [*(text for number in range(300) for text in (f"loss {number}", f"logged {number}")), "afterwards"]


def test_nothing_of_the_users_is_changed() -> None:
    before = "import builtins, sys\nstreams = sys.stdout, sys.stderr, dict(vars(sys.stderr)), builtins.input\n"
    lines = theirs(
        before + EXPORTED + """
assert streams == (sys.stdout, sys.stderr, vars(sys.stderr), builtins.input)
end()
assert streams == (sys.stdout, sys.stderr, vars(sys.stderr), builtins.input)
"""
    )  # fmt: skip
    assert lines == []


@pytest.mark.parametrize("late", [False, True], ids=["bars from before", "bars that come later"])
def test_above_bars_of_tqdm(late: bool) -> None:
    pytest.importorskip("tqdm")
    bars = "from tqdm import tqdm; bars = tqdm(range(400), mininterval=0, ascii=True, ncols=80, desc='train')\n"
    loop = """
for number in bars:
    if number % 100 == 99:
        tqdm.write(f"saved {number}")
    if number == 200:
        written.clear()
        written.wait(30)
    if number == 399:  # tqdm ends a bar in two steps, between which nobody's line is safe
        over.set()
        thread.join()
bars.close()
print("afterwards")
"""
    lines = theirs(EXPORTED + bars + loop if late else bars + EXPORTED + loop)
    assert [line for line in lines if line.startswith("saved")] == [f"saved {number}" for number in (99, 199, 299, 399)]
    [bar] = [line for line in lines if line.startswith("train")]
    assert "400/400" in bar and lines[-1] == "afterwards" and len(lines) == 6


def test_above_a_live_display_of_rich() -> None:
    """Written between its refreshes: these and what other threads print are not safe from each other in rich itself."""
    pytest.importorskip("rich")
    lines = theirs(
        EXPORTED + """
end()
from rich.progress import Progress
with Progress(auto_refresh=False) as progress:
    task = progress.add_task("train", total=50)
    for number in range(50):
        progress.update(task, advance=1, refresh=True)
        exporter.export(figures)
        if number % 10 == 9:
            print("saved", number)
print("afterwards")
"""
    )  # fmt: skip
    assert [line for line in lines if line.startswith("saved")] == [f"saved {number}" for number in range(9, 50, 10)]
    [bar] = [line for line in lines if line.startswith("train")]
    assert "100%" in bar and lines[-1] == "afterwards"


AUTO = """
from otel_goodput.exporters.registry import resolve
print("exporters:", *resolve(["auto"], {}))
"""


def test_where_a_person_types_at_the_interpreter_it_is_off() -> None:
    assert on_a_terminal(AUTO)[0].lines == ["exporters: console"]
    typed: list[str] = []

    def answer(written: str) -> str:
        if ">>> " not in written or typed:
            return ""
        typed.append("raise SystemExit\n")
        return typed[0]

    screen, _ = on_a_terminal(AUTO, interactive=True, answer=answer)
    assert "exporters:" in screen.lines
    for notebook in ("import builtins; builtins.__IPYTHON__ = True", "import sys; sys.modules['ipykernel'] = sys"):
        assert on_a_terminal(f"{notebook}\n{AUTO}")[0].lines == ["exporters:"]


def test_a_real_job_with_prints() -> None:
    """Through the recorder, its reader and the exporter."""
    screen, status = on_a_terminal("""
import sys, tempfile, time
import otel_goodput as goodput
with tempfile.TemporaryDirectory() as folder:
    goodput.configure("job", directory=folder, exporters="console", integrations="none")
    with goodput.job():
        for step, _ in goodput.steps(range(150)):
            time.sleep(0.01)
            print("loss", int(step))
    goodput.shutdown()
print("afterwards")
""")
    assert status == 0
    ours = [line for line in screen.lines if line.startswith("goodput ")]
    assert len(ours) == 1 and re.match(r"goodput [\d.]+ % · step 149 · ", ours[0]), ours
    others = [line for line in screen.lines if line not in ours]
    assert others == [*(f"loss {number}" for number in range(150)), "afterwards"]
