"""A small network on jax, and the witness beside it: each call is read on the host, each loss on the device."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp

from everyday.witness import COMPILE, witness

WIDTH, LAYERS = 256, 24


def latest(outputs: Any) -> Any:
    """What becomes ready with all the rest."""
    return jax.tree.leaves(outputs)[-1]


def read(
    kind: str, *, numbers: bool = False, output: Callable[[Any], Any] = latest
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a jitted function: the witness reads when it compiles and when its output is ready.

    Args:
        kind: of chore.
        numbers: each call is the next step, and the call itself is part of it.
        output: an array that is not donated, of what a call gives back.
    """

    def decorate(function: Any) -> Callable[..., Any]:
        # Of what others make of jit, the first call is taken for the one that compiles.
        calls = count()
        known = getattr(function, "_cache_size", lambda: min(next(calls), 1))

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            if numbers:
                witness.number += 1
            before = known()
            key = witness.begin(kind) if numbers else -1
            begun = time.time_ns()
            outputs = function(*arguments)
            now = time.time_ns()
            if known() > before:
                witness.end(witness.begin(COMPILE, begun), now)
                begun = now
            if numbers:
                witness.end(key)
            witness.watch(kind, begun, output(outputs))
            return outputs

        return call

    return decorate


def initial() -> tuple[jax.Array, jax.Array]:
    """Weights, and what the optimizer remembers of them; jax compiles each of these operations."""
    with witness.of(COMPILE):
        weights = jax.random.normal(jax.random.key(0), (WIDTH, WIDTH)) / WIDTH**0.5
        batch_of(0)
        return weights, jnp.zeros_like(weights)


def batch_of(number: int) -> jax.Array:
    return jnp.full((WIDTH, WIDTH), 1e-3 * (number % 7))


def loss_of(weights: jax.Array, batch: jax.Array) -> jax.Array:
    outputs, _ = jax.lax.scan(lambda x, _: (jnp.tanh(x @ weights + batch), None), batch, length=LAYERS)
    return (outputs**2).mean()


def update(state: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
    """The step of a training: the next state, and the loss."""
    weights, momentum = state
    loss, gradient = jax.value_and_grad(loss_of)(weights, batch)
    momentum = 0.9 * momentum + gradient
    return (weights - 0.1 * momentum, momentum), loss
