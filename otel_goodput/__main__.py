"""``python -m otel_goodput`` is the command ``otel-goodput``."""

import sys

from otel_goodput.tools.cli import main

sys.exit(main())
