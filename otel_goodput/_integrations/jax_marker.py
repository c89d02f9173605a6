"""Marks in jax: a tiny computation over the devices of the step, compiled ahead of time, dispatched behind the work.

It must be a computation, because transfers are not in order with computations; one program over all devices, because
several are not in order; and dispatched by the thread that dispatched the work. A CPU that is split into several
devices keeps the order of programs over the same devices only: there, each set of devices in use gets a program of its
own, once a result on it was late.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from otel_goodput._integrations.compilations import ignored
from otel_goodput._integrations.markers import CombinedMark

NEWEST: Final = 8  # newest arrays that are looked at
MOST: Final = 16  # sets of devices that are marked by programs of their own
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
        self._client: Any = None
        self._programs: tuple[Program, ...] = ()  # that mark now, all of them
        self.order_uncertain = False
        self._targets: list[tuple[Any, ...]] = []  # their devices, with those of programs to be prepared

    @property
    def prepared(self) -> bool:
        return 0 < len(self._programs) == len(self._targets) and self._client is self._bridge._default_backend

    def prepare(self) -> bool:
        """Compile what marks all local devices, and those that :meth:`mark_devices_of` has added."""
        client = self._bridge._default_backend
        if client is None:
            return True  # the backends were cleared, and none has been started since
        local = tuple(client.local_devices())
        if not local or any(_driven_elsewhere(each) for each in (client, local[0])):
            return False
        if self._client is not client:
            self._programs, self._targets, self._client = (), [local], client
            self.order_uncertain = client.platform == "cpu" and len(local) > 1
        with ignored():
            for devices in self._targets[len(self._programs) :]:
                # The first mark of all is waited for; later ones are behind the work in flight.
                self._programs += (_compiled(self._jax, devices, wait=not self._programs),)
        return True

    def mark(self) -> Any:
        if not self.prepared:
            return None  # not yet, or the backends were cleared since
        if not self._clean() or self._config.jax_disable_jit:
            return None
        programs = self._programs
        try:
            marks = [program.call(program.argument) for program in programs]
        except Exception:
            if not any(program.argument.is_deleted() for program in programs):
                raise
            # The user's program has deleted all arrays there are, to free memory: these, too.
            programs = tuple(each._replace(argument=_argument(self._jax, each.devices)) for each in programs)
            self._programs = programs + self._programs[len(programs) :]
            marks = [program.call(program.argument) for program in programs]
        return marks[0] if len(marks) == 1 else CombinedMark(marks)

    def results(self) -> Sequence[Any]:
        """Return the newest arrays other than our own."""
        theirs = (array for array in self._client.live_arrays() if not (array.is_deleted() or _like_a_mark(array)))
        return list(islice(theirs, NEWEST))

    def mark_devices_of(self, late: Sequence[Any]) -> bool:
        """Mark the devices of each of the `late` results by themselves, too."""
        if not self.order_uncertain:
            return False
        local, before = self._client.local_devices(), len(self._targets)
        for array in late:
            devices = tuple(each for each in local if each in array.sharding.addressable_devices)
            if devices and devices not in self._targets and len(self._targets) < MOST:
                self._targets.append(devices)
        return len(self._targets) > before

    def close(self) -> None:
        self._programs, self._targets, self._client = (), [], None


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


def _like_a_mark(array: Any) -> bool:
    """Return whether `array` has one number on each of its devices, as marks and what they are made of."""
    return bool(array.ndim == 1 and array.size == len(array.sharding.device_set) and array.dtype == "int32")


def _driven_elsewhere(thing: Any) -> bool:
    """Return whether the description of a client or a device says that another process drives it."""
    names = ("platform", "platform_version", "runtime_type", "device_kind")
    text = " ".join(str(getattr(thing, name, "")) for name in names).lower()
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
