"""``otel-goodput serve``: what it shows of real jobs, and who may ask it what.

Longer than other files: the tests share one server, which is expensive to start.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import warm
from tools.commands import finished, goodput, killed
from waits import PATIENCE_S, until

from benchmarks.container import Container
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._runtime.installation import install_command
from otel_goodput._viewer import watch as watches
from otel_goodput._viewer.watch import Catalogue, Directory, Terms, Watch
from otel_goodput.reports.run import RecordedRun

from .served import Server, Stream, living, mute, serving

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.servers


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of one run that has ended and one that was killed; next to its directory is another one."""
    above = tmp_path_factory.mktemp("served")
    finished("ended", above / "runs")
    killed("killed", above / "runs")
    finished("inside", above / "secret")
    (above / "runs" / "link").symlink_to(above / "secret" / "inside")
    with serving(above / "runs") as server:
        yield server
        assert server.errors.read_text() == ""


def state_of(place: Path) -> dict[str, str]:
    """What every file of a directory holds, and when it was changed."""
    return {
        str(path.relative_to(place)): f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.stat().st_mtime_ns}"
        if path.is_file()
        else str(path.stat().st_mtime_ns)
        for path in sorted(place.rglob("*"))
    }


SLOW_S = 8  # a machine that is busy with other tests; alone it takes less than the two seconds


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_the_index_says_what_report_says(served: Server) -> None:
    runs = served.runs()
    assert [runs[name]["state"] for name in ("ended", "killed")] == ["ended", "died"]
    for name, row in runs.items():
        report = json.loads(goodput("report", served.place / name, "--json").stdout)
        same = ("run_id", "job_name", "state", "attempts", "goodput", "at_risk_s", "elapsed_s")
        assert {key: row[key] for key in same} == {key: report[key] for key in same}
    assert list(runs) == ["killed", "ended"], "the newest first"
    page = served.ask("/")
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    assert b"</html>" in page.body


def test_a_run_is_there_from_its_birth(tmp_path: Path) -> None:
    """Also one that is younger than the list of runs, which is kept for half a second."""
    place = tmp_path / "runs"
    place.mkdir()
    finished("run", tmp_path)
    catalogue = Catalogue(Directory(str(place)), Terms())
    assert catalogue.answer()["runs"] == [] and catalogue.find("run") is None
    (tmp_path / "run").rename(place / "run")
    entry = catalogue.find("run")
    assert entry is not None and entry.run.run_id == "run"
    assert [row["name"] for row in catalogue.answer()["runs"]] == ["run"]


def reported(run: Path) -> dict[str, Any]:
    """The report of a run as the page has it: what its attempts ran with stands with these there."""
    report = json.loads(goodput("report", run, "--json").stdout)
    return {name: figure for name, figure in report.items() if name != "configurations"}


def test_the_document_is_what_report_says(served: Server) -> None:
    page = served.ask("/runs/killed")
    assert page.status == 200 and b'data-source="../api/runs/killed/document"' in page.body
    answer = served.ask("/api/runs/killed/document")
    head = Container(answer.body).head
    assert head["report"] == reported(served.place / "killed")
    again = served.ask("/api/runs/killed/document", If_None_Match=answer.headers["etag"])
    assert (again.status, again.body) == (304, b"")


def test_the_figures_of_each_second_are_what_report_says(served: Server) -> None:
    for name in ("ended", "killed"):
        stream = Stream(served, f"/api/runs/{name}/events")
        data = stream.next()[1]
        assert data["report"] == reported(served.place / name)
        head = Container(served.ask(f"/api/runs/{name}/document").body).head
        assert {key: data[key] for key in ("headline", "verdict")} == {
            key: head[key] for key in ("headline", "verdict")
        }
        stream.close()


def test_a_window_holds_what_the_document_holds_there(served: Server) -> None:
    for name in ("ended", "killed"):
        whole = Container(served.ask(f"/api/runs/{name}/document").body)
        steps = whole.table(whole.head["steps"])
        begin, end = steps["start"][2], steps["start"][6]
        part = Container(served.ask(f"/api/runs/{name}/window?begin={begin}&end={end}").body)
        assert part.head["origin_ns"] == whole.head["origin_ns"]
        assert (part.head["begin"], part.head["until"]) == (begin, end)
        columns = part.table(part.head["steps"])
        within = range(columns["number"].index(2), columns["number"].index(6))
        for column in ("number", "start", "wall", "net", "fate", "attempt"):
            assert [columns[column][at] for at in within] == steps[column][2:6], column
        names = {whole.head["names"][at] for at in whole.table(whole.head["phases"])["name"]}
        all_of_it = Container(served.ask(f"/api/runs/{name}/window?begin=0&end={whole.head['end']}").body)
        assert {all_of_it.head["names"][at] for at in all_of_it.table(all_of_it.head["phases"])["name"]} == names


