"""A drop-in for ml-goodput-measurement 0.2.3: programs written for it run unchanged, and are accounted by this package.

::

    import otel_goodput.compat
    otel_goodput.compat.install()  # before the first import of ml_goodput_measurement

or, without any change, ``python -m otel_goodput.compat -m package.module …``. What it does is described in
docs/migration.md.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

__all__ = ["install"]

NAME: Final = "ml_goodput_measurement"
_MODULES: Final = (
    "goodput_utils",
    "goodput",
    "goodput_elastic",
    "monitoring",
    "monitoring_elastic",
    "checkpoint_badput_calculator",
    "measurement",
)


def install() -> None:
    """Have ``import ml_goodput_measurement`` give this package's modules, also where the original is installed.

    Raises:
        ImportError: the original has been imported already; programs would then use both.
    """
    package = import_module(f"{__name__}.{NAME}")
    there = sys.modules.get(NAME)
    if there is not None and there is not package:
        raise ImportError(
            f"{NAME} was imported before otel_goodput.compat.install(): call install() first, at the top of the program"
        )
    source = import_module(f"{__name__}.{NAME}.src")
    sys.modules[NAME], sys.modules[f"{NAME}.src"] = package, source
    for name in _MODULES:
        module = import_module(f"{__name__}.{NAME}.{name}")
        sys.modules[f"{NAME}.{name}"] = sys.modules[f"{NAME}.src.{name}"] = module
        setattr(package, name, module)
        setattr(source, name, module)
