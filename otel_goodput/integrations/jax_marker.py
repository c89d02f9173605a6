"""Marks in jax: a tiny computation over the devices of the step, compiled ahead of time, dispatched behind the work.

It must be a computation, because transfers are not in order with computations; one program over all devices, because
several are not in order; and dispatched by the thread that dispatched the work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from otel_goodput.integrations.compilations import unheard

NEWEST: Final = 8  # newest arrays that are looked at
_ELSEWHERE: Final = ("pathways", "proxy")  # backends whose devices another process drives


class JaxMarker:
    """Sets marks in jax. Something else must have started jax's backend."""

    waits = True

    def __init__(self, jax: Any, bridge: Any, tracing: Callable[[], bool]) -> None:
        self._jax = jax
        self._bridge = bridge
        self._clean = tracing
        self._config = jax.config
        self._call: Callable[[Any], Any] | None = None
        self._argument: Any = None
        self._client: Any = None
        self._devices: tuple[Any, ...] = ()
        self._wanted: tuple[Any, ...] = ()  # devices to mark; empty: all
        self._all = False  # always mark all devices: a part of them was not enough

    @property
    def prepared(self) -> bool:
        return self._call is not None and self._client is self._bridge._default_backend

    def prepare(self) -> bool:
        """Compile the marker for all local devices, or for those with the latest results."""
        client = self._bridge._default_backend
        if client is None:
            return True  # the backends were cleared, and none has been started since
        local = tuple(client.local_devices())
        if not local or any(_driven_elsewhere(each) for each in (client, local[0])):
            return False
        devices = local
        if self._client is client and set(self._wanted) < set(local):
            devices = self._wanted or local
        with unheard():
            argument, call = _compiled(self._jax, devices)
        self._argument, self._call, self._devices, self._client = argument, call, devices, client
        return True

    def mark(self) -> Any:
        call = self._call
        if call is None or self._client is not self._bridge._default_backend:
            return None  # not prepared yet, or the backends were cleared since
        if not self._clean() or self._config.jax_disable_jit:
            return None
        try:
            return call(self._argument)
        except Exception:
            if not self._argument.is_deleted():
                raise
        # The program has deleted all arrays there are, to free memory: this one, too.
        self._argument = _argument(self._jax, self._devices)
        return call(self._argument)

    def results(self) -> Sequence[Any]:
        """Return the newest arrays, and note which devices they are on."""
        newest = [array for array in self._client.live_arrays()[:NEWEST] if not array.is_deleted()]
        self._find_devices(newest)
        return newest

    def _find_devices(self, arrays: Sequence[Any]) -> None:
        """If all the newest results are on a part of the devices, have the next marks set on that part."""
        found: set[Any] = set()
        for array in arrays:
            found |= array.sharding.addressable_devices
        if not found or self._all:
            return
        local = tuple(self._client.local_devices())
        wanted = tuple(device for device in local if device in found) if found < set(local) else ()
        if wanted != self._wanted and set(wanted or local) != set(self._devices):
            self._wanted = wanted
            self._call = None

    def widen(self) -> bool:
        if self._all or len(self._devices) == len(self._client.local_devices()):
            return False
        self._all, self._wanted, self._call = True, (), None
        return True

    def close(self) -> None:
        self._call = self._argument = self._client = None


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


def _driven_elsewhere(thing: Any) -> bool:
    """Return whether the description of a client or a device says that another process drives it."""
    told = (str(getattr(thing, name, "")) for name in ("platform", "platform_version", "runtime_type", "device_kind"))
    text = " ".join(told).lower()
    return any(word in text for word in _ELSEWHERE)


def _argument(jax: Any, devices: Sequence[Any]) -> Any:
    """Return an array with one number on each device."""
    import numpy as np

    sharding = jax.sharding.SingleDeviceSharding(devices[0])
    value = np.zeros(len(devices), np.int32)
    if len(devices) > 1:
        mesh = jax.sharding.Mesh(np.array(devices), ("devices",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("devices"))
    return jax.device_put(value, sharding)


def _compiled(jax: Any, devices: Sequence[Any]) -> tuple[Any, Callable[[Any], Any]]:
    argument = _argument(jax, devices)

    def goodput_marker(x: Any) -> Any:
        return x + 1

    call = jax.jit(goodput_marker).lower(argument).compile()
    call(argument).block_until_ready()
    return argument, call
