"""What frameworks find by entry points, whenever they start: nothing, unless the program records a run.

A program that does not is no slower: nothing is imported for it but this module.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from otel_goodput._settings.envvars import OTEL_GOODPUT_RUN_NAME, PREFIX

INTEGRATIONS: Final = f"{PREFIX}INTEGRATIONS"


def _left_out(name: str) -> bool:
    return bool({"none", f"-{name}"} & {each.strip() for each in os.environ.get(INTEGRATIONS, "").lower().split(",")})


def _recording() -> bool:
    """Return whether a run is recorded. If the environment names one and nothing is configured yet, that is done."""
    api: Any = sys.modules.get("otel_goodput.api")
    if api is not None and api._find() is not None:
        return True
    name = os.environ.get(OTEL_GOODPUT_RUN_NAME.name, "").strip()
    if not name:
        return False
    from otel_goodput import api as loaded

    return loaded.configure(name) is not None


def lightning_callbacks() -> list[Any]:
    """Return the callback for a ``Trainer`` or a ``Fabric`` that is being made, if a run is recorded; else none."""
    try:
        if _left_out("lightning") or not _recording():
            return []
        from otel_goodput.integrations.lightning import GoodputCallback

        return [GoodputCallback()]
    except Exception as error:
        from otel_goodput._runtime.guard import contain

        contain("Lightning's callbacks", error)
        return []
