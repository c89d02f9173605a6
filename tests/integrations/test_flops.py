"""FLOPs of real jax functions against formulas worked out by hand."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from otel_goodput._runtime import guard

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax import lax

from otel_goodput._integrations.flops import Flops, count_flops, tally

pytestmark = pytest.mark.jax

LAYERS, BATCH, WIDTH, HIDDEN = 24, 4, 8, 32
BLOCK = 2 * 2 * BATCH * WIDTH * HIDDEN  # up and down


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


X = shape(BATCH, WIDTH)
WEIGHTS = {"up": shape(LAYERS, WIDTH, HIDDEN), "down": shape(LAYERS, HIDDEN, WIDTH)}


def block(x: Any, layer: Any) -> tuple[Any, None]:
    return jnp.tanh(jnp.tanh(x @ layer["up"]) @ layer["down"]), None


def scanned(body: Any) -> Any:
    def loss(x: Any, weights: Any) -> Any:
        return jnp.sum(lax.scan(body, x, weights)[0] ** 2)

    return loss


def gradient(loss: Any) -> Any:
    return jax.value_and_grad(loss, argnums=(0, 1))


@pytest.fixture(autouse=True)
def unsaid() -> Iterator[None]:
    """What is logged once is logged again in the next test."""
    before = guard.contained.copy()
    guard.contained.clear()
    yield
    guard.contained.clear()
    guard.contained.update(before)


# --- products ---------------------------------------------------------------------------------------------------------


def test_a_product_of_matrices() -> None:
    assert count_flops(jnp.dot, shape(3, 5), shape(5, 7)) == 2 * 3 * 5 * 7
    assert count_flops(jnp.vdot, shape(100), shape(100)) == 200
    assert count_flops(jnp.dot, shape(3, 5, dtype=jnp.complex64), shape(5, 7, dtype=jnp.complex64)) == 8 * 3 * 5 * 7


def test_attention_by_einsum() -> None:
    b, q, k, h, d = 2, 16, 24, 4, 8

    def attention(query: Any, key: Any, value: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / d**0.5
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)

    arguments = shape(b, q, h, d), shape(b, k, h, d), shape(b, k, h, d)
    forward = 2 * (2 * b * h * q * k * d)
    assert count_flops(attention, *arguments) == forward
    grad = jax.grad(lambda *given: jnp.sum(attention(*given) ** 2), argnums=(0, 1, 2))
    assert count_flops(grad, *arguments) == 3 * forward


def test_element_wise_work_is_free() -> None:
    assert tally(lambda x: jnp.sum(jnp.sort(jnp.exp(x) * x).cumsum()), shape(1000)) == Flops(0, 0)


def test_experts_by_ragged_products() -> None:
    tokens, experts = 64, 4
    flops = count_flops(lax.ragged_dot, shape(tokens, 8), shape(experts, 8, 16), shape(experts, dtype=jnp.int32))
    assert flops == 2 * tokens * 8 * 16  # each token meets one expert


def test_a_convolution_without_padding() -> None:
    flops = count_flops(lambda x, k: lax.conv(x, k, (2, 2), "VALID"), shape(2, 3, 17, 17), shape(8, 3, 5, 5))
    assert flops == 2 * (2 * 8 * 7 * 7) * (3 * 5 * 5)


def met(size: int, window: int, stride: int, low: int, outputs: int, holes: int, spread: int) -> int:
    """By trying all: pairs of output and weight that lie over an input."""
    places = (o * stride + w * spread - low for o, w in product(range(outputs), range(window)))
    return sum(place % holes == 0 and 0 <= place // holes < size for place in places)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("low", "high"), [(0, 0), (1, 1), (2, 0), (4, 5)])
@pytest.mark.parametrize("holes", [1, 2, 3])
@pytest.mark.parametrize("spread", [1, 2])
def test_padding_and_holes_are_not_multiplied(stride: int, low: int, high: int, holes: int, spread: int) -> None:
    size, window = 9, 4

    def convolve(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(x, k, (stride,), [(low, high)], lhs_dilation=(holes,), rhs_dilation=(spread,))

    x, k = shape(2, 3, size), shape(5, 3, window)
    outputs = jax.eval_shape(convolve, x, k).shape[2]
    assert count_flops(convolve, x, k) == 2 * 2 * 5 * 3 * met(size, window, stride, low, outputs, holes, spread)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_the_gradient_of_a_convolution_is_three_times_it(groups: int, stride: int, padding: str) -> None:
    def convolve(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(
            x,
            k,
            (stride, stride),
            padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    x, k = shape(2, 10, 10, 4), shape(3, 3, 4 // groups, 6)
    forward = count_flops(convolve, x, k)
    assert 0 < forward <= 2 * (2 * 10 * 10 * 6) * (3 * 3 * 4 // groups)
    assert count_flops(gradient(lambda x, k: jnp.sum(convolve(x, k) ** 2)), x, k) == 3 * forward


# --- what holds others ------------------------------------------------------------------------------------------------


def test_the_gradient_of_24_scanned_layers_is_three_times_them() -> None:
    loss = scanned(block)
    assert tally(loss, X, WEIGHTS) == Flops(LAYERS * BLOCK, LAYERS * BLOCK)
    assert tally(gradient(loss), X, WEIGHTS) == Flops(3 * LAYERS * BLOCK, 3 * LAYERS * BLOCK)
    assert tally(jax.jit(gradient(loss)), X, WEIGHTS) == tally(gradient(loss), X, WEIGHTS)


@pytest.mark.parametrize("wrap", [lambda step: step, jax.jit])
def test_what_is_computed_again_is_no_work_of_the_model(wrap: Any) -> None:
    grad = wrap(gradient(scanned(jax.checkpoint(block))))
    assert tally(grad, X, WEIGHTS) == Flops(3 * LAYERS * BLOCK, 4 * LAYERS * BLOCK)


def test_a_checkpoint_within_a_checkpoint_is_computed_three_times() -> None:
    whole = jax.checkpoint(scanned(jax.checkpoint(block)))
    # Of each block: forward, again for the outer one, again for the inner one, and twice as much backward.
    flops = tally(gradient(whole), X, WEIGHTS)
    assert flops.model == 3 * LAYERS * BLOCK
    assert flops.hardware == 5 * LAYERS * BLOCK


def test_a_policy_that_keeps_the_products_computes_none_again() -> None:
    kept = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)
    assert tally(gradient(scanned(kept)), X, WEIGHTS) == Flops(3 * LAYERS * BLOCK, 3 * LAYERS * BLOCK)


@pytest.mark.parametrize("inner", [lambda x, w: jnp.einsum("ij,jk->ik", x, w), jax.jit(jnp.matmul)])
def test_jitted_functions_in_a_checkpoint(inner: Any) -> None:
    """They go back under the name of their recomputation in some versions of jax."""

    def body(x: Any, layer: Any) -> tuple[Any, None]:
        return jnp.tanh(inner(jnp.tanh(inner(x, layer["up"])), layer["down"])), None

    for checkpointed in (jax.checkpoint(body), jax.checkpoint(jax.jit(body))):
        flops = tally(gradient(scanned(checkpointed)), X, WEIGHTS)
        assert flops == Flops(3 * LAYERS * BLOCK, 4 * LAYERS * BLOCK)


def test_branches_and_loops_in_a_checkpoint() -> None:
    def body(x: Any, layer: Any) -> tuple[Any, None]:
        return lax.cond(x.sum() > 0, lambda x: block(x, layer)[0], lambda x: x, x), None

    loss = jax.checkpoint(scanned(body))
    assert tally(gradient(loss), X, WEIGHTS) == Flops(3 * LAYERS * BLOCK, 4 * LAYERS * BLOCK)


def test_a_batch_of_gradients() -> None:
    grad = jax.vmap(gradient(scanned(jax.checkpoint(block))), in_axes=(0, None))
    assert tally(grad, shape(16, *X.shape), WEIGHTS) == Flops(16 * 3 * LAYERS * BLOCK, 16 * 4 * LAYERS * BLOCK)


def test_layers_in_a_python_loop() -> None:
    def loss(x: Any, weights: Any) -> Any:
        for number in range(LAYERS):
            x, _ = jax.checkpoint(block)(x, jax.tree.map(lambda leaf, n=number: leaf[n], weights))
        return jnp.sum(x)

    assert tally(gradient(loss), X, WEIGHTS) == Flops(3 * LAYERS * BLOCK, 4 * LAYERS * BLOCK)


def test_a_condition_counts_its_largest_branch() -> None:
    def loss(x: Any) -> Any:
        return lax.cond(x.sum() > 0, lambda x: x @ x, lambda x: x @ x @ x, x)

    assert count_flops(loss, shape(8, 8)) == 2 * 2 * 8**3


def test_a_loop_of_known_length() -> None:
    assert count_flops(lambda x: lax.fori_loop(0, 5, lambda _, x: x @ x, x), shape(8, 8)) == 5 * 2 * 8**3


def test_a_loop_of_unknown_length_counts_once_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def loop(x: Any) -> Any:
        return lax.while_loop(lambda x: x.sum() < 1, lambda x: x @ x, x)

    with caplog.at_level(logging.WARNING, logger="otel_goodput"):
        assert count_flops(loop, shape(8, 8)) == 2 * 8**3
        assert count_flops(loop, shape(8, 8)) == 2 * 8**3
    assert [record.getMessage() for record in caplog.records] == [
        "count_flops: a while loop counts once: its number of iterations is not known before it runs"
    ]


def test_a_loop_without_products_needs_no_remark() -> None:
    assert tally(lambda x: lax.while_loop(lambda x: x < 1, lambda x: x * 2, x), shape()).remarks == ()


def test_custom_derivatives() -> None:
    @jax.custom_vjp
    def layer(x: Any, w: Any) -> Any:
        return x @ w

    layer.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, ct: (ct @ kept[1].T, kept[0].T @ ct))

    @jax.custom_jvp
    def other(x: Any, w: Any) -> Any:
        return x @ w

    @other.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (x, w), (dx, dw) = primals, tangents
        return x @ w, dx @ w + x @ dw

    one = 2 * BATCH * WIDTH * WIDTH
    for function in (layer, other):
        assert count_flops(function, X, shape(WIDTH, WIDTH)) == one
        loss = lambda x, w, function=function: jnp.sum(function(x, w) ** 2)  # noqa: E731
        assert count_flops(gradient(loss), X, shape(WIDTH, WIDTH)) == 3 * one


def test_a_solution_counts_what_it_runs() -> None:
    """Not the products that only its gradient would need."""

    def solve(matrix: Any, right: Any) -> Any:
        def by_product(matvec: Any, value: Any) -> Any:
            return matvec(value)

        return lax.custom_linear_solve(lambda v: matrix @ v, right, by_product, by_product)

    assert count_flops(solve, shape(8, 8), shape(8)) == 2 * 8 * 8


def test_shards_count_together() -> None:
    from jax.sharding import Mesh, PartitionSpec

    mesh: Any = Mesh([[jax.devices()[0]]], ("data", "model"))
    if hasattr(jax.sharding, "AxisType"):  # then a mesh takes no devices to be traced with
        auto = jax.sharding.AxisType.Auto
        mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"), axis_types=(auto, auto))
    if hasattr(jax, "shard_map"):
        shard_map = jax.shard_map
    else:
        from jax.experimental.shard_map import shard_map

    def product(x: Any, w: Any) -> Any:
        return lax.psum(x @ w, "model")

    data, both, model = PartitionSpec("data", None), PartitionSpec("data", "model"), PartitionSpec("model", None)
    mapped = shard_map(product, mesh=mesh, in_specs=(both, model), out_specs=data)
    assert count_flops(jax.jit(mapped), shape(16, 8), shape(8, 32)) == 2 * 16 * 8 * 32


def test_a_kernel_counts_its_grid_or_its_estimate() -> None:
    from jax.experimental import pallas as pl

    def kernel(x: Any, w: Any, out: Any) -> None:
        out[...] = x[...] @ w[...]

    def call(x: Any, w: Any, **more: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid=(4, 2),
            in_specs=[
                pl.BlockSpec(block_shape=(8, 16), index_map=lambda i, j: (i, 0)),
                pl.BlockSpec(block_shape=(16, 8), index_map=lambda i, j: (0, j)),
            ],
            out_specs=pl.BlockSpec(block_shape=(8, 8), index_map=lambda i, j: (i, j)),
            out_shape=jax.ShapeDtypeStruct((32, 16), jnp.float32),
            **more,
        )(x, w)

    assert count_flops(call, shape(32, 16), shape(16, 16)) == 2 * 32 * 16 * 16
    if hasattr(pl, "CostEstimate"):
        estimate = pl.CostEstimate(flops=123, transcendentals=0, bytes_accessed=0)
        assert count_flops(call, shape(32, 16), shape(16, 16), cost_estimate=estimate) == 123


def test_foreign_calls_are_listed_as_not_counted() -> None:
    if not hasattr(jax, "ffi"):
        return  # this jax has another way out, of no fixed name
    flops = tally(jax.ffi.ffi_call("some_kernel", shape(8, 8)), shape(8, 8))
    assert flops[:2] == (0, 0)
    assert flops.remarks == ("ffi_call: its operations are unknown and are not counted",)


# --- arguments --------------------------------------------------------------------------------------------------------


def test_a_whole_step_with_an_optimizer() -> None:
    """Parameters that the step would donate, a number, a static argument by name."""

    def step(weights: Any, x: Any, rate: float, *, power: int) -> tuple[Any, Any]:
        loss, slopes = jax.value_and_grad(lambda weights: jnp.sum(lax.scan(block, x, weights)[0] ** power))(weights)
        return jax.tree.map(lambda weight, slope: weight - rate * slope, weights, slopes), loss

    jitted = jax.jit(step, static_argnames="power", donate_argnums=0)
    weights = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), WEIGHTS)
    x = jnp.ones(X.shape)
    before = count_flops(jitted, weights, x, 0.1, power=2)
    # A scan goes back through its first layer as through all others, although nobody wants the gradient by x.
    assert before == 3 * LAYERS * BLOCK
    kept = weights
    weights, _ = jitted(weights, x, 0.1, power=2)
    assert count_flops(jitted, weights, x, 0.1, power=2) == before
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(kept))
    assert count_flops(jitted, kept, x, 0.1, power=2) == before


def test_nothing_is_run() -> None:
    huge = shape(10**7, 10**7)
    assert count_flops(lambda x: x @ x, huge) == 2 * 10**21


def test_errors_of_the_function_are_its_own() -> None:
    with pytest.raises(TypeError):
        count_flops(jnp.dot, shape(3, 5), shape(3, 5))
