"""A forked process does what one that was started by ``exec`` does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from waits import PATIENCE_S, Lines, until

PROGRAMS = {
    "what it is given": "import os, sys; print(sys.argv, os.getcwd(), os.environ['SAID'], sys.stdin.read(), __name__)",
    "its path": "import sys; print(sys.path[:2], sys.flags.interactive, sys.warnoptions)",
    "a status": "raise SystemExit(7)",
    "a status of a byte": "raise SystemExit(-1)",
    "a reason": "raise SystemExit('why')",
    "an error": "def fails(): raise KeyError('x')\nfails()",
    "an error of others": "import json; json.loads('{')",
    "a syntax error": "def (",
    "an interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(60)",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "terminated": "import os, signal; print('lost'); os.kill(os.getpid(), signal.SIGTERM)",
    "without goodbye": "import atexit, os; atexit.register(print, 'goodbye'); print('lost'); os._exit(3)",
    "exit handlers": "import atexit, sys; atexit.register(print, 'first'); atexit.register(sys.stderr.write, 'second')",
    "a handler that fails": "import atexit\ndef fails(): 1 / 0\natexit.register(fails); print('before')",
    "threads are waited for": "import threading, time; threading.Timer(0.05, print, ['late']).start(); print('early')",
    "daemons are not": "import threading, time; threading.Thread(target=time.sleep, args=[60], daemon=True).start()",
    "a warning": "import warnings; warnings.warn('x', DeprecationWarning, stacklevel=1)",
    "bytes": "import sys; sys.stdout.buffer.write(b'\\xff\\n'); sys.stderr.write('\\udcff')",
    "the main module": "import sys; x = 1; main = sys.modules['__main__']; print(main.x, hasattr(main, '__file__'))",
    "the last error": "import atexit, sys; atexit.register(lambda: print(repr(sys.last_value)))\n1 / 0",
    "a fork": "import os, sys\nif os.fork() == 0: os._exit(5)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_like_any_other(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAMS[name], "a", "b"]
    how = {"cwd": tmp_path, "env": {**os.environ, "SAID": "é", "PYTHONPATH": str(tmp_path)}, "timeout": PATIENCE_S}
    real = subprocess.run(command, input=b"asked", capture_output=True, check=False, **how)  # type: ignore[call-overload]
    forked = warm.run(command, input=b"asked", capture_output=True, **how)
    assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
    # Python 3.13 quotes the lines of `-c`, which it remembers when it starts.
    assert forked.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]
    assert forked.stderr.count(b"Traceback") == real.stderr.count(b"Traceback")
    assert b"warm.py" not in forked.stderr or name == "a handler that fails"


def test_a_module_and_a_file(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("import sys; print(sys.argv[1:], __name__, sys.path[0])")
    for command in (["-m", "told", "x"], [str(tmp_path / "told.py"), "x"]):
        whole = [sys.executable, *command]
        real = subprocess.run(whole, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        assert warm.run(whole, cwd=tmp_path, capture_output=True, text=True).stdout == real.stdout


def test_it_is_killed_and_told_apart_while_it_lives() -> None:
    reading, writing = os.pipe()
    code = f"import os, time; os.write({writing}, b'here'); print('ready', flush=True); time.sleep(3600)"
    with warm.Process(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, pass_fds=[writing], start_new_session=True
    ) as process:
        assert process.stdout is not None
        Lines(process.stdout.fileno()).until("ready".__eq__, "ready")
        assert os.read(reading, 4) == b"here"
        assert process.poll() is None and os.getpgid(process.pid) == process.pid
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == -signal.SIGTERM == process.poll()
        process.kill()  # of nobody
    os.close(reading)
    os.close(writing)


@pytest.mark.jax
def test_jax_reads_its_settings_anew() -> None:
    code = "import jax; print(jax.config.jax_enable_x64, jax.config.jax_compilation_cache_dir, jax.numpy.ones(2).dtype)"
    environment = {**os.environ, "JAX_ENABLE_X64": "1", "JAX_COMPILATION_CACHE_DIR": "/nowhere"}
    done = warm.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, jax=True)
    assert done.stdout.split() == ["True", "/nowhere", "float64"], done.stderr


def test_all_workers_share_what_is_forked_until_the_last_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", f"of-{os.getpid()}")
    monkeypatch.setattr(warm, "PLACE", tmp_path)
    code = "import os; print(open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1])"
    workers = [warm._Origin("core"), warm._Origin("core")]  # each has a connection, as each worker has
    origins = []
    for worker in [*workers, *workers]:
        monkeypatch.setitem(warm._origins, "core", worker)
        done = warm.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        origins.append(int(done.stdout))
        if worker is workers[0] and len(origins) > 2:
            worker.close()
    assert len({*origins}) == 1 and origins[0] != os.getpid(), origins
    (address,) = tmp_path.iterdir()
    workers[1].close()
    until(lambda: not address.exists(), lacking=lambda: f"the end of {origins}")
