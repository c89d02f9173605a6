"""The console's line never mixes with what others write; on a real terminal, drawn as often as it can be."""

from __future__ import annotations

import re

import pytest

from .screen import Screen, on_a_terminal

pytestmark = pytest.mark.timeout(120)

# Draws without a pause in a thread, while the program goes on.
DRAWN = """
import logging, os, sys, threading
early = logging.StreamHandler()  # keeps the stream that stands there before us
from otel_goodput.exporters import status_line
from otel_goodput.exporters.status_line import StatusLine
status_line.BESIDE_BARS_S = 0.001
line = StatusLine(sys.stderr, lambda: 200)
over, drawn = threading.Event(), threading.Event()
def draw():
    number = 0
    while not over.is_set():
        line.show(f"<goodput {number}>")
        number += 1
        drawn.set()
thread = threading.Thread(target=draw)
thread.start()
sys.setswitchinterval(1e-5)
drawn.wait(30)
def end():
    for _ in range(2):  # nobody is in its way now
        drawn.clear()
        drawn.wait(30)
    over.set()
    thread.join()
    line.close()
"""
OURS = re.compile(r"<goodput \d+>")


def ran(code: str, **more: object) -> Screen:
    screen, status = on_a_terminal(DRAWN + code, **more)  # type: ignore[arg-type]
    assert status == 0, screen.lines
    return screen


def theirs(screen: Screen) -> list[str]:
    """What is on the screen beside our line, which must stand alone."""
    others = [line for line in screen.lines if not OURS.fullmatch(line)]
    assert not any("goodput" in line for line in others), others
    return others


def test_prints_logs_and_errors_stand_alone() -> None:
    screen = ran("""
logger = logging.getLogger("theirs")
logger.addHandler(early)
for number in range(300):
    print("loss", number, end=" ")
    print("of", "all")
    print("to stderr", number, file=sys.stderr)
    logger.warning("logged %d", number)
    sys.stdout.writelines([f"written {number}", " in lines\\n"])
    print("two\\nlines")
end()
print("afterwards")
""")
    expected = [
        text
        for number in range(300)
        for text in (f"loss {number} of all", f"to stderr {number}", f"logged {number}", f"written {number} in lines",
                     "two", "lines")
    ]  # fmt: skip
    assert theirs(screen) == [*expected, "afterwards"]
    assert any(OURS.fullmatch(line) for line in screen.lines), "the last figures stay"


def test_whoever_is_in_the_middle_of_a_line_is_left_alone() -> None:
    screen = ran("""
for number in range(50):
    print("epoch", number, end="", flush=True)
    for dot in range(20):
        print(".", end="", flush=True)
    print()
    for part in range(20):
        print(f"\\rstep {part:3d}", end="", flush=True)
    print()
end()
""")
    expected = [text for number in range(50) for text in (f"epoch {number}{'.' * 20}", "step  19")]
    assert theirs(screen) == expected


