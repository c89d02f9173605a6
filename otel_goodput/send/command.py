"""The command ``otel-goodput send``: from its arguments to what it says in the end."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from otel_goodput.doctor.veil import secrets, veil
from otel_goodput.errors import ConfigurationError
from otel_goodput.send.lines import METRICS, TRACES, signal_of, sources
from otel_goodput.send.screen import Screen
from otel_goodput.send.sending import Account, Sending, Stopped


def run(options: argparse.Namespace) -> int:
    """Send. Returns the exit status: 0 where all there was is there now, 1 where not, 2 for wrong use.

    Raises:
        GoodputError: a file is being sent by another process, or what is remembered of it does not fit.
        OSError: a file cannot be read, or written beside.
    """
    environ = _environment(options)
    screen = Screen(secrets(environ), quiet=options.quiet or options.json)
    try:
        signals = {path: signal_of(path) or TRACES for path in sources(options.files)}
        sending = Sending(environ, screen, patience_s=options.timeout, again=options.again, dry=options.dry_run)
    except ConfigurationError as error:
        screen.complain(str(error))
        return 2
    except ImportError as error:
        screen.complain(f"{error}: pip install 'otel-goodput[otlp]'")
        return 2
    with closing(sending):
        for path, signal in signals.items():
            if options.again:
                sending.forget(path, signal)
        accounts, reason = _send(sending, signals, screen, "would go" if options.dry_run else "sent")
    if reason:
        left = sum(account.left for account in accounts)
        screen.complain(
            f"{reason}; {left} requests are left; called again{', without --again,' * options.again} it goes on"
        )
    done = not reason and all(account.whole() for account in accounts)
    if options.json:
        files = [{**asdict(account), "file": veil(account.file)} for account in accounts]
        answer = {"done": done, "dry_run": options.dry_run, "reason": veil(reason, secrets(environ)), "files": files}
        sys.stdout.write(json.dumps(answer) + "\n")
    return 0 if done else 1


def _send(sending: Sending, signals: dict[Path, str], screen: Screen, verb: str) -> tuple[list[Account], str]:
    """What became of each file, and why not all were sent, empty where they were."""
    accounts, reason = [], ""
    for path, signal in signals.items():
        account = Account(str(path), sending.receiver(signal))
        accounts.append(account)
        if not reason:
            try:
                sending.file(path, signal, account)
            except Stopped as stopped:
                reason = str(stopped)
        if reason:
            account.left = sending.rest(path, signal)
        screen.tell(f"{path}: {account} {verb} to {account.receiver}" if account.sent else f"{path}: {account}")
    return accounts, reason


def _environment(options: argparse.Namespace) -> dict[str, str]:
    """The variables, with what the command line says in their place for both signals."""
    environ = dict(os.environ)
    for name, value in (("ENDPOINT", options.endpoint), ("PROTOCOL", options.protocol)):
        if value is not None:
            for signal in (TRACES, METRICS):
                environ.pop(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", None)
            environ[f"OTEL_EXPORTER_OTLP_{name}"] = value
    return environ
