"""What the device clock watches: marks behind dispatched work, or arrays that users observe.

:class:`Marker` is all that the clock needs of a runtime. To add another runtime, implement it and enter it in the table
of ``async_runtimes``.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import chain, islice
from types import MethodType
from typing import Any, Final, NamedTuple, Protocol

from otel_goodput._integrations.jax import ignored
from otel_goodput._recording.short_span import ALONE
from otel_goodput._runtime.guard import report_once
from otel_goodput._text.redact import redacting_logger

logger = redacting_logger("otel_goodput")

COLLECTS_IN_C: Final = sys.version_info < (3, 12)  # garbage is collected where C code allocates, too
FIRST_CHECKS: Final = 3  # marks whose order is checked at the beginning;
CHECKED: Final = 1000  # then one in so many,
UNCERTAIN_CHECKED: Final = 4  # or, if the order is uncertain, in so few
TWICE: Final = 2  # checks in a row with most results late; a single one may be due to a transfer for a later step


class Mark(Protocol):
    """Becomes ready when all that was dispatched before it is done. Only the clock has references to it."""

    def is_ready(self) -> bool:
        """Return whether the mark is ready; never wait."""

    def is_deleted(self) -> bool:
        """Return whether :meth:`is_ready` can no longer be called; False if that cannot happen."""


class Marker:
    """Sets marks in one runtime."""

    # Its marks have a block_until_ready() that releases the GIL, so that a thread can wait for a mark, not poll it.
    waits = False
    order_uncertain = False  # a mark may be ready before the work in front of it: the order must be checked often

    @property
    def prepared(self) -> bool:
        """Whether marks can be set without :meth:`prepare`."""
        return True

    def prepare(self) -> bool:
        """Prepare what marks need, on a background thread; it may take long. Return False if there will be no marks."""
        return True

    def mark(self) -> Mark | None:
        """Set a mark behind what this thread has dispatched so far; return None if that is impossible now.

        Never waits for the device, starts a runtime, or talks to another process.
        """
        raise NotImplementedError

    def results(self) -> Sequence[Mark]:
        """Return some results of the latest work, to check the order with; none if the order is documented."""
        return ()

    def mark_devices_of(self, late: Sequence[Any]) -> bool:
        """From now on also mark the devices of the results `late`, which were not ready when the mark behind them was.

        Returns: False if there is no more to mark.
        """
        return False

    def close(self) -> None:
        """Undo what was changed in the runtime."""


def ready(array: Any) -> bool | None:
    """Return whether an array or a mark has left the device; None if it was deleted, so that nobody can know."""
    # jax crashes the process if it is asked whether a deleted array is ready, or if the array is deleted while it is
    # asked; and another thread can delete it at any bytecode. So from the first question to the last answer no
    # bytecode may run: not ours, and not that of a garbage collection, whose callbacks (jax has one) are bytecode.
    # `zip` asks one question after the other, in C, and stops at the first that is answered by its sentinel.
    is_ready = array.is_ready
    asking: Iterator[Any] = islice(zip(iter(array.is_deleted, True), iter(is_ready, None), strict=False), 1)
    pausing = COLLECTS_IN_C and not isinstance(is_ready, MethodType) and gc.isenabled()
    if pausing:
        asking = chain(iter(gc.disable, None), asking, iter(gc.enable, None))
    try:
        answers = list(asking)
    except Exception:
        if pausing:
            gc.enable()
        if array.is_deleted():  # donated meanwhile, by a thread that did not hold the GIL
            return None
        raise
    return answers[0][1] if answers else None


class CombinedMark(list[Any]):
    """Several marks as one, of one runtime or of several."""

    def is_deleted(self) -> bool:
        return any(mark.is_deleted() for mark in self)

    def is_ready(self) -> bool:
        return all(map(ready, self))

    def block_until_ready(self) -> None:
        for mark in self:
            mark.block_until_ready()


class MarkingOrder:
    """Checks that marks become ready in order, with results of the work before them."""

    def __init__(self) -> None:
        self._marks = 0
        self._bad = 0
        self.wrong = False  # marks became ready before the work in front of them, so they cannot be trusted

    def due(self, marker: Marker) -> bool:
        """Count a mark that was set; return whether it is to be checked."""
        self._marks = count = self._marks + 1
        each = UNCERTAIN_CHECKED if marker.order_uncertain else CHECKED
        return count <= FIRST_CHECKS or not count % each or 0 < self._bad < TWICE

    def check(self, results: Sequence[Any], marker: Marker) -> bool:
        """Check that `results` are ready, now that the mark behind them is; return False if that mark says nothing.

        If some are late, the `marker` marks their devices, too. If it cannot, and most were late in ``TWICE`` checks
        in a row, marks are `wrong` for good.
        """
        answers = [(result, answer) for result in results if (answer := ready(result)) is not None]
        late = [result for result, answer in answers if not answer]
        if late and marker.mark_devices_of(late):
            self._bad = 0
            return False
        self._bad = self._bad + 1 if 2 * len(late) > len(answers) else 0
        if self._bad >= TWICE and not self.wrong:
            self.wrong = True
            logger.warning(
                "marks became ready before the work dispatched ahead of them: this backend does not run work in "
                "order, so the device times of steps are unknown from now on; pass a result of each step to "
                "goodput.observe()"
            )
        return not self.wrong


class Outputs:
    """Chooses one of the leaves of an output, and learns which leaves are donated to the next step."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}  # number of leaves: index of the one that is observed
        self._donated: set[tuple[int, int]] = set()  # (number of leaves, index) of leaves that turned out to be donated

    def choose(self, output: Any) -> tuple[Any, tuple[int, int]] | None:
        """Return the array to watch and its place (number of leaves, index); None, logged once, if there is none."""
        place = ALONE
        if not hasattr(output, "is_ready"):
            message = "goodput.observe() was given %s, which contains no jax array: nothing is observed"
            smallest = self._smallest(output)
            if smallest is None:
                report_once("observe", message, type(output).__name__)
                return None
            output, place = smallest
        if output.is_deleted():
            self.refuse(place)
            return None
        return output, place

    def _smallest(self, tree: Any) -> tuple[Any, tuple[int, int]] | None:
        """Return the smallest array not known to be donated. Of several the last, because results follow state."""
        jax = sys.modules.get("jax")
        leaves = [] if jax is None else jax.tree_util.tree_leaves(tree)
        count = len(leaves)
        best = self._places.get(count)
        if best is None or not hasattr(leaves[best], "is_ready"):
            known = [at for at in range(count) if hasattr(leaves[at], "is_ready") and (count, at) not in self._donated]
            if not known:
                return None
            best = self._places[count] = min(reversed(known), key=lambda at: leaves[at].size)
        return leaves[best], (count, best)

    def refuse(self, place: tuple[int, int]) -> None:
        """Choose another leaf from now on: the array at `place` was donated or deleted."""
        self._donated.add(place)
        self._places.pop(place[0], None)
        report_once(
            "observe donated",
            "goodput.observe() was given an array that is donated to the next step, or deleted: pass an output that is "
            "not donated, such as the loss; until then, it is unknown when steps end on the device",
        )


