"""What a rank uses now: its latest sample, which it publishes for the metrics of its job."""

from __future__ import annotations

from typing import Final, NamedTuple

from otel_goodput.semconv import ACCELERATORS, THROTTLE_REASONS

UNKNOWN: Final = -1
WHOLE: Final = 1_000_000  # parts of a share


class UsageNow(NamedTuple):
    """Usage at the moment `at` (ns), as whole numbers; ``UNKNOWN`` is what no library tells.

    Shares are in parts of ``WHOLE``, and are those of the time since the sample before.
    """

    at: int
    user: int  # processor time since the process began, ns
    system: int
    process_memory: int  # resident, bytes
    machine_cpu: int  # share of all cores, of all processes on the machine
    machine_memory: int  # in use
    machine_memory_limit: int
    accelerator: int  # of ``semconv.ACCELERATORS``
    accelerators: int  # that the process computes with
    accelerator_busy: int  # share of the time, their mean
    accelerator_memory: int  # together
    accelerator_memory_limit: int
    accelerator_power: int  # mW, together
    throttled: int  # why clocks are held down: a bit for each of ``THROTTLE_REASONS``

    @property
    def valid(self) -> bool:
        """Whether it can be that of a process."""
        *counts, busy, memory, limit, power, bits = self
        maybe = (self.machine_cpu, busy, memory, limit, power, bits)
        return (
            all(one >= 0 for at, one in enumerate(counts) if at != _MACHINE_CPU)
            and all(one >= UNKNOWN for one in maybe)
            and self.accelerator < len(ACCELERATORS)
            and bits < 1 << len(THROTTLE_REASONS)
            and max(self.machine_cpu, busy) <= WHOLE
        )


_MACHINE_CPU: Final = UsageNow._fields.index("machine_cpu")


def reasons(bits: int) -> tuple[str, ...]:
    """Return the names of the reasons whose bits are set."""
    return tuple(name for at, name in enumerate(THROTTLE_REASONS) if bits >> at & 1)
