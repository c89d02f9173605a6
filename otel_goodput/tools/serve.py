"""``otel-goodput serve``: the page of every run of a folder or URL, live, in a browser."""

from __future__ import annotations

import argparse
import gc
import secrets
import sys
from typing import Final

from otel_goodput.errors import ConfigurationError
from otel_goodput.text.durations import NS, parse_duration
from otel_goodput.viewer import gate, server
from otel_goodput.viewer.places import place
from otel_goodput.viewer.watch import SPANS

MADE_UP: Final = "auto"
_LEAST: Final = 16  # characters of a token
_SAFE: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to `parser`."""
    parser.add_argument(
        "directory",
        nargs="?",
        default=None,
        metavar="DIR",
        help="the folder or URL that holds the runs, or one run's folder; it need not exist yet "
        "(default: OTEL_GOODPUT_DIR, else ./goodput)",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on (default 127.0.0.1: only this machine; 0.0.0.0: every machine that reaches it)",
    )
    parser.add_argument(
        "--port", type=_port, default=server.PORT, help=f"the port (default {server.PORT}; 0: any that is free)"
    )
    parser.add_argument(
        "--idle", type=_idle, default=None, metavar="T", help="stop after T without a request, such as 2h"
    )
    parser.add_argument(
        "--spans",
        type=_count,
        default=SPANS,
        metavar="N",
        help=f"steps and phases that a page has one by one from the start (default {SPANS:,}); zoom in for the others",
    )
    parser.add_argument(
        "--token",
        default=None,
        help=f"whoever asks must show this token ({MADE_UP}: one is made up, as it always is beyond this machine)",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another name by which browsers reach it, such as that of a proxy; may be repeated",
    )


def run(options: argparse.Namespace, named: str) -> int:
    """Serve the runs at `named` until Ctrl-C, and return 0.

    Raises:
        ConfigurationError: the extra is missing, an option is wrong, or the port is in use.
        JournalError: the URL is invalid, or its kind needs a package that is missing.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    gc.enable()  # the other commands end soon
    token = _token(options.token, options.host)
    hosts = gate.Hosts(options.host, options.allow_host)
    server.check()
    listener = server.listening(options.host, options.port)
    runs = place(named)

    def started() -> None:
        problem = runs.runs()[1]
        print(f"otel-goodput serves {runs.shown}. Open", flush=True)
        for address in server.addresses(options.host, listener.getsockname()[1], token):
            print(f"  {address}", flush=True)
        print("Ctrl-C ends it." + (f" ({problem})" if problem else ""), flush=True)

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
        print(f"otel-goodput: no request for {options.idle / NS:g} s: it has stopped", file=sys.stderr)
    return 0


def _token(given: str | None, host: str) -> str | None:
    if given is None and gate.loopback(host):
        return None
    if given in (None, MADE_UP):
        return secrets.token_urlsafe(24)
    if len(given or "") < _LEAST or not set(given or "") <= _SAFE:
        raise ConfigurationError(f"--token needs at least {_LEAST} letters, digits, '-' or '_'; or --token {MADE_UP}")
    return given


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 2**16:
        raise ValueError(text)
    return port


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise ValueError(text)
    return count


def _idle(text: str) -> int:
    return parse_duration(text)


_port.__name__, _idle.__name__, _count.__name__ = "port", "length of time", "number"
