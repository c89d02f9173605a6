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
from types import ModuleType
from typing import Final

__all__ = ["install"]

NAME: Final = "ml_goodput_measurement"
# Modules of ml-goodput-measurement, and ours that take their place.
_MODULES: Final = {
    "goodput_utils": "goodput_utils",
    "goodput": "goodput",
    "goodput_elastic": "goodput",
    "measurement": "goodput",
    "monitoring": "monitoring",
    "monitoring_elastic": "monitoring",
    "checkpoint_badput_calculator": "goodput_utils",
}


def install() -> None:
    """Have ``import ml_goodput_measurement`` give this package's modules, also where the original is installed.

    Raises ImportError if the original has been imported already; programs would then use both.
    """
    if sys.modules.get(NAME, _PACKAGE) is not _PACKAGE:
        raise ImportError(
            f"{NAME} was imported before otel_goodput.compat.install(): call install() first, at the top of the program"
        )
    # The original has its modules in the package, and in its subpackage ``src``.
    for package in (_PACKAGE, _SOURCE):
        sys.modules[package.__name__] = package
        for name, ours in _MODULES.items():
            module = import_module(f"{__name__}.{ours}")
            sys.modules[f"{package.__name__}.{name}"] = module
            setattr(package, name, module)


_PACKAGE: Final = ModuleType(NAME, __doc__)
_SOURCE: Final = ModuleType(f"{NAME}.src", __doc__)
_PACKAGE.__path__ = _SOURCE.__path__ = []  # they are packages, whose modules are put into ``sys.modules``
_PACKAGE.src = _SOURCE  # type: ignore[attr-defined]  # as the import of a subpackage does