def test_a_job_is_followed_from_its_first_step_to_its_death_and_restart(place: Path) -> None:
    """The directory does not exist when the server starts."""
    with serving(place) as server:
        assert "does not exist yet: waiting for it" in server.ask("/api/runs").json()["problem"]
        index = Stream(server, "/api/runs/events")
        with living("job", place) as job:
            began = time.monotonic()
            listed = index.until("runs", lambda data: any(run["state"] == "running" for run in data["runs"]))
            assert [run["run_id"] for run in listed["runs"]] == ["job"]
            assert time.monotonic() - began < 2 + SLOW_S
            stream = Stream(server, "/api/runs/job/events")
            first = stream.until("run", lambda data: data["live"])["report"]
            stream.until("run", lambda data: data["report"]["steps"]["kept"] > first["steps"]["kept"])
            assert Container(server.ask("/api/runs/job/document").body).head["live"] is True
            job.send_signal(signal.SIGKILL)
            job.wait(PATIENCE_S)
            killed_at = time.monotonic()
            died = stream.until("run", lambda data: not data["live"])
            assert died["report"]["state"] == "died"
            assert time.monotonic() - killed_at < 2 + SLOW_S, "its lock is free at once"
            until(lambda: server.runs()["job"]["state"] == "died")
        document = Container(server.ask("/api/runs/job/document").body).head
        assert document["report"]["state"] == "died" and document["made_at"] >= died["news"]
        with living("job", place):
            again = stream.until("run", lambda data: data["live"] and data["report"]["attempts"] == 2)
            assert again["report"]["disruptions"] == 1
            head = Container(server.ask("/api/runs/job/document").body).head
            assert [one["number"] for one in head["attempts"]] == [1, 2]
        index.close()
        stream.close()


# Root may write where nobody may; without its powers it is as any other user.
WITHOUT_POWER = ("setpriv", "--inh-caps=-all", "--bounding-set=-all") if os.geteuid() == 0 and which("setpriv") else ()


def test_a_statement_about_a_disruption_is_shown_at_once(place: Path) -> None:
    killed("job", place)
    finished("job", place, 5, 12)
    with serving(place) as server:
        stream = Stream(server, "/api/runs/job/events")
        entry = stream.next()[1]["report"]["disruption_list"][0]
        assert (entry["reason"], entry["said_by"]) == ("crash", None)
        # The first makes the file, the second is added to it.
        for reason in ("maintenance", "preemption"):
            assert goodput("reason", place, 2, reason, "--by", "alice").returncode == 0
            stream.until("run", lambda data, to=reason: data["report"]["disruption_reasons"] == {to: 1})
            head = Container(server.ask("/api/runs/job/document").body).head
            assert [(one["reason"], one["said_by"], one["first_reason"]) for one in head["disruptions"]] == [
                (reason, "alice", "crash")
            ]
        stream.close()
        assert server.errors.read_text() == ""


