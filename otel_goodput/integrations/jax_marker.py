"""Marks in jax: a tiny computation over the devices of the step, compiled ahead of time, dispatched behind the work.

It must be a computation, because transfers are not in order with computations; one program over all devices, because
several are not in order; and dispatched by the thread that dispatched the work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from otel_goodput.integrations.compilations import unheard
from otel_goodput.integrations.watcher import ready

NEWEST: Final = 8  # newest arrays that are looked at
NARROWINGS: Final = 8  # so often a part of the devices is marked in place of all: each time a program is compiled
_ELSEWHERE: Final = ("pathways", "proxy")  # backends whose devices another process drives


class Program(NamedTuple):
    """What marks `devices`: `call` of `argument`."""

    devices: tuple[Any, ...]
    argument: Any
    call: Callable[[Any], Any]


class JaxMarker:
    """Sets marks in jax. Something else must have started jax's backend."""

    waits = True

    def __init__(self, jax: Any, bridge: Any, tracing: Callable[[], bool]) -> None:
        self._jax = jax
        self._bridge = bridge
        self._clean = tracing
        self._config = jax.config
        self._program: Program | None = None  # that marks now
        self._client: Any = None
        self._wanted: tuple[Any, ...] = ()  # devices to mark; empty: all
        self._programs: dict[tuple[Any, ...], Program] = {}  # by devices
        self._split = False  # the devices are parts of a CPU, which are in order each by itself only
        self._narrowings = 0  # how often marks went from all devices to a part of them

    @property
    def doubtful(self) -> bool:
        return self._split or bool(self._wanted)

    @property
    def prepared(self) -> bool:
        return self._program is not None and self._client is self._bridge._default_backend

    def prepare(self) -> bool:
        """Compile the marker for all local devices, or for those with the latest results."""
        client = self._bridge._default_backend
        if client is None:
            return True  # the backends were cleared, and none has been started since
        local = tuple(client.local_devices())
        if not local or any(_driven_elsewhere(each) for each in (client, local[0])):
            return False
        if self._client is not client:
            self._programs.clear()
            self._wanted = ()
            self._split = client.platform == "cpu" and len(local) > 1
        devices = self._wanted or local
        with unheard():
            self._programs[devices] = _compiled(self._jax, devices, wait=not self._programs)
        self._client = client
        self._program = self._programs.get(self._wanted or local)  # others may be wanted by now
        return True

    def mark(self) -> Any:
        program = self._program
        if program is None or self._client is not self._bridge._default_backend:
            return None  # not prepared yet, or the backends were cleared since
        if not self._clean() or self._config.jax_disable_jit:
            return None
        try:
            return program.call(program.argument)
        except Exception:
            if not program.argument.is_deleted():
                raise
        # The user's program has deleted all arrays there are, to free memory: this one, too.
        program = program._replace(argument=_argument(self._jax, program.devices))
        self._program = self._programs[program.devices] = program
        return program.call(program.argument)

    def results(self) -> Sequence[Any]:
        """Return the newest arrays other than our own; mark their devices if some are computed on others."""
        theirs = (array for array in self._client.live_arrays() if not (array.is_deleted() or _like_a_mark(array)))
        newest = list(islice(theirs, NEWEST))
        if self._wanted:
            used = _devices_of(array for array in newest if ready(array) is False)
            if not used <= set(self._wanted):
                self._mark_on(used)
        return newest

    def retarget(self, late: Sequence[Any], most: bool) -> bool:
        """Mark only the devices of the `late` results; if that was tried already and `most` are late, all again."""
        used = _devices_of(late)
        if self._wanted:
            if most:
                self._mark_on(set())
            return most
        if self._narrowings >= NARROWINGS or not 0 < len(used) < len(self._client.local_devices()):
            return False
        self._narrowings += 1
        self._mark_on(used)
        return True

    def _mark_on(self, devices: set[Any]) -> None:
        """Have the next marks set on `devices`, on all if there are none."""
        local = tuple(self._client.local_devices())
        wanted = tuple(device for device in local if device in devices) or local
        self._wanted = wanted if len(wanted) < len(local) else ()
        self._program = self._programs.get(wanted)

    def close(self) -> None:
        self._program = self._client = None
        self._programs.clear()


def started() -> bool:
    """Return whether jax has a backend. Neither starts one nor waits for one that is being started."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return getattr(bridge, "_default_backend", None) is not None


def jax_marker() -> JaxMarker | None:
    """Return a marker for this process's jax; None if this jax lacks internals that the marker needs."""
    jax, bridge = sys.modules.get("jax"), sys.modules.get("jax._src.xla_bridge")
    clean = getattr(sys.modules.get("jax._src.core"), "trace_state_clean", None)
    if jax is None or clean is None or bridge is None:
        return None
    return JaxMarker(jax, bridge, clean)


def _devices_of(arrays: Iterable[Any]) -> set[Any]:
    return {device for array in arrays for device in array.sharding.addressable_devices}


def _like_a_mark(array: Any) -> bool:
    """Return whether `array` has one number on each of its devices, as marks and what they are made of."""
    return bool(array.ndim == 1 and array.size == len(array.sharding.device_set) and array.dtype == "int32")


def _driven_elsewhere(thing: Any) -> bool:
    """Return whether the description of a client or a device says that another process drives it."""
    told = (str(getattr(thing, name, "")) for name in ("platform", "platform_version", "runtime_type", "device_kind"))
    text = " ".join(told).lower()
    return any(word in text for word in _ELSEWHERE)


def _argument(jax: Any, devices: tuple[Any, ...]) -> Any:
    """Return an array with one number on each device."""
    import numpy as np

    sharding = jax.sharding.SingleDeviceSharding(devices[0])
    value = np.zeros(len(devices), np.int32)
    if len(devices) > 1:
        mesh = jax.sharding.Mesh(np.array(devices), ("devices",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("devices"))
    return jax.device_put(value, sharding)


def _compiled(jax: Any, devices: tuple[Any, ...], *, wait: bool) -> Program:
    """Return what marks `devices`; `wait` for a first mark, which is behind all work in flight."""
    argument = _argument(jax, devices)

    def goodput_marker(x: Any) -> Any:
        return x + 1

    call = jax.jit(goodput_marker).lower(argument).compile()
    mark = call(argument)
    if wait:
        mark.block_until_ready()
    return Program(devices, argument, call)
