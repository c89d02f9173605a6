"""The generator and its parts can be imported as they can where it is run."""

from __future__ import annotations

import sys

from .written import COLLECTOR

if str(COLLECTOR) not in sys.path:
    sys.path.insert(0, str(COLLECTOR))
