"""How many devices this process computes with, if a runtime that the program has started knows that.

No runtime is imported or started here, and none is waited for while it starts.
"""

from __future__ import annotations

import sys
from typing import Any


def local_devices() -> int:
    """Return how many devices this process has; 0 if that is not known (yet)."""
    try:
        return max(_of_jax(), _of_torch())
    except Exception:  # it is just being started or shut down, or has other names
        return 0


def _of_jax() -> int:
    bridge: Any = sys.modules.get("jax._src.xla_bridge")  # not public; without it nothing is known
    lock = getattr(bridge, "_backend_lock", None)
    if lock is None or lock.locked() or not bridge.backends_are_initialized():
        return 0
    return int(sys.modules["jax"].local_device_count())


def _of_torch() -> int:
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return 0
    # Devices that this process does not use are another's.
    return max(1, sum(int(cuda.memory_reserved(device)) > 0 for device in range(cuda.device_count())))
