"""A job of short steps in which something goes wrong after some seconds, in one of twelve ways; of one rank or more."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import otel_goodput as goodput
from otel_goodput._live import ranks

WELL_S, WRONG_S = 20.0, 30.0  # so long all is well, and then something is wrong
STEP_S = 0.02


def wait_for_all(place: Path, step: int, count: int) -> None:
    """Return when all ranks have come to this step."""
    for rank in range(count):
        while not (place / f"{step}-{rank}").exists():
            time.sleep(0.001)


def main() -> None:
    ranks.EVERY_S = ranks.FIRST_S = 0.3  # type: ignore[misc]
    index, count, directory, fault = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    goodput.configure(
        "job", directory=directory / "runs", exporters="none", incidents="333ms", profile="off", watchdog="off",
        process_index=index, process_count=count, integrations="none" if "compiled" not in fault else "jax",
    )  # fmt: skip
    if fault == "attempts make no progress":
        with goodput.job(), goodput.training_prep():
            time.sleep(1.0)
            sys.exit(1)
    compiled: Any = None
    if "compiled" in fault:
        import jax

        def model(x: Any) -> Any:
            for _ in range(60):
                x = jax.numpy.tanh(x) * 1.1 + x.sum()
            return x

        compiled = jax.jit(model)
    culprit = index == count - 1
    began = time.monotonic()
    saved = evaluated = began
    step, shape = 0, 1
    with goodput.job():
        while (passed := time.monotonic() - began) < WELL_S + WRONG_S:
            wrong = fault if passed > WELL_S else ""
            with goodput.data_loading():
                time.sleep(0.002)
                if wrong == "the input is slow" or (wrong == "the input of a rank is slow" and culprit):
                    time.sleep(0.01)
                if wrong == "a rank hangs in its loader" and culprit:
                    time.sleep(600)
            if wrong == "a rank does something of its own" and culprit:
                with goodput.custom("sync"):
                    time.sleep(0.01)
            with goodput.step(step):
                time.sleep(STEP_S)
                (directory / f"{step}-{index}").touch()
                wait_for_all(directory, step, count)
                if wrong == "steps are slow":
                    time.sleep(0.01)
                if compiled is not None and (wrong or not step):
                    import jax.numpy as jnp

                    shape += 1
                    compiled(jnp.zeros(shape)).block_until_ready()
                if wrong == "all ranks hang in a step" or (wrong == "a rank is stopped" and culprit):
                    time.sleep(600)
            if wrong == "time is lost between steps":
                time.sleep(0.01)
            now = time.monotonic()
            if now - saved > 1.7:
                with goodput.checkpoint_save(step):
                    time.sleep(3.0 if wrong == "saves are slow" else 0.1)
                saved = time.monotonic()
            if now - evaluated > 2.3:
                with goodput.custom("evaluation"):
                    time.sleep(600 if wrong == "an evaluation hangs" else 0.15)
                evaluated = time.monotonic()
            step += 1


if __name__ == "__main__":
    main()
