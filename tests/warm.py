"""Processes that start in milliseconds: forks of one that has already imported what they need.

``run`` and ``Process`` take the place of ``subprocess.run`` and ``subprocess.Popen`` for commands of this Python. What
they start is a process of its own: its environment, folder, descriptors, signals, threads and exit status are its own,
and its exit handlers run. It differs from one that `exec` started in three ways: modules are imported that it did not
ask for, the interpreter's startup is missing, and at its end modules are not torn down. Tests for which one of these
matters use subprocess.

What is forked has one thread and has configured nothing. There is at most one of each kind, which all workers of a run
of pytest-xdist share: `core` has imported OpenTelemetry's SDK and all of this package, `jax` also jax, optax and Orbax,
`extras` also what exports to Google Cloud and by OTLP, and what serves the page.
"""

from __future__ import annotations

import atexit
import fcntl
import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, Any, TextIO

SDK = ("opentelemetry.sdk.metrics", "opentelemetry.sdk.trace.export", "opentelemetry.sdk._logs")
LIBRARY = ("asyncio", "importlib.metadata", "importlib.resources", "urllib.request")
PROTO = ("opentelemetry.proto.collector.trace.v1.trace_service_pb2",)
GOOGLE = (
    *("opentelemetry.exporter.cloud_trace", "opentelemetry.exporter.cloud_monitoring"),
    *("google.auth.transport.grpc", "google.auth.transport.requests"),
)
OTLP = (
    "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.metric_exporter",
)
SERVE = ("starlette.applications", "starlette.middleware.gzip", "starlette.responses", "uvicorn")
IMPORTED = {
    "core": (*SDK, *LIBRARY, *PROTO),
    "extras": (*GOOGLE, *OTLP, *SERVE),
    "jax": ("jax", "jax.numpy", "optax", "orbax.checkpoint"),
}
# A test may set another one for itself. Python's tempfile would keep what it found, also for the forks.
PLACE = Path(os.environ.get("TMPDIR") or "/tmp")
_NUMBER = struct.Struct("=i")


class Process:
    """A ``subprocess.Popen`` of this Python; `jax`, `extras`: it uses that, so it may have been imported."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        text: bool = False,
        start_new_session: bool = False,
        pass_fds: Sequence[int] = (),
        jax: bool = False,
        extras: bool = False,
    ) -> None:
        self.args = [*map(str, command)]
        assert self.args[0] == sys.executable
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        mode = "" if text else "b"
        given: list[int] = []
        passed: list[int] = []
        for number, wanted in enumerate((stdin, stdout, stderr)):
            if wanted == subprocess.PIPE:
                read, write = os.pipe()
                if number == 0:
                    self.stdin = os.fdopen(write, "w" + mode)
                elif number == 1:
                    self.stdout = os.fdopen(read, "r" + mode)
                else:
                    self.stderr = os.fdopen(read, "r" + mode)
                passed.append(read if number == 0 else write)
                given.append(passed[-1])
            elif wanted == subprocess.DEVNULL:
                passed.append(os.open(os.devnull, os.O_RDWR))
                given.append(passed[-1])
            elif wanted == subprocess.STDOUT:
                given.append(given[1])
            else:
                given.append(number if wanted is None else wanted if isinstance(wanted, int) else wanted.fileno())
        request = {
            "command": self.args,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "session": start_new_session,
            "descriptors": [0, 1, 2, *pass_fds],
        }
        try:
            self._status = _origin("jax" if jax else "extras" if extras else "core").fork(request, [*given, *pass_fds])
        finally:
            for descriptor in passed:
                os.close(descriptor)
        self.pid = self._number()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for file in (self.stdout, self.stderr, self.stdin):
            if file is not None:
                with suppress(BrokenPipeError):
                    file.close()
        self.wait()

    def _number(self) -> int:
        (number,) = _NUMBER.unpack(self._status.recv(_NUMBER.size, socket.MSG_WAITALL))
        return int(number)

    def _ended(self, timeout: float | None) -> bool:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = self._number()
            self._status.close()
        return self.returncode is not None

    def poll(self) -> int | None:
        self._ended(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; subprocess.TimeoutExpired after `timeout` (s)."""
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if not self._ended(0):
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write `input` to it, and return what it writes until it ends; TimeoutExpired after `timeout` (s)."""
        output: dict[str, Any] = {}

        def read(name: str, file: IO[Any]) -> None:
            with file:
                output[name] = file.read()

        def write(file: IO[Any]) -> None:
            with suppress(BrokenPipeError), file:
                file.write(input)

        threads = [
            threading.Thread(target=read, args=(name, file), daemon=True)
            for name, file in (("stdout", self.stdout), ("stderr", self.stderr))
            if file is not None and not file.closed  # as Popen's, it may be called again
        ]
        if self.stdin is not None and input:
            threads.append(threading.Thread(target=write, args=(self.stdin,), daemon=True))
        elif self.stdin is not None:
            self.stdin.close()
        for thread in threads:
            thread.start()
        deadline = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if deadline is None else max(0.0, deadline - time.monotonic())

        for thread in threads:
            thread.join(left())
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(left())
        return output.get("stdout"), output.get("stderr")


def run(
    command: Sequence[str | Path],
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """``subprocess.run`` of this Python."""
    if capture_output:
        options["stdout"] = options["stderr"] = subprocess.PIPE
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Process(command, **options) as process:
        try:
            stdout, stderr = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.wait(), stdout, stderr)
    if check:
        done.check_returncode()
    return done


class _Origin:
    """The process whose forks those are. It ends once all that use it have closed their sockets, or ended."""

    def __init__(self, kind: str) -> None:
        self._lock = threading.Lock()
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"process-{os.getpid()}")
        path = PLACE / f"warm-{run}-{kind}"
        self._socket = socket.socket(socket.AF_UNIX)
        with _alone():
            try:
                self._socket.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                _start(path, kind)
                self._socket.connect(str(path))
        atexit.register(self.close)

    def fork(self, request: dict[str, Any], descriptors: Sequence[int]) -> socket.socket:
        """Return where the fork's process id comes from, and its exit status once it has ended."""
        status, theirs = socket.socketpair()
        whole = json.dumps(request).encode()
        with theirs, self._lock:
            socket.send_fds(self._socket, [_NUMBER.pack(len(whole))], [*descriptors, theirs.fileno()])
            self._socket.sendall(whole)
        return status

    def close(self) -> None:
        self._socket.close()


