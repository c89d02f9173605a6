"""``otel-goodput serve``: the page of every run of a folder or URL, live, in a browser."""

from __future__ import annotations

import argparse
import gc
import secrets
import sys
from typing import Final

from otel_goodput._text.durations import NS
from otel_goodput._tools.arguments import place
from otel_goodput._tools.serve.arguments import NEW
from otel_goodput._viewer import gate, server
from otel_goodput._viewer.places import place as runs_at
from otel_goodput.errors import ConfigurationError

_LEAST: Final = 16  # characters of a token
_SAFE: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def run(options: argparse.Namespace) -> int:
    """Serve the runs of a place until Ctrl-C, and return 0.

    Raises:
        ConfigurationError: the extra is missing, an option is wrong, or the port is in use.
        JournalError: the URL is invalid, or its kind needs a package that is missing.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    gc.enable()  # the other commands end soon
    token = None if options.no_token else _token(options.token)
    hosts = gate.Hosts(options.host, options.allow_host)
    server.check()
    listener = server.listening(options.host, options.port)
    runs = runs_at(place(options))

    def started() -> None:
        problem = runs.runs()[1]
        print(f"otel-goodput serves {runs.shown}. Open", flush=True)
        for address in server.addresses(options.host, listener.getsockname()[1], token):
            print(f"  {address}", flush=True)
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


def _token(given: str) -> str:
    if given == NEW:
        return secrets.token_urlsafe(24)
    if len(given) < _LEAST or not set(given) <= _SAFE:
        raise ConfigurationError(f"a token needs at least {_LEAST} letters, digits, '-' or '_'")
    return given
