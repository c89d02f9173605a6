"""How many devices a process has, as its runtimes say it, none of which is started for that."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from otel_goodput._settings.devices import local_devices


class Lock:
    held = False

    def locked(self) -> bool:
        return self.held


def test_a_runtime_is_neither_started_nor_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.cuda", None)
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", None)
    assert local_devices() == 0, "no runtime"
    lock, started, cuda = Lock(), [False], [False]
    bridge = SimpleNamespace(_backend_lock=lock, backends_are_initialized=lambda: started[0])
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(local_device_count=lambda: 4 if started[0] else 1 / 0))
    assert local_devices() == 0, "it is not started"
    started[0], lock.held = True, True
    assert local_devices() == 0, "another thread is just starting it"
    lock.held = False
    assert local_devices() == 4
    used = [0, 10, 0]
    torch = SimpleNamespace(
        is_initialized=lambda: cuda[0], device_count=lambda: 3 if cuda[0] else 1 / 0, memory_reserved=used.__getitem__
    )
    monkeypatch.setitem(sys.modules, "torch.cuda", torch)
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", SimpleNamespace())
    assert local_devices() == 0
    cuda[0] = True
    assert local_devices() == 1, "the others are of other processes"
    used[2] = 5
    assert local_devices() == 2
    monkeypatch.setattr(torch, "memory_reserved", lambda device: 1 / 0)
    assert local_devices() == 0, "it is just being shut down"
