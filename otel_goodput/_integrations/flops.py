"""Count the floating-point operations (FLOPs) of a step of the model in its jaxpr; the peak FLOP/s of chips.

Matrix multiplications and convolutions count, 2 for each multiply-add. All else counts nothing, including element-wise
operations and data movement. That is the definition of MFU (Chowdhery et al., "PaLM", 2022, arXiv:2204.02311, appendix
B), and MFU is relative to the peak of the units that multiply matrices.

There are two counts, as in that paper: *model* FLOPs, which the model needs, for MFU; and *hardware* FLOPs, which
include what ``jax.checkpoint`` computes a second time to save memory, for HFU. XLA's own ``cost_analysis()`` gives
neither: it counts the body of a scan once, whatever its length. What a ``jax.custom_vjp`` function of the user
computes again in its backward pass cannot be distinguished, and counts in both.

=========================  ===================================================================================
``dot_general``            2 x batch x rows x columns x contracted; complex numbers count four times
``ragged_dot_general``     the same, each row with the one group it belongs to
``conv_general_dilated``   2 for each pair of a weight and an input; padding and dilation holes do not count
``scan``                   its length times its body
``while``                  once, with a remark: the number of iterations is known only at run time
``cond``                   its largest branch
``shard_map``, ``pmap``    the body of one shard times the number of shards
``pallas_call``            its ``cost_estimate``, else its body times its grid
calls out of JAX           nothing, with a remark
=========================  ===================================================================================

The counts are for all devices together, as ``flops_per_step=`` expects.

Peaks are dense bfloat16 FLOP/s of a whole chip, as its maker states them. NVIDIA's data sheets print the figure with
2:4 sparsity, which is twice the dense one. A chip that is not in the table has no peak; none is guessed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import gcd, prod
from typing import Any, Final, NamedTuple

from otel_goodput._runtime.guard import report_once

TERA: Final = 1e12


class Chip(NamedTuple):
    """One kind of chip."""

    name: str
    kinds: str  # regular expression for jax's `device_kind`; must match all of it, ignoring case
    flops: float  # dense bfloat16 operations per second
    devices: int  # that jax counts for one chip
    source: str  # address of the page with the figure


_TPU: Final = "https://cloud.google.com/tpu/docs/"
_NVIDIA: Final = "https://www.nvidia.com/en-us/data-center/"
_HOPPER: Final = "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper"

# jax counts one device for each chip, but two for v3 and 7x, one for each of the cores.
CHIPS: Final[tuple[Chip, ...]] = (
    # "Peak compute per chip (bf16)" on the page of each.
    Chip("TPU v3", "TPU v3", 123 * TERA, 2, _TPU + "v3"),
    Chip("TPU v4", "TPU v4", 275 * TERA, 1, _TPU + "v4"),
    Chip("TPU v5e", "TPU v5 ?lite|TPU v5e", 197 * TERA, 1, _TPU + "v5e"),
    Chip("TPU v5p", "TPU v5p?", 459 * TERA, 1, _TPU + "v5p"),
    Chip("TPU v6e", "TPU v6 ?lite|TPU v6e", 918 * TERA, 1, _TPU + "v6e"),
    Chip("TPU 7x", "TPU ?v?7x", 2307 * TERA, 2, _TPU + "tpu7x"),
    # "BFLOAT16 Tensor Core 312 TFLOPS | 624 TFLOPS*", the same for SXM and PCIe, 40 and 80 GB.
    Chip("A100", r"(NVIDIA )?A100-(SXM4|PCIE)-\d+GB|NVIDIA A100 80GB PCIe", 312 * TERA, 1, _NVIDIA + "a100/"),
    # "Peak BF16 Tensor TFLOPS with FP32 Accumulate 989.4/1978.9" of SXM5, "756/1513" of PCIe.
    Chip("H100 SXM", "NVIDIA H100 80GB HBM3", 989.4 * TERA, 1, _HOPPER),
    Chip("H100 PCIe", "NVIDIA H100 PCIe", 756 * TERA, 1, _HOPPER),
    # "BFLOAT16 Tensor Core 1,671 teraFLOPS*" with sparsity.
    Chip("H100 NVL", "NVIDIA H100 NVL", 835.5 * TERA, 1, _NVIDIA + "h100/"),
    # "BFLOAT16 Tensor Core 1,979 TFLOPS" of SXM, "1,671 TFLOPS" of NVL, with sparsity: the chips of the H100.
    Chip("H200 SXM", "NVIDIA H200", 989.4 * TERA, 1, _NVIDIA + "h200/"),
    Chip("H200 NVL", "NVIDIA H200 NVL", 835.5 * TERA, 1, _NVIDIA + "h200/"),
    Chip("GH200", r"NVIDIA GH200 \d+GB", 989.4 * TERA, 1, _NVIDIA + "grace-hopper-superchip/"),
    # "FP16/BF16 Tensor Core 4.5 PFLOPS" and "5 PFLOPS" a GPU, with sparsity.
    Chip("B200", "NVIDIA B200", 2250 * TERA, 1, _NVIDIA + "hgx/"),
    Chip("GB200", "NVIDIA GB200", 2500 * TERA, 1, _NVIDIA + "gb200-nvl72/"),
    # "BFLOAT16 Tensor Core 242 teraFLOPS*" with sparsity, and "362.05 | 733* TFLOPS".
    Chip("L4", "NVIDIA L4", 121 * TERA, 1, _NVIDIA + "l4/"),
    Chip("L40S", "NVIDIA L40S", 362.05 * TERA, 1, _NVIDIA + "l40s/"),
)


def find_chip(device_kind: str) -> Chip | None:
    """Return the chip that jax calls `device_kind`; None if unknown, as a partition of a GPU (MIG) is."""
    kind = device_kind.strip()
    return next((chip for chip in CHIPS if re.fullmatch(chip.kinds, kind, re.IGNORECASE)), None)


def peak_flops(device_kind: str, device_count: int) -> float | None:
    """Return the dense bfloat16 FLOP/s of `device_count` devices, over all processes; None for an unknown chip."""
    chip = find_chip(device_kind)
    return None if chip is None else chip.flops / chip.devices * device_count


def peak_of(devices: Sequence[Any]) -> float | None:
    """Return :func:`peak_flops` of `devices`, such as ``jax.devices()``; None also if chips differ."""
    kinds = {str(device.device_kind) for device in devices}
    return peak_flops(kinds.pop(), len(devices)) if len(kinds) == 1 else None


def backend_started() -> bool:
    """Return whether jax knows its devices already. Asking for them would start it, too early for some jobs."""
    # Not public; in a jax without it the only peak is one set by the user.
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bool(getattr(bridge, "backends_are_initialized", lambda: False)())


def peak_of_all() -> float | None:
    """Return :func:`peak_of` of all devices of jax; if they have no stated peak, log that once."""
    import jax

    devices = jax.devices()
    peak = peak_of(devices)
    if peak is None:
        report_once("peak flops", "%s", hint(devices[0].device_kind))
    return peak


def hint(device_kind: str) -> str:
    """Return the message for a user whose chip is not in the table."""
    if device_kind.strip().lower() == "cpu":
        return "a CPU has no stated peak, so there is no program goodput (MFU); peak_flops= sets one"
    return (
        f"the peak of {device_kind!r} is not known, so there is no program goodput (MFU); set configure(peak_flops=…) "
        "to the FLOP/s of all chips together"
    )


_Pair = tuple[int, int]  # model, hardware
_Remarks = dict[str, None]  # an ordered set

# Part of the name stack of what a checkpointed function computes a second time (jax 0.4.30 to 0.12).
_RECOMPUTED: Final = "rematted_computation"

# Primitives that run their body several times, and the parameter that says how often.
_TRIPS: Final[Mapping[str, str]] = {"scan": "length", "for": "nsteps", "xla_pmap": "global_axis_size"}
# Primitives that hold more jaxprs than they run, and how to find the one that they run.
_RUNS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "linear_call": lambda params: params["callee"],
    "custom_linear_solve": lambda params: params["jaxprs"].solve,
}
# Parameter with the axes that a shard_map splits: in jax 0.8 and later, and before.
_MANUAL: Final = ("newly_manual_axes", "manual_axes")
# Primitives whose computation has no jaxpr to look into.
_OPAQUE: Final = frozenset({"ffi_call", "custom_call", "tpu_custom_call", "triton_kernel_call", "bass_call"})
_OPAQUE_FAMILIES: Final = ("dot_product_attention_", "cudnn_")


class Flops(NamedTuple):
    """FLOPs of one call, on all devices together."""

    model: int  # without recomputation, for MFU
    hardware: int  # with recomputation, for HFU
    remarks: tuple[str, ...] = ()  # what could not be counted exactly, in words


def count_flops(function: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Return the model FLOPs of ``function(*args, **kwargs)``, for ``configure(flops_per_step=…)``.

    The function is traced, not run. Pass the whole step, gradient included; or only the gradient of the loss, if the
    optimizer multiplies matrices and that should not count. What cannot be counted exactly is logged once.

    Args:
        function: jitted or not.
        args, kwargs: its arguments, or ``jax.ShapeDtypeStruct`` in place of arrays. What is not an array is passed
            on as it is, so there may be static arguments.

    Raises:
        ImportError: jax is not installed.
        Exception: whatever the function raises when it is traced.
    """
    flops = tally(function, *args, **kwargs)
    for remark in flops.remarks:
        report_once(f"flops {remark}", "count_flops: %s", remark)
    return flops.model