NEWEST: Final = 8  # newest arrays that are looked at
MOST: Final = 16  # sets of devices that are marked by programs of their own
_ELSEWHERE: Final = ("pathways", "proxy")  # backends whose devices another process drives


class Program(NamedTuple):
    """What marks `devices`: `call` of `argument`."""

    devices: tuple[Any, ...]
    argument: Any
    call: Callable[[Any], Any]


class JaxMarker(Marker):
    """Sets marks in jax: a tiny computation over the devices of the step, dispatched behind the work.

    It is a computation, because transfers are not in order with computations; one program over all devices, because
    several are not in order; and dispatched by the thread that dispatched the work. A CPU that is split into several
    devices keeps the order of programs over the same devices only: there, each set of devices in use gets a program of
    its own, once a result on it was late. Something else must have started jax's backend.
    """

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
        """Return the newest arrays other than our own, which have one number on each of their devices."""
        theirs = (
            array
            for array in self._client.live_arrays()
            if not array.is_deleted()
            and not (array.ndim == 1 and array.size == len(array.sharding.device_set) and array.dtype == "int32")
        )
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


def jax_started() -> bool:
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


_CAPTURES: Final = {"capture_begin": True, "capture_end": False}  # whether it begins a capture


class EventMark(NamedTuple):
    """One event. It is polled, never waited for. CUDA forbids both while any thread captures a graph."""

    event: Any
    marker: TorchMarker

    def is_ready(self) -> bool:
        # No other thread can begin a capture between the two: query() holds the GIL.
        return not self.marker.capturing and bool(self.event.query())

    def is_deleted(self) -> bool:
        return False


class TorchMarker(Marker):
    """Sets marks in the current stream of PyTorch's current device: events of CUDA, ROCm or XPU.

    That such a stream is in order is documented, and that an event is done when all work before it is. `device` is
    PyTorch's module of that kind of device, as ``torch.cuda``.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self.capturing = 0  # graphs that are being captured, on all threads
        self._graph = getattr(device, "CUDAGraph", None) or getattr(device, "XPUGraph", None)
        self._captures = getattr(device, "is_current_stream_capturing", lambda: False)
        self._originals: dict[str, Any] = {}
        if all(hasattr(self._graph, name) for name in _CAPTURES):
            for name, begins in _CAPTURES.items():
                self._count(name, begins=begins)

    def _count(self, name: str, *, begins: bool) -> None:
        """Wrap a method that begins or ends a capture, to count captures: PyTorch shows other threads none."""
        original = getattr(self._graph, name)

        @wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if begins:
                self.capturing += 1
            try:
                return original(*args, **kwargs)
            except BaseException:
                if begins:
                    self.capturing -= 1
                raise
            finally:
                if not begins:
                    self.capturing = max(0, self.capturing - 1)

        self._originals[name] = self._graph.__dict__.get(name) if self._graph is not None else None
        setattr(self._graph, name, counted)

    def mark(self) -> EventMark | None:
        if self.capturing or self._captures():
            return None
        event = self._device.Event()
        event.record()
        return EventMark(event, self)

    def close(self) -> None:
        for name, original in self._originals.items():
            if original is None:
                delattr(self._graph, name)  # the original was inherited
            else:
                setattr(self._graph, name, original)
        self._originals.clear()


def torch_marker(name: str = "cuda") -> TorchMarker | None:
    """Return a marker for devices of that kind in this process's PyTorch; None if it has no events for them."""
    device = sys.modules.get(f"torch.{name}") or getattr(sys.modules.get("torch"), name, None)
    return None if device is None or not hasattr(device, "Event") else TorchMarker(device)