@contextmanager
def _alone() -> Iterator[None]:
    """Nobody else connects to an origin, starts one, or is one at its end."""
    with Path(__file__).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start(path: Path, kind: str) -> None:
    """Return when it can be connected to, while it still imports."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(64)
        subprocess.run(  # what it starts goes on as a process of nobody: it may outlast this one
            [sys.executable, __file__, str(listening.fileno()), kind],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
            start_new_session=True,  # signals for the group of the tests are not for it
            # OpenBLAS starts threads when numpy is imported.
            env={**_without_settings(os.environ), "OPENBLAS_NUM_THREADS": "1"},
        )


_origins: dict[str, _Origin] = {}
_starting = threading.Lock()


def _origin(kind: str) -> _Origin:
    with _starting:
        if kind not in _origins:
            _origins[kind] = _Origin(kind)
        return _origins[kind]


def _without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what OpenTelemetry and Python read once, at import."""
    return {name: text for name, text in environ.items() if not name.startswith("OTEL_") and name != "PYTHONPATH"}


def _fork_on_request(listening: socket.socket) -> dict[str, Any]:
    """Fork for each request, and tell who asked its id and exit status; return the request in the fork."""
    users: list[socket.socket] = []
    forks: dict[int, tuple[int, int]] = {}  # by what becomes readable when it has ended: its id, and where to tell
    while True:
        for each in select.select([listening, *users, *forks], [], [])[0]:
            if each is listening:
                users.append(listening.accept()[0])
                continue
            if isinstance(each, int):
                pid, status = forks.pop(each)
                _tell(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(status)
                os.close(each)
                continue
            request, descriptors = _request_of(each)
            if request is None:
                users.remove(each)
                each.close()
                if not users:
                    _end_unless_wanted(listening)
                continue
            *descriptors, status = descriptors
            pid = os.fork()
            if pid == 0:
                for one in (listening, *users):
                    one.close()
                for ended, (_, other) in forks.items():
                    os.close(ended)
                    os.close(other)
                os.close(status)
                return _with_descriptors(request, descriptors)
            for one in descriptors:
                os.close(one)
            forks[os.pidfd_open(pid)] = pid, status
            _tell(status, pid)


def _request_of(user: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """What shall be forked, with which descriptors; None from one that has gone."""
    with suppress(ConnectionError):
        data, descriptors, _, _ = socket.recv_fds(user, _NUMBER.size, 16)
        size = _NUMBER.unpack(data)[0] if data else -1
        whole = user.recv(size, socket.MSG_WAITALL) if data else b""
        if len(whole) == size:
            return json.loads(whole), descriptors
    return None, []


def _end_unless_wanted(listening: socket.socket) -> None:
    """End, and leave nothing, unless somebody has connected meanwhile."""
    path = Path(listening.getsockname())
    with _alone():
        if not select.select([listening], [], [], 0)[0]:
            path.unlink(missing_ok=True)
            os._exit(0)


def _tell(status: int, number: int) -> None:
    with suppress(OSError):  # the tests do not want to know any more
        os.write(status, _NUMBER.pack(number))


def _with_descriptors(request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
    """Give this process the descriptors under the numbers that are asked for."""
    apart = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 200) for each in descriptors]  # their numbers may be in the way
    for each in descriptors:
        os.close(each)
    for number, each in zip(request["descriptors"], apart, strict=True):
        os.dup2(each, number)
        os.close(each)
    return request


def _become(request: dict[str, Any]) -> None:
    """Do what the interpreter does with this command line, environment and folder."""
    import warnings

    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        processes.ORIGINAL_DIR = request["cwd"]  # type: ignore[attr-defined]  # read when it is imported
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    if "jax" in sys.modules:
        _set_jax()
    command: list[str] = request["command"][1:]
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    while command[0] in ("-W", "-u"):
        if command[0] == "-u":
            unbuffered = True
        else:
            warnings._processoptions([command[1]])  # type: ignore[attr-defined]
            sys.warnoptions.append(command.pop(1))
        del command[0]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = _output(1, unbuffered, line_buffering=os.isatty(1))
    sys.stderr = _output(2, unbuffered, line_buffering=True, errors="backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc,assignment]
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = paths
    if any((Path(path) / "sitecustomize.py").exists() for path in paths):
        sys.modules.pop("sitecustomize", None)
        import sitecustomize  # noqa: F401
    if command[0] == "-m":
        import runpy

        sys.path.insert(0, str(Path.cwd()))
        sys.argv = ["-m", *command[2:]]
        runpy._run_module_as_main(command[1])  # type: ignore[attr-defined]
    elif command[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *command[2:]]
        exec(compile(command[1], "<string>", "exec"), main.__dict__)
    else:
        sys.path.insert(0, str(Path(command[0]).resolve().parent))
        sys.argv = command
        main.__file__ = command[0]
        exec(compile(Path(command[0]).read_bytes(), command[0], "exec"), main.__dict__)


def _output(descriptor: int, unbuffered: bool, **how: Any) -> TextIO:
    file = open(descriptor, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(file, write_through=unbuffered, **how)


def _set_jax() -> None:
    """Settings of jax that it reads from the environment when it is imported."""
    import jax

    for name, text in os.environ.items():
        name = name.lower()
        if name in jax.config.values:
            now = getattr(jax.config, name)
            value = text.lower() in ("1", "on", "true", "yes") if isinstance(now, bool) else text
            jax.config.update(name, type(now)(value) if isinstance(now, (int, float)) else value)


def _end(error: BaseException | None) -> None:
    """End as the interpreter does, but for the modules."""
    status = 0
    if isinstance(error, SystemExit):
        code = error.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
        status = 0 if code is None else code if isinstance(code, int) else 1
    elif error is not None:
        inner = error.__traceback__
        while inner is not None and inner.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            inner = inner.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, inner
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        sys.excepthook(type(error), error.with_traceback(inner), inner)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with suppress(ValueError):  # closed
            try:
                file.flush()
            except OSError:
                status = 120
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def _main(descriptor: int, kind: str) -> None:
    import gc
    import warnings
    from importlib import import_module

    if os.fork():
        os._exit(0)
    import otel_goodput

    del sys.path[0]  # the folder of the tests
    for name in dict.fromkeys(IMPORTED["core"] + IMPORTED[kind]):
        with suppress(ModuleNotFoundError) if kind == "extras" else nullcontext():
            import_module(name)
    package = Path(otel_goodput.__path__[0])
    # None needs more than the SDK, see tests/layout/test_layers.py, but for callbacks, which need their framework.
    for path in sorted({*package.rglob("*.py")} - {*package.glob("integrations/[!_]*.py")}):
        name = ".".join(("otel_goodput", *path.relative_to(package).with_suffix("").parts))
        if not name.endswith(("__init__", "__main__")) and "compat" not in name:
            import_module(name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # jax warns of threads; there are none
        gc.collect()
        gc.freeze()  # the pages stay shared
        request = _fork_on_request(socket.socket(fileno=descriptor))
    try:
        _become(request)
    except BaseException as error:
        _end(error)
    _end(None)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
