"""Samples of the use of processor and memory, taken by a thread of its own; off unless an interval is given.

psutil (extra ``usage``) reads processor and memory. Once accelerators are in use, jax or PyTorch tells their memory,
and their driver how busy they are (``nvml.py``, ``libtpu.py``).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from otel_goodput._integrations import flops
from otel_goodput._integrations.accelerators import Accelerators, Reading
from otel_goodput._integrations.libtpu import Libtpu
from otel_goodput._integrations.nvml import Nvml
from otel_goodput._journal.usage import Machine, Usage, UsageSheet
from otel_goodput._journal.usage_now import UNKNOWN, WHOLE, UsageNow
from otel_goodput._runtime.guard import containing, report_once, started
from otel_goodput._text.durations import NS
from otel_goodput.semconv import ACCELERATORS, Accelerator

_LEAST_NS: Final = NS // 10  # a last sample shorter than this would say nothing
_IDLE: Final = ("idle", "iowait")
_COUNTED_TWICE: Final = ("guest", "guest_nice")  # they are in user and nice already
_NOTHING: Final = Reading(Accelerator.NONE, 0, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)


class UsageSampler:
    """Samples this process and its machine until it is closed, every `interval` ns; `clock`: ns since the epoch."""

    def __init__(self, sheet: UsageSheet, interval: int, clock: Callable[[], int]) -> None:
        self._sheet = sheet
        self._interval_s = interval / NS
        self._clock = clock
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            # On the caller's thread: a child forked while another thread imports a module can never import it itself.
            import psutil
        except ImportError:
            report_once("usage", "CPU and memory usage is not sampled: psutil is not installed")
            return
        self._psutil: Any = psutil
        self._before: tuple[int, int, int] | None = None
        self._accelerators = Accelerators([Nvml, Libtpu])
        self._try()  # here, because on a busy machine the thread may begin late, and what is used until then is missed
        thread = threading.Thread(target=self._run, name="goodput-usage", daemon=True)
        if started(thread, "CPU and memory usage is not sampled"):
            self._thread = thread

    def close(self, seconds: float) -> None:
        """Take a last sample and end; waits `seconds` at most."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(max(0.0, seconds))
            self._accelerators.close()

    def _run(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(self._interval_s)
            self._try()

    def _try(self) -> None:
        with containing("usage of processor and memory"):  # code of other packages, and what they read
            self._before = self._sample(self._before)

    def _sample(self, before: tuple[int, int, int] | None) -> tuple[int, int, int]:
        """Take a sample since `before`; returns the time, and the processor time of the process and the machine, ns."""
        psutil = self._psutil
        process = psutil.Process()
        own = process.cpu_times()
        machine = psutil.cpu_times()._asdict()
        busy = sum(machine.values()) - sum(machine.get(name, 0.0) for name in (*_IDLE, *_COUNTED_TWICE))
        now = (self._clock(), round((own.user + own.system) * NS), round(busy * NS))
        if before is None or now[0] - before[0] < _LEAST_NS:
            return now if before is None else before
        memory = psutil.virtual_memory()
        reading = self._accelerators.read() or _NOTHING
        used, total, kind = _of_jax() or _of_torch() or (reading.memory, reading.memory_limit, reading.kind)
        length, own_ns, busy_ns = (max(0, later - earlier) for earlier, later in zip(before, now, strict=True))
        cores, resident, in_use = psutil.cpu_count() or 1, process.memory_info().rss, memory.total - memory.available
        self._sheet.add(
            Machine(cores, memory.total, total),
            Usage(now[0], length, own_ns, busy_ns, resident, in_use, used, *_over(length, reading)),
            UsageNow(
                at=now[0],
                user=round(own.user * NS),
                system=round(own.system * NS),
                process_memory=resident,
                machine_cpu=min(WHOLE, busy_ns * WHOLE // (length * cores)),
                machine_memory=in_use,
                machine_memory_limit=memory.total,
                accelerator=ACCELERATORS.index(reading.kind or kind),
                accelerators=reading.devices,
                accelerator_busy=UNKNOWN if reading.busy == UNKNOWN else round(reading.busy * WHOLE),
                accelerator_memory=used,
                accelerator_memory_limit=total,
                accelerator_power=reading.power,
                throttled=reading.throttled,
            ),
        )
        return now


def _over(length: int, reading: Reading) -> tuple[int, int, int, int, int]:
    """What a reading says of the interval before it, as the last members of a :class:`Usage`."""
    time = 0 if reading.busy == UNKNOWN else length * reading.devices
    energy = reading.energy if reading.energy != UNKNOWN else max(0, reading.power) * length // NS
    bits = max(0, reading.throttled)
    return time, round(time * max(0.0, reading.busy)), round(time * reading.held_down), energy, bits


def _of_jax() -> tuple[int, int, str] | None:
    if "jax" not in sys.modules or not flops.backend_started():
        return None
    devices = sys.modules["jax"].local_devices()
    known = [stats for device in devices if (stats := device.memory_stats())]
    if not known or not all("bytes_in_use" in stats and "bytes_limit" in stats for stats in known):
        return None  # as on the CPU
    used, total = (sum(int(stats[name]) for stats in known) for name in ("bytes_in_use", "bytes_limit"))
    platform = getattr(devices[0], "platform", "")
    return used, total, platform if platform in ACCELERATORS else Accelerator.NONE


def _of_torch() -> tuple[int, int, str] | None:
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return None
    devices = range(cuda.device_count())
    used = sum(int(cuda.memory_allocated(device)) for device in devices)
    # Devices that this process does not use are another's.
    mine = [device for device in devices if cuda.memory_reserved(device)]
    if not mine:
        return None
    return used, sum(int(cuda.get_device_properties(device).total_memory) for device in mine), Accelerator.GPU