def tally(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Flops:
    """Return the model and hardware FLOPs of ``function(*args, **kwargs)``; see :func:`count_flops`."""
    import jax

    leaves, structure = jax.tree_util.tree_flatten((args, kwargs))
    traced = [number for number, leaf in enumerate(leaves) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]

    def call(*arrays: Any) -> Any:
        given = list(leaves)
        for number, array in zip(traced, arrays, strict=True):
            given[number] = array
        positional, named = jax.tree_util.tree_unflatten(structure, given)
        return function(*positional, **named)

    remarks: _Remarks = {}
    model, hardware = _jaxpr(jax.make_jaxpr(call)(*(leaves[number] for number in traced)), remarks)
    return Flops(model, hardware, tuple(remarks))


def _jaxpr(jaxpr: Any, remarks: _Remarks) -> _Pair:
    model = hardware = 0
    for equation, again in _in_order(jaxpr):
        needed, done = _equation(equation, remarks)
        hardware += done
        if not again:
            model += needed
    return model, hardware


def _in_order(jaxpr: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the equations, and whether each is computed a second time."""
    # Before jax 0.7 the backward pass of a jitted function is named like its recomputation. But it begins only after
    # all recomputation, and the last input of a checkpointed function's backward pass is a cotangent.
    back = {id(variable) for variable in getattr(jaxpr, "jaxpr", jaxpr).invars[-1:]}
    begun = False
    for equation in jaxpr.eqns:
        dependent = any(id(variable) in back for variable in equation.invars)
        again = _RECOMPUTED in str(equation.source_info.name_stack)
        if again and equation.primitive.name == "pjit":
            again = not begun and not dependent
        begun |= not again
        if dependent:
            back |= {id(variable) for variable in equation.outvars}
        yield equation, again


def _equation(equation: Any, remarks: _Remarks) -> _Pair:
    name, params = equation.primitive.name, equation.params
    if name in _PRODUCTS:
        flops = _PRODUCTS[name](equation)
        return flops, flops
    if name in _OPAQUE or name.startswith(_OPAQUE_FAMILIES):
        remarks[f"{name}: its operations are unknown and are not counted"] = None
        return 0, 0
    if name == "cond":
        branches = [_jaxpr(branch, remarks) for branch in params["branches"]]
        return max(needed for needed, _ in branches), max(done for _, done in branches)
    if name == "pallas_call" and params.get("cost_estimate") is not None:
        flops = int(params["cost_estimate"].flops)
        return flops, flops
    held = [_RUNS[name](params)] if name in _RUNS else list(_held(params.values()))
    if not held:
        return 0, 0
    counts = [_jaxpr(one, remarks) for one in held]
    needed, done = sum(pair[0] for pair in counts), sum(pair[1] for pair in counts)
    if name == "while" and done:
        remarks["a while loop counts once: its number of iterations is not known before it runs"] = None
    times = _times(name, params) if done else 0
    return times * needed, times * done


def _held(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the jaxprs among the parameters of a primitive."""
    for value in values:
        if hasattr(value, "eqns"):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _held(value)


def _times(name: str, params: Mapping[str, Any]) -> int:
    """Return how many times a primitive runs its body, on all devices together."""
    if name in _TRIPS:
        return int(params[_TRIPS[name]])
    if name == "shard_map":
        sizes: Mapping[Any, int] = params["mesh"].shape
        return prod(sizes[axis] for axis in next(params[key] for key in _MANUAL if key in params))
    if name == "pallas_call":
        return prod(size for size in params["grid_mapping"].grid if isinstance(size, int))
    return 1


def _multiply_add(dtype: Any) -> int:
    """Return the operations in one multiply-add; with complex numbers it takes four real ones."""
    return 8 if dtype.kind == "c" else 2


def _dot_general(equation: Any) -> int:
    """Multiply all of the left with every column of the right, along the axes that are not shared."""
    left, right = (variable.aval for variable in equation.invars[:2])
    ragged = equation.params.get("ragged_dot_dimension_numbers")
    (_, contracted), (_, batch) = ragged.dot_dimension_numbers if ragged else equation.params["dimension_numbers"]
    shared = {*contracted, *batch, *(ragged.rhs_group_dimensions if ragged else ())}
    columns: int = prod(size for axis, size in enumerate(right.shape) if axis not in shared)
    return _multiply_add(left.dtype) * int(prod(left.shape)) * columns


def _convolution(equation: Any) -> int:
    inputs, kernel = (variable.aval for variable in equation.invars[:2])
    output, params = equation.outvars[0].aval, equation.params
    specs = params["dimension_numbers"]
    _, kernel_spec, out_spec = specs
    dilations = params["lhs_dilation"], params["rhs_dilation"]
    axes = zip(*(spec[2:] for spec in specs), params["window_strides"], params["padding"], *dilations, strict=True)
    meetings = prod(
        _meetings(inputs.shape[into], kernel.shape[window], output.shape[out], stride, low, *dilation)
        for into, window, out, stride, (low, _), *dilation in axes
    )
    others: int = output.shape[out_spec[0]] * output.shape[out_spec[1]] * kernel.shape[kernel_spec[1]]
    return _multiply_add(inputs.dtype) * others * meetings


def _meetings(
    inputs: int, window: int, outputs: int, stride: int, padding: int, input_dilation: int, window_dilation: int
) -> int:
    """Return how many (output, weight) pairs along one axis meet an input, not padding or a hole of the dilation.

    A convolution and both of its gradients multiply the same triples of input, weight and output, so that with the
    gradients it takes exactly 3 times the operations. It would not if padding and holes counted.
    """
    common = gcd(stride, input_dilation)
    period = input_dilation // common
    inverse = pow(stride // common, -1, period)
    met = 0
    for weight in range(window):
        # Output o lies over the input at (o * stride - offset) / input_dilation.
        offset = padding - weight * window_dilation
        if offset % common:
            continue
        first = max(0, -(-offset // stride))
        last = min(outputs - 1, ((inputs - 1) * input_dilation + offset) // stride)
        if first <= last:
            phase = offset // common * inverse % period
            met += (last - phase) // period - (first - 1 - phase) // period
    return met


_PRODUCTS: Final[Mapping[str, Callable[[Any], int]]] = {
    "dot_general": _dot_general,
    "ragged_dot_general": _dot_general,
    "conv_general_dilated": _convolution,
}
