"""One execution of one step, while it runs."""

from __future__ import annotations

from typing import Any

from otel_goodput.accounting.lenses import EXCLUDED
from otel_goodput.accounting.stretches import Stretch


class Execution:
    """One execution of a step, from its start until its fate is known.

    Attributes:
        number: the step's number.
        key: identity of its phase.
        start: when it was dispatched, ns.
        net: its own time so far, ns.
        device_end: when it left the device, ns; None where nobody looks (not an observed step).
        on_device: it waits for, or occupies, the device.
        on_host: its phase is open.
        failed: left early.
        doomed: the run has gone back before it since (rule R4): it is lost even if it completes.
        shares: own time by lens bit, ns; None while no lens has been open.
        pieces: of what may be the first step of its stretch to complete: own time in order with the mask of open
        lenses.
        marked, parts: how much of it rolling windows have in closed buckets, and where.
    """

    net = 0
    on_host = True
    on_device = failed = doomed = False
    shares: dict[int, int] | None = None
    pieces: list[tuple[int, int]] | None = None
    marked = 0
    parts: tuple[tuple[int, int], ...] = ()

    def __init__(self, number: int, key: int, start: int, stretch: Stretch, device_end: int | None) -> None:
        self.number = number
        self.key = key
        self.start = start
        self.stretch = stretch
        self.device_end = device_end
        if device_end is not None:
            self.on_device = True
        if stretch.first_net is None:
            self.pieces = []

    @property
    def visible(self) -> int:
        """Own time outside of exclusions, ns."""
        return self.net if self.shares is None else self.net - self.shares.get(EXCLUDED, 0)

    def share(self, bit: int, spent: int) -> None:
        """`spent` ns of own time passed while the lens `bit` was open."""
        if self.shares is None:
            self.shares = {}
        self.shares[bit] = self.shares.get(bit, 0) + spent

    def shared(self, bit: int) -> int:
        """Own time while the lens `bit` was open, ns."""
        return 0 if self.shares is None else self.shares.get(bit, 0)

    def clone(self, stretch: Stretch) -> Execution:
        twin = Execution.__new__(Execution)
        twin.__dict__.update(self.__dict__)
        twin.stretch = stretch
        twin.shares = None if self.shares is None else self.shares.copy()
        twin.pieces = None if self.pieces is None else self.pieces.copy()
        return twin

    def to_state(self) -> list[Any]:
        return [
            self.number,
            self.key,
            self.start,
            self.device_end,
            self.on_device,
            self.on_host,
            self.net,
            self.failed,
            self.doomed,
            list((self.shares or {}).items()),
            self.pieces,
        ]

    @classmethod
    def from_state(cls, state: list[Any], stretch: Stretch) -> Execution:
        execution = cls(state[0], state[1], state[2], stretch, state[3])
        (execution.on_device, execution.on_host, execution.net, execution.failed, execution.doomed, shares, pieces) = (
            state[4:]
        )
        execution.shares = dict(shares) or None
        execution.pieces = None if pieces is None else [(duration, mask) for duration, mask in pieces]
        return execution
