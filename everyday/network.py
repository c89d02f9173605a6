"""A small network on jax. The witness records each call and compilation on the host, and each loss on the device."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from everyday.witness import COMPILE, witness

WIDTH, LAYERS = 256, 24
STAGES = {f"/jax/core/compile/{stage}_duration" for stage in ("jaxpr_trace", "jaxpr_to_mlir_module", "backend_compile")}


def latest(outputs: Any) -> Any:
    """An output that becomes ready with all the others."""
    return jax.tree.leaves(outputs)[-1]


class Compilations:
    """Records the compilations that jax reports on the main thread; those of other threads are not the program's.

    Attributes:
        until: the end of the latest one, Unix ns.
    """

    def __init__(self) -> None:
        self.until = 0
        jax.monitoring.register_event_duration_secs_listener(self._compiled)

    def _compiled(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event in STAGES and threading.current_thread() is threading.main_thread():
            self.until = time.time_ns()
            witness.end(witness.begin(COMPILE, self.until - round(duration_secs * 1e9)), self.until)


compilations = Compilations()


def read(
    kind: str, *, numbers: bool = False, output: Callable[[Any], Any] = latest
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a jitted function: the witness records when its output is ready.

    Args:
        kind: of chore.
        numbers: each call is the next step, and the call itself is part of it.
        output: chooses an array that is not donated from what a call returns.
    """

    def decorate(function: Any) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            if numbers:
                witness.number += 1
            key = witness.begin(kind) if numbers else -1
            begun = time.time_ns()
            outputs = function(*arguments)
            if numbers:
                witness.end(key)
            witness.watch(kind, max(begun, compilations.until), output(outputs))
            return outputs

        return call

    return decorate


def initial() -> tuple[jax.Array, jax.Array]:
    """Weights and the state of the optimizer; jax compiles each of these operations."""
    weights = jax.random.normal(jax.random.key(0), (WIDTH, WIDTH)) / WIDTH**0.5
    batch_of(0)
    return weights, jnp.zeros_like(weights)


def batch_of(number: int) -> jax.Array:
    return jnp.full((WIDTH, WIDTH), 1e-3 * (number % 7))


def loss_of(weights: jax.Array, batch: jax.Array) -> jax.Array:
    outputs, _ = jax.lax.scan(lambda x, _: (jnp.tanh(x @ weights + batch), None), batch, length=LAYERS)
    return (outputs**2).mean()


def update(state: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
    """A training step: returns the next state and the loss."""
    weights, momentum = state
    loss, gradient = jax.value_and_grad(loss_of)(weights, batch)
    momentum = 0.9 * momentum + gradient
    return (weights - 0.1 * momentum, momentum), loss
