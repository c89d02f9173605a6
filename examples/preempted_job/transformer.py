"""A small decoder-only transformer over bytes, in plain JAX."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Params = dict[str, Any]


class Shape(NamedTuple):
    """Sizes of the model; ``vocabulary`` is every value of a byte."""

    vocabulary: int = 256
    context: int = 64
    width: int = 128
    heads: int = 4
    layers: int = 2


def initial(key: jax.Array, shape: Shape) -> Params:
    """Return initial parameters."""
    keys = iter(jax.random.split(key, 2 + 4 * shape.layers))

    def matrix(rows: int, columns: int, scale: float = 1.0) -> jax.Array:
        return jax.random.normal(next(keys), (rows, columns)) * scale / math.sqrt(rows)

    # Additions to the residual stream start small, so that it does not grow with depth.
    small = 1 / math.sqrt(2 * shape.layers)
    width = shape.width
    return {
        "embedding": matrix(shape.vocabulary, width),
        "position": matrix(shape.context, width),
        "blocks": [
            {
                "norm_attention": jnp.ones(width),
                "qkv": matrix(width, 3 * width),
                "out": matrix(width, width, small),
                "norm_mlp": jnp.ones(width),
                "up": matrix(width, 4 * width),
                "down": matrix(4 * width, width, small),
            }
            for _ in range(shape.layers)
        ],
        "norm_last": jnp.ones(width),
    }


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def _attention(x: jax.Array, block: Params, heads: int) -> jax.Array:
    batch, length, width = x.shape
    q, k, v = jnp.split((x @ block["qkv"]).reshape(batch, length, heads, -1), 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width // heads)
    causal = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, width) @ block["out"]


def loss(params: Params, tokens: jax.Array, shape: Shape) -> jax.Array:
    """The mean cross-entropy, in nats per byte, of predicting each next byte of ``tokens`` (batch, context + 1)."""
    x = (params["embedding"][tokens[:, :-1]] + params["position"]) * math.sqrt(shape.width)
    for block in params["blocks"]:
        x = x + _attention(_norm(x, block["norm_attention"]), block, shape.heads)
        x = x + jax.nn.gelu(_norm(x, block["norm_mlp"]) @ block["up"]) @ block["down"]
    log_probabilities = jax.nn.log_softmax(_norm(x, params["norm_last"]) @ params["embedding"].T)
    return -jnp.take_along_axis(log_probabilities, tokens[:, 1:, None], axis=-1).mean()