def test_a_statement_right_behind_a_report_is_shown(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report before it is still fresh."""
    monkeypatch.setattr(watches, "_REPORT_FRESH_S", 3600.0)
    killed("job", place)
    finished("job", place, 5, 12)
    watch = Watch("job", RecordedRun(RunDirectory(place / "job")), Terms())
    assert b'"disruption_reasons":{"crash":1}' in watch._changes()
    assert goodput("reason", place, 2, "maintenance", "--by", "alice").returncode == 0
    watch.document()  # as a page that is opened just then
    assert b'"disruption_reasons":{"maintenance":1}' in watch._changes()


def test_nothing_is_written_and_nothing_need_be_writable(place: Path) -> None:
    finished("ended", place)
    killed("killed", place)
    for path in [*place.rglob("*"), place]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    before = state_of(place)
    try:
        with serving(place, before=WITHOUT_POWER) as server:
            states = {name: run["state"] for name, run in server.runs().items()}
            assert states == {"ended": "ended", "killed": "died"}
            for name in states:
                assert server.ask(f"/api/runs/{name}/document").status == 200
                stream = Stream(server, f"/api/runs/{name}/events")
                stream.next()
                stream.close()
        assert state_of(place) == before
    finally:
        for path in [place, *place.rglob("*")]:
            path.chmod(0o700)


def test_a_run_that_cannot_be_read_does_not_keep_the_others_away(place: Path) -> None:
    finished("good", place)
    finished("bad", place)
    for path in (place / "bad" / "journal").iterdir():
        path.write_bytes(os.urandom(200))
    (place / "empty" / "journal").mkdir(parents=True)
    (place / "nothing").mkdir()
    (place / "file").write_text("not a run")
    with serving(place) as server:
        runs = server.runs()
        assert runs["good"]["state"] == "ended"
        assert runs["bad"]["error"] or runs["bad"]["damaged"]
        assert set(runs) >= {"good", "bad", "empty"} and "nothing" not in runs
        for name in ("bad", "empty"):
            assert server.ask(f"/runs/{name}").status == 200
            head = Container(server.ask(f"/api/runs/{name}/document").body).head
            assert head["report"]["warnings"], "the page says what is missing"


def test_hostile_names_are_text(place: Path) -> None:
    names = ["<script>alert(1)</script>", "../../etc/passwd", "a\"b'c", "a b%2f?c=d&e#f", "\x1b[31mred", "x" * 300]
    for name in names:
        code = "import sys, otel_goodput as g; g.configure('j', directory=sys.argv[1], run_id=sys.argv[2], "
        code += "exporters='none')\nwith g.job(), g.step(0): pass"
        warm.run([sys.executable, "-c", code, str(place), name], check=True, timeout=PATIENCE_S)
    with serving(place) as server:
        listed = server.ask("/api/runs").json()["runs"]
        assert len(listed) == len(names)
        for run in listed:
            key = "".join(f"%{byte:02x}" for byte in run["name"].encode())
            page = server.ask(f"/runs/{key}")
            assert page.status == 200 and b"<script>alert" not in page.body
            assert Container(server.ask(f"/api/runs/{key}/document").body).head["report"]["run_id"] == run["run_id"]


def test_two_runs_are_compared(served: Server) -> None:
    assert served.ask("/compare?a=ended&b=killed").status == 200
    compared = served.ask("/api/compare?a=ended&b=killed").json()
    assert [compared[side]["run_id"] for side in "ab"] == ["ended", "killed"]
    assert compared["verdict"] and compared["sources"]
    assert served.ask("/api/compare?a=ended&b=other").status == 404
    assert served.ask("/api/compare").status == 404


def test_a_directory_at_a_url(place: Path) -> None:
    killed("job", place)
    with serving(f"file://{place}") as server:
        until(lambda: "job" in server.runs())
        assert Container(server.ask("/api/runs/job/document").body).head["report"]["run_id"] == "job"
        finished("later", place)
        until(lambda: "later" in server.runs())


# --- who may ask ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
def test_other_methods_are_refused(served: Server, method: str) -> None:
    answer = served.ask("/api/runs", method)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    assert "access-control-allow-origin" not in answer.headers


def test_head_is_get_without_a_body(served: Server) -> None:
    for path in ("/", "/runs/ended", "/api/runs", "/api/runs/ended/document", "/api/runs/events"):
        answer = served.ask(path, "HEAD")
        assert (answer.status, answer.body) == (200, b""), path


def test_only_names_of_this_server_are_answered(served: Server) -> None:
    foreign = ("evil.example", f"evil.example:{served.port}", "127.0.0.1.evil.example", "", "localhost:x", "[::1")
    for host in (*foreign, "10.0.0.1"):
        answer = served.ask("/api/runs", host=host)
        assert answer.status == 421, host
        assert b"ended" not in answer.body
    for host in ("localhost", f"LOCALHOST:{served.port}", "127.0.0.1:1", "[::1]:8000"):
        assert served.ask("/api/runs", host=host).status == 200, host


def test_more_names_can_be_allowed(place: Path) -> None:
    with serving(place, "--allow-host", "proxy.example") as server:
        assert server.ask("/api/runs", host="proxy.example").status == 200
        assert server.ask("/api/runs", host="other.example").status == 421


def test_headers_that_browsers_heed(served: Server) -> None:
    for path in ("/", "/runs/ended", "/api/runs", "/api/runs/none/document", "/api/runs/ended/document"):
        headers = served.ask(path, Origin="http://evil.example").headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert not any(name.startswith("access-control") for name in headers)


@pytest.mark.parametrize(
    "name",
    ["..", "..%2f", "..%2f..%2fsecret", "%2e%2e/secret", "..%5csecret", "secret%00", "%00", "%2fetc%2fpasswd", "link",
     "ended%2f..%2f..%2fsecret", "ended/../../secret", "ended%2fjournal", "%ff%fe", "a" * 5000, "."],
)  # fmt: skip
def test_no_path_is_made_of_a_name(served: Server, name: str) -> None:
    """Neither of what is in an address, nor by a link that lies in the directory."""
    about = f"/api/runs/{name}"
    for path in (f"/runs/{name}", f"{about}/document", f"{about}/events", f"{about}/window?begin=0&end=1"):
        answer = served.ask(path)
        assert answer.status == 404, path
        assert str(served.place.parent).encode() not in answer.body
        assert b"inside" not in answer.body
    assert set(served.runs()) == {"ended", "killed"}


def test_what_is_not_there(served: Server) -> None:
    for path in ("/other", "/api", "/api/runs/ended", "/api/runs/ended/other", "/runs/", "//evil.example/x"):
        assert served.ask(path).status == 404, path
    for query in ("", "?begin=0", "?begin=a&end=b", "?begin=5&end=5", f"?begin=0&end={10**30}", "?begin=1&end=0"):
        assert served.ask(f"/api/runs/ended/window{query}").status == 400, query


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_token(host: str, place: Path) -> None:
    """Also on this machine alone: its other users reach the port, and not the files."""
    finished("ended", place)
    with serving(place, "--host", host) as server:
        token = server.token
        assert len(token) >= 32
        for path in ("/", "/api/runs", "/api/runs/events", "/other", "/runs/ended"):
            bare = server.ask(path, token=False)
            assert bare.status == 401 and b"ended" not in bare.body
            assert server.ask(f"{path}?token=wrong", token=False).status == 403
            assert server.ask(path, token=False, Cookie=f"otel-goodput-{server.port}=wrong").status == 401
            for wrong in ("wrong", "Bearer wrong", "Bearer", "", f"Bearer {token[:-1]}", f"Bearer {token}x"):
                assert server.ask(path, Authorization=wrong).status == 401
        opened = server.ask(f"/compare?a=ended&token={token}&b=x", token=False)
        assert (opened.status, opened.headers["location"]) == (303, "./compare?a=ended&b=x")
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        kept = cookie.partition(";")[0]
        assert server.ask("/api/runs", token=False, Cookie=f"other=1; {kept}").status == 200
        assert server.ask("/api/runs", Authorization=f"Bearer {token}").status == 200
        assert server.ask("/api/runs", Authorization=f"token {token}").status == 200, "as Jupyter's clients say it"
        literal = server.ask("/api/runs", host="10.1.2.3:80").status
        assert literal == (200 if host == "0.0.0.0" else 421), "an address is no foreign name"
        assert server.ask("/api/runs", host="evil.example").status == 421
        server.stop()
        assert token not in server.errors.read_text()


def test_a_token_of_ones_own(place: Path) -> None:
    mine = "abcdefghijklmnopqrstuvwxyz"
    with serving(place, "--token", mine) as server:
        assert server.ask("/", token=False).status == 401
        assert server.ask(f"/?token={mine}").status == 303
    assert "a token needs at least" in goodput("serve", place, "--token", "short").stderr


def test_without_a_token(place: Path) -> None:
    finished("ended", place)
    with serving(place, "--no-token") as server:
        assert server.token == "" and set(server.runs()) == {"ended"}
    assert "not allowed with" in goodput("serve", place, "--no-token", "--token", "a" * 20).stderr


def test_pages_of_others_are_refused(served: Server) -> None:
    """Whatever they show: a browser says on its own which page asks."""
    for origin in (
        "http://evil.example",
        "null",
        f"http://evil.example:{served.port}",
        "http://127.0.0.1.evil.example",
    ):
        answer = served.ask("/api/runs", Origin=origin)
        assert answer.status == 403 and b"ended" not in answer.body, origin
    for origin in (f"http://127.0.0.1:{served.port}", "http://localhost:8000", "http://[::1]:1"):
        assert served.ask("/api/runs", Origin=origin).status == 200, origin


# --- many, slow and silent clients ------------------------------------------------------------------------------------


def resident(process: int) -> int:
    """Resident memory of a process, bytes."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_fifty_clients_and_some_that_never_read(place: Path) -> None:
    with living("job", place), serving(place) as server:
        streams = [Stream(server, "/api/runs/job/events") for _ in range(50)]
        silent = [mute(server, "/api/runs/job/events") for _ in range(10)]
        for stream in streams:
            stream.until("run", lambda data: data["live"])
        before = resident(server.process.pid)
        seen = [stream.until("run", lambda _: True)["report"]["started_steps"] for stream in streams * 3]
        assert max(seen) > min(seen) >= 0
        assert resident(server.process.pid) - before < 32 * 2**20
        for client in silent:
            client.close()
        for stream in streams:
            stream.close()
        assert server.ask("/api/runs").status == 200


# --- beginning and end ------------------------------------------------------------------------------------------------


FEW_FILES = 256
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_more_connections_that_say_nothing_than_it_may_have_files(place: Path) -> None:
    """They give way to who asks, and nothing is written about each of them."""
    finished("ended", place)
    with serving(place, before=[sys.executable, "-c", LIMITED, str(FEW_FILES)]) as server:
        stream = Stream(server, "/api/runs/events")
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(FEW_FILES + 100)]
        try:
            for _ in range(3):
                assert set(server.runs()) == {"ended"}
            opened = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
            assert opened < FEW_FILES
            assert stream.next()[0], "who is being answered stays"
        finally:
            for one in idle:
                one.close()
        assert set(server.runs()) == {"ended"}
        stream.close()
        server.stop()
        assert server.errors.read_text() == ""


