"""Whose clock is right? An asynchronous loop with a slow loader, measured by the host's clock and by the device's.

JAX returns from a step as soon as it is dispatched. By the host's clock, such a loop does nothing but load data,
although the loading costs nothing, because the device works on the previous step meanwhile. So a mark after each step
detects when it leaves the device. The first run turns the marks off for comparison. A thread of the example waits for
every step and measures the exact time.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import tempfile
import threading
import time

import jax
import jax.numpy as jnp

import otel_goodput as goodput

TOLERANCE = 0.03


class Loader:
    """Batches that load slowly, as from a remote store or a slow decoder."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __next__(self) -> jax.Array:
        time.sleep(self.seconds)
        return jnp.full((256, 256), 1e-3)


class Stopwatch:
    """Measures when each step leaves the device by waiting for it: exact, but not suitable for real jobs."""

    def __init__(self) -> None:
        self.busy = 0.0  # seconds
        self._steps: queue.SimpleQueue[tuple[float, jax.Array] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        free = 0.0
        while (step := self._steps.get()) is not None:
            dispatched, loss = step
            loss.block_until_ready()
            now = time.perf_counter()
            self.busy += now - max(free, dispatched)
            free = now

    def put(self, dispatched: float, loss: jax.Array) -> None:
        self._steps.put((dispatched, loss))

    def stop(self) -> float:
        """Seconds that the device was busy."""
        self._steps.put(None)
        self._thread.join()
        return self.busy


def build(seconds: float):
    """Return a compiled step that keeps this machine's device busy for about `seconds`, and its first state."""
    state = jnp.full((256, 256), 1e-3)

    def compiled(layers: int):
        @jax.jit
        def train_step(state, batch):
            state = jax.lax.fori_loop(0, layers, lambda _, x: jnp.tanh(x @ x + batch), state)
            return state, state.mean()

        def taken() -> float:
            began = time.perf_counter()
            jax.block_until_ready(train_step(state, state))
            return time.perf_counter() - began

        taken()  # compiles
        return train_step, min(taken() for _ in range(3))

    _, probe = compiled(50)
    train_step, _ = compiled(max(1, round(50 * seconds / probe)))
    return train_step, state


def train(recorder: goodput.Recorder, train_step, state, loader: Loader, steps: int) -> float:
    """Run a typical asynchronous training loop; return the exact seconds that the device was busy."""
    exact = Stopwatch()
    before = None
    with recorder.job():
        for number in range(steps):
            with recorder.data_loading():
                batch = next(loader)
            with recorder.step(number):
                dispatched = time.perf_counter()
                state, loss = train_step(state, batch)
            exact.put(dispatched, loss)
            if before is not None:
                before.block_until_ready()  # one step behind: the device never runs dry
            before = loss
        loss.block_until_ready()
    busy = exact.stop()
    recorder.shutdown()
    return busy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="steps of each of the two runs (default: 40)")
    parser.add_argument("--step-ms", type=float, default=80, help="a step's time on the device, about (default: 80)")
    parser.add_argument("--load-ms", type=float, default=60, help="time to load a batch (default: 60)")
    options = parser.parse_args()
    if min(options.steps, options.step_ms, options.load_ms) <= 0:
        parser.error("--steps, --step-ms and --load-ms must be positive")
    train_step, state = build(options.step_ms / 1e3)
    loader = Loader(options.load_ms / 1e3)
    shares = {}
    with tempfile.TemporaryDirectory() as directory:
        for clock in ("host", "device"):
            # Never set this to "host" for such a loop: it asserts that the host's clock is right.
            os.environ["OTEL_GOODPUT_DEVICE_CLOCK"] = "host" if clock == "host" else "auto"
            recorder = goodput.Recorder(f"{clock}-clock", directory=directory, exporters="none")
            busy = train(recorder, train_step, state, loader, options.steps)
            account = recorder.report().to_json()
            seconds = account["seconds"]
            on_steps = seconds.get("productive", 0.0) + seconds.get("program_startup", 0.0)
            loading = seconds.get("data_loading", 0.0)
            shares[clock] = on_steps / busy
            print(
                f"by the {clock}'s clock: on steps {on_steps:6.3f} s, loading {loading:6.3f} s"
                f"   (exactly: the device was busy for {busy:6.3f} s of {account['elapsed_s']:.3f} s)"
            )
    error = shares["device"] - 1
    print(f"the device's clock is off by {error:+.2%}, the host's sees {shares['host']:.1%} of the work")
    if abs(error) > TOLERANCE:
        print(f"that is more than {TOLERANCE:.0%}: was the machine busy with something else?", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
