"""The job that gets preempted: it trains a small transformer, saves checkpoints, and resumes from the latest one.

Started by ``preempted.py``; it also runs on its own: ``python examples/preempted_job/train.py --directory demo-run``.
Kill it in any way and start it again with the same directory: it continues from the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import transformer
from text import Text

import otel_goodput as goodput

BATCH = 16
SHAPE = transformer.Shape()
OPTIMIZER = optax.adamw(optax.warmup_constant_schedule(0.0, 3e-3, 20))

State = tuple[transformer.Params, optax.OptState]


def first_state(seed: int) -> State:
    """Return the parameters and optimizer state of a new job."""
    params = transformer.initial(jax.random.key(seed), SHAPE)
    return params, OPTIMIZER.init(params)


def train_step(state: State, tokens: jax.Array) -> tuple[State, jax.Array]:
    """Do one update; return the new state and the loss before it."""
    params, opt_state = state
    loss, gradient = jax.value_and_grad(transformer.loss)(params, tokens, SHAPE)
    updates, opt_state = OPTIMIZER.update(gradient, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss


def eval_step(state: State, tokens: jax.Array) -> jax.Array:
    """Return the loss on one batch of held-out text."""
    return transformer.loss(state[0], tokens, SHAPE)


def say(text: str) -> None:
    print(f"  job {os.getpid()}: {text}", flush=True)


def train(args: argparse.Namespace) -> None:
    """Run the whole job, with each part in its phase."""
    with goodput.accelerator_init():
        device = jax.devices()[0]

    with goodput.training_prep():
        text = Text(BATCH, SHAPE.context, args.seed)
        held_out = text.held_out(4)
        options = ocp.CheckpointManagerOptions(max_to_keep=3, create=True)
        manager = ocp.CheckpointManager((args.directory / "checkpoints").resolve(), options=options)
        # On that device, as what is restored is: a step that is compiled for it is the same one then.
        state = jax.device_put(jax.jit(first_state, static_argnums=0)(args.seed), device)
        step_function = jax.jit(train_step, donate_argnums=0)
        eval_function = jax.jit(eval_step)

    start, latest = 0, manager.latest_step()
    if latest is not None:
        with goodput.checkpoint_restore(latest):
            like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
            state = manager.restore(latest, args=ocp.args.StandardRestore(like))
        start = latest + 1
    say(f"{'resumes at' if start else 'starts with'} step {start} on {device.device_kind}")

    @goodput.custom("eval")
    def evaluate(state: State) -> float:
        return float(np.mean([eval_function(state, tokens) for tokens in held_out]))

    with (args.directory / "losses.jsonl").open("a", buffering=1) as losses:
        saved = 0.0  # seconds of the latest step's save and evaluation
        for step, tokens in goodput.steps(text.prefetched(start, args.steps), start=start):
            if args.progress_fd is not None:
                os.write(args.progress_fd, b"%d\n" % step)
            began = time.perf_counter()
            state, loss = step_function(state, tokens)
            # Waiting for the loss makes the host's clock correct for an asynchronous device.
            record: dict[str, Any] = {"step": step, "loss": float(loss), "seconds": time.perf_counter() - began}
            losses.write(json.dumps(record | {"saved": saved, "pid": os.getpid()}) + "\n")
            began = time.perf_counter()
            last = step == args.steps - 1
            if step % args.save_every == args.save_every - 1 or last:
                with goodput.checkpoint_save(step):
                    manager.save(step, args=ocp.args.StandardSave(state))
            if step % args.eval_every == args.eval_every - 1 or last:
                say(f"step {step:4}  loss {record['loss']:.3f}  held-out loss {evaluate(state):.3f}")
            saved = time.perf_counter() - began
    with goodput.checkpoint_save(args.steps - 1):
        manager.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="for checkpoints, journal and losses")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--save-every", type=int, default=40, help="steps from one checkpoint to the next")
    parser.add_argument("--eval-every", type=int, default=40, help="steps from one evaluation to the next")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--exporters", default="file", help="exporters, such as file,gcp (default: file)")
    parser.add_argument("--progress-fd", type=int, help="file descriptor that gets each step's number as it starts")
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)

    goodput.configure("preempted-demo", directory=args.directory / "goodput", exporters=args.exporters)
    try:
        with goodput.job():
            train(args)
    finally:
        goodput.shutdown()


if __name__ == "__main__":
    main()
