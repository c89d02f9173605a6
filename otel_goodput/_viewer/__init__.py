"""The viewer: one page that shows where a run's time went, as a file or served live."""

from typing import Final

PORT: Final = 8765  # of the server, unless another is named
