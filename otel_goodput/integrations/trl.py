"""Steps of TRL's trainers, which are those of ``transformers``: pass a :class:`GoodputCallback` to one.

What they generate during training is the custom phase ``rollout``.
"""

from __future__ import annotations

from otel_goodput.integrations.transformers import GoodputCallback

__all__ = ["GoodputCallback"]
