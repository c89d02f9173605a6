"""Runs the command ``otel-goodput`` as ``python -m otel_goodput``."""

import sys

from otel_goodput._tools.cli import main

sys.exit(main())
