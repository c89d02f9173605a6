"""The arguments of ``otel-goodput serve``. Nothing here imports the viewer: every command's parser has them."""

from __future__ import annotations

import argparse
from typing import Final

from otel_goodput._tools.arguments import DEFAULT, length, named_as, number
from otel_goodput._viewer import PORT, SPANS

NEW: Final = "auto"  # as a token: make one up


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to `parser`."""
    parser.add_argument(
        "directory",
        nargs="?",
        default=None,
        metavar="DIR",
        help=f"folder or URL of all runs, or folder of a run; it need not exist yet {DEFAULT}",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1, this machine only; 0.0.0.0: all networks)",
    )
    parser.add_argument(
        "--port", type=_port, default=PORT, help=f"port to listen on (default: {PORT}; 0: any free port)"
    )
    parser.add_argument(
        "--idle",
        type=length,
        default=None,
        metavar="T",
        help="stop after this long without a request, such as 2h (default: never)",
    )
    parser.add_argument(
        "--spans",
        type=number,
        default=SPANS,
        metavar="N",
        help=f"steps and phases that a page shows individually from the start (default {SPANS:,}); zoom in for more",
    )
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument(
        "--token",
        default=NEW,
        help="the token that clients must send (default: a new one, included in the printed address). Other users of "
        "this machine can read arguments",
    )
    asked.add_argument(
        "--no-token",
        action="store_true",
        help="answer anyone who can reach the port, such as every user of this machine",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another host name that browsers use, such as a proxy's; may be repeated",
    )


def _port_number(text: str) -> int:
    if not 0 <= (port := int(text)) < 2**16:
        raise ValueError("there is no such port")
    return port


_port = named_as("port", _port_number)
