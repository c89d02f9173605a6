"""``otel-goodput serve``: the page of every run of a folder or URL, live, in a browser."""

from __future__ import annotations

import argparse
import gc
import secrets
import string
import sys
from typing import Final

from otel_goodput._text.durations import NS
from otel_goodput._tools.arguments import add_directory, length, named_as, number, place
from otel_goodput._viewer import PORT, gate, server
from otel_goodput._viewer.watch import place as runs_at
from otel_goodput.errors import ConfigurationError
from otel_goodput.reports import SPANS

_NEW: Final = "auto"  # as a token: make one up
_LEAST: Final = 16  # characters of a token
_SAFE: Final = frozenset(f"{string.ascii_letters}{string.digits}-_")


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser, "folder or URL of all runs, or folder of a run; it need not exist yet", metavar="DIR")
    words = "address to listen on (default: 127.0.0.1, this machine only; 0.0.0.0: all networks)"
    parser.add_argument("--host", default="127.0.0.1", help=words)
    words = f"port to listen on (default: {PORT}; 0: any free port)"
    parser.add_argument("--port", type=named_as("port", _port), default=PORT, help=words)
    words = "stop after this long without a request, such as 2h (default: never)"
    parser.add_argument("--idle", type=length, metavar="T", help=words)
    words = f"steps and phases that a page shows individually from the start (default {SPANS:,}); zoom in for more"
    parser.add_argument("--spans", type=number, default=SPANS, metavar="N", help=words)
    token = parser.add_mutually_exclusive_group()
    words = (
        "the token that clients must send (default: a new one, included in the printed address). Other users of "
        "this machine can read arguments"
    )
    token.add_argument("--token", default=_NEW, help=words)
    words = "answer anyone who can reach the port, such as every user of this machine"
    token.add_argument("--no-token", action="store_true", help=words)
    words = "another host name that browsers use, such as a proxy's; may be repeated"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=words)


def run_serve(options: argparse.Namespace) -> int:
    """Serve the runs of a place until Ctrl-C, and return 0."""
    gc.enable()  # the other commands end soon
    token = None if options.no_token else _token(options.token)
    hosts = gate.Hosts(options.host, options.allow_host)
    server.check()
    listener = server.listening(options.host, options.port)
    runs = runs_at(place(options))

    def started() -> None:
        problem = runs.runs()[1]
        print(f"otel-goodput serves {runs.shown}. Open", flush=True)
        print(f"  {server.address(options.host, listener.getsockname()[1], token)}", flush=True)
        print("Press Ctrl-C to stop." + (f" ({problem})" if problem else ""), flush=True)

    try:
        why = server.run(
            runs,
            listener,
            hosts=hosts,
            token=token,
            idle_s=None if options.idle is None else options.idle / NS,
            spans=options.spans,
            started=started,
        )
    finally:
        listener.close()
        runs.close()
    if why == server.IDLE:
        print(f"otel-goodput: no request for {options.idle / NS:g} s: the server has stopped", file=sys.stderr)
    return 0


def _port(text: str) -> int:
    if not 0 <= (port := int(text)) < 2**16:
        raise ValueError("there is no such port")
    return port


def _token(given: str) -> str:
    if given == _NEW:
        return secrets.token_urlsafe(24)
    if len(given) < _LEAST or not set(given) <= _SAFE:
        raise ConfigurationError(f"a token needs at least {_LEAST} letters, digits, '-' or '_'")
    return given