@pytest.mark.parametrize("bad", [b"\x16\x03\x01 no HTTP\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"x" * 200_000])
def test_what_is_no_request_is_not_written_about(bad: bytes, place: Path) -> None:
    with serving(place) as server:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.settimeout(PATIENCE_S)
                try:
                    client.sendall(bad)
                    assert client.recv(100).startswith(b"HTTP/1.1 4")
                except ConnectionError:
                    pass  # it hung up before it had read all
        assert server.ask("/api/runs").status == 200
        server.stop()
        assert server.errors.read_text() == ""


def test_ctrl_c_while_a_client_listens(place: Path) -> None:
    with living("job", place), serving(place) as server:
        streams = [Stream(server, path) for path in ("/api/runs/events", "/api/runs/job/events")]
        client = mute(server, "/api/runs/job/events")
        for stream in streams:
            stream.next()
        began = time.monotonic()
        assert server.stop() in (0, 130)
        assert time.monotonic() - began < 30
        assert server.errors.read_text() == ""
        for stream in streams:
            until(lambda stream=stream: stream.next()[0] in ("", "end"))  # type: ignore[misc]
            stream.close()
        client.close()


def test_it_stops_when_idle(place: Path) -> None:
    with serving(place, "--idle", "1s") as server:
        stream = Stream(server, "/api/runs/events")
        stream.next()
        assert server.process.poll() is None, "who listens is there"
        stream.close()
        assert server.process.wait(PATIENCE_S) == 0
        assert "no request for 1 s" in server.errors.read_text()


def test_a_port_in_use(place: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        answer = goodput("serve", place, "--port", str(port))
    assert answer.returncode == 1 and answer.stdout == ""
    assert f"cannot listen on 127.0.0.1:{port}" in answer.stderr and "--port 0" in answer.stderr
    assert goodput("serve", place, "--port", "70000").returncode == 2
    assert "is not an address of this machine" in goodput("serve", place, "--host", "no.such.host.invalid").stderr


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_the_extra(place: Path, tmp_path: Path, missing: str) -> None:
    code = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *rest: None if name == {missing!r} else find(name, *rest)\n"
        "from otel_goodput._tools.cli import main\n"
        f"sys.exit(main(['serve', {str(place)!r}]))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert answer.returncode == 1
    assert answer.stderr == f"otel-goodput: serve needs starlette and uvicorn: {install_command('serve')}\n"