def test_a_traceback_is_whole() -> None:
    screen = ran("""
for number in range(20):
    try:
        1 / 0
    except ZeroDivisionError:
        sys.excepthook(*sys.exc_info())
end()
""")
    lines = theirs(screen)
    assert lines.count("ZeroDivisionError: division by zero") == 20
    assert len(lines) % 20 == 0 and lines == lines[: len(lines) // 20] * 20


def test_a_question_waits_for_its_answer() -> None:
    answered = 0

    def answer(written: str) -> str:
        nonlocal answered
        asked = written.count("name? ") > answered
        answered += asked
        return "Ada\n" * asked

    screen = ran("""
for number in range(5):
    print("hello", input("name? "))
end()
""", answer=answer)  # fmt: skip
    assert theirs(screen) == ["name? Ada", "hello Ada"] * 5


def test_streams_are_what_they_were_afterwards() -> None:
    screen = ran(
        """
import builtins
assert sys.stdout is sys.__stdout__ and "write" in vars(sys.stdout)
end()
assert "write" not in vars(sys.stdout) and "write" not in vars(sys.stderr)
assert builtins.input.__module__ == "builtins"
again = StatusLine(sys.stderr, lambda: 200)
child = os.fork()
if not child:
    assert "write" not in vars(sys.stdout)
    print("from the child")
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
again.close()
print("all well")
""".replace("import builtins", "import builtins, warnings; warnings.simplefilter('ignore')")
    )
    assert theirs(screen) == ["from the child", "all well"]


@pytest.mark.parametrize("late", [False, True], ids=["bars from before", "bars that come later"])
def test_beside_bars_of_tqdm(late: bool) -> None:
    pytest.importorskip("tqdm")
    bars = "from tqdm import tqdm; bars = tqdm(range(400), mininterval=0, ascii=True, ncols=80, desc='train')\n"
    loop = """
for number in bars:
    if number % 100 == 99:
        tqdm.write(f"saved {number}")
end()
print("afterwards")
"""
    code = DRAWN + bars + loop if late else bars + DRAWN + loop
    screen, status = on_a_terminal(code)
    assert status == 0, screen.lines
    lines = theirs(screen)
    assert [line for line in lines if line.startswith("saved")] == [f"saved {number}" for number in (99, 199, 299, 399)]
    [bar] = [line for line in lines if line.startswith("train")]
    assert bar.startswith("train: 100%|###") and "400/400" in bar
    assert lines[-1] == "afterwards" and len(lines) == 6
    assert any(OURS.fullmatch(line) for line in screen.lines), "they are shown above the bars"


def test_a_bar_that_is_closed_meanwhile() -> None:
    """tqdm takes a bar that is being closed for gone, while it is still on the screen."""
    pytest.importorskip("tqdm")
    screen, status = on_a_terminal("""
import sys, threading
from tqdm import tqdm
from otel_goodput.exporters.status_line import StatusLine
lock = threading.RLock()
class Lock:
    closing = False
    def acquire(self, *how):
        bar.disable |= self.closing  # as close() begins, without the lock, in another thread
        return lock.acquire(*how)
    def release(self):
        lock.release()
    def __enter__(self):
        self.acquire()
    def __exit__(self, *_):
        self.release()
line = StatusLine(sys.stderr, lambda: 200)
bar = tqdm(total=10, mininterval=0, ascii=True, ncols=80, desc="train")
bar.update(10)
bar.set_lock(Lock())
Lock.closing = True
line.show("<goodput 1>")
bar.disable = Lock.closing = False
bar.close()
line.close()
""")
    assert status == 0, screen.lines
    [bar] = theirs(screen)
    assert bar.startswith("train: 100%|###") and screen.lines == ["<goodput 1>", bar]


def test_beside_a_live_display_of_rich() -> None:
    """Drawn between its refreshes: these and what other threads print are not safe from each other in rich itself."""
    pytest.importorskip("rich")
    screen = ran("""
end()
line = StatusLine(sys.stderr, lambda: 200)
from rich.progress import Progress
with Progress(auto_refresh=False) as progress:
    task = progress.add_task("train", total=50)
    for number in range(50):
        progress.update(task, advance=1, refresh=True)
        status_line.BESIDE_BARS_S = 0
        line.show(f"<goodput {number}>")
        if number % 10 == 9:
            print("saved", number)
line.show(f"<goodput {50}>")
line.close()
print("afterwards")
""")
    lines = theirs(screen)
    assert [line for line in lines if line.startswith("saved")] == [f"saved {number}" for number in range(9, 50, 10)]
    [bar] = [line for line in lines if line.startswith("train")]
    assert "100%" in bar and lines[-1] == "afterwards"
    ours = [line for line in screen.lines if OURS.fullmatch(line)]
    assert ours[-51:] == [f"<goodput {number}>" for number in range(51)], "they are shown above the display"


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
