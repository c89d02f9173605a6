"""What distributed runtimes that this process has initialized say about it.

None is imported, initialized or waited for here: a runtime is asked only if the program has imported and initialized
it. A runtime of one process says nothing about others, so it does not count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from otel_goodput.placement.kinds import Place, Told

_Answer = tuple[int, int] | None  # rank and size


def _jax() -> _Answer:
    module: Any = sys.modules.get("jax")
    if module is None:
        return None
    # jax.process_index() would start the backend, if nothing has so far. The distributed state is known before that.
    state: Any = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if getattr(state, "client", None) is not None:
        return state.process_id, state.num_processes
    started = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", bool)
    return (module.process_index(), module.process_count()) if started() else None


def _torch() -> _Answer:
    module: Any = sys.modules.get("torch.distributed")
    if module is None or not (module.is_available() and module.is_initialized()):
        return None
    return module.get_rank(), module.get_world_size()


def _mpi4py() -> _Answer:
    module: Any = getattr(sys.modules.get("mpi4py.MPI"), "COMM_WORLD", None)
    if module is None:
        return None
    mpi: Any = sys.modules["mpi4py.MPI"]
    if not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return module.Get_rank(), module.Get_size()


# Name of the rank and of the size in messages, and who is asked.
RUNTIMES: Final[tuple[tuple[str, str, Callable[[], _Answer]], ...]] = (
    ("jax.process_index()", "jax.process_count()", _jax),
    ("torch.distributed.get_rank()", "torch.distributed.get_world_size()", _torch),
    ("MPI.COMM_WORLD.Get_rank()", "MPI.COMM_WORLD.Get_size()", _mpi4py),
)


def places() -> list[Place]:
    """Return the place of this process according to each initialized runtime of several processes. Cheap."""
    found = []
    for rank_by, size_by, ask in RUNTIMES:
        try:
            answer = ask()
            if answer is not None and 0 <= int(answer[0]) < int(answer[1]) and int(answer[1]) > 1:
                found.append(Place(Told(int(answer[0]), rank_by), Told(int(answer[1]), size_by)))
        except Exception:  # a runtime that is just being initialized or shut down, or a stand-in for it
            continue
    return found
