"""``torch.serialization``: files that hold a pickled object. A bytearray stands for a tensor of so many bytes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

DEFAULT_PROTOCOL = 2


def save(obj: object, f: Any, pickle_module: Any = pickle, pickle_protocol: int = DEFAULT_PROTOCOL) -> None:
    if hasattr(f, "write"):
        pickle_module.dump(obj, f)
        f.flush()
        return
    with Path(f).open("wb") as file:
        pickle_module.dump(obj, file)


def load(f: Any, map_location: Any = None, pickle_module: Any = pickle, **pickle_load_args: Any) -> Any:
    if hasattr(f, "read"):
        return pickle_module.load(f)
    with Path(f).open("rb") as file:
        return pickle_module.load(file)
