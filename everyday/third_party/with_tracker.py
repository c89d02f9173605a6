"""A tracker of experiments beside us: it logs each step to a folder, and what it holds afterwards is counted."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import otel_goodput as goodput
from everyday import chores
from everyday.witness import witness

STEPS = 120


def with_wandb() -> tuple[Callable[[int, float], None], Callable[[], int]]:
    import wandb

    run = wandb.init(project="tracked", mode="offline", settings=wandb.Settings(console="off", silent=True))

    def end() -> int:
        logged = run.step
        run.finish()
        return logged

    return lambda step, loss: run.log({"loss": loss}), end


def with_mlflow() -> tuple[Callable[[int, float], None], Callable[[], int]]:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow

    mlflow.set_tracking_uri(Path("mlruns").resolve().as_uri())
    run = mlflow.start_run()

    def log(step: int, loss: float) -> None:
        with mlflow.start_span("log"):  # its spans are OpenTelemetry's
            mlflow.log_metric("loss", loss, step=step)

    def end() -> int:
        mlflow.end_run()
        return len(mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss"))

    return log, end


def with_tensorboard() -> tuple[Callable[[int, float], None], Callable[[], int]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("board")

    def end() -> int:
        writer.close()
        board = EventAccumulator("board")
        board.Reload()
        return len(board.Scalars("loss"))

    return lambda step, loss: writer.add_scalar("loss", loss, step), end


def with_trackio() -> tuple[Callable[[int, float], None], Callable[[], int]]:
    os.environ["TRACKIO_DIR"] = str(Path("trackio").resolve())
    import trackio

    trackio.init(project="tracked", name="one", embed=False)
    logged = [0]

    def log(step: int, loss: float) -> None:
        trackio.log({"loss": loss}, step=step)
        logged[0] += 1

    def end() -> int:
        trackio.finish()
        return logged[0]

    return log, end


KINDS = {"wandb": with_wandb, "mlflow": with_mlflow, "tensorboard": with_tensorboard, "trackio": with_trackio}

log, end = KINDS[sys.argv[1]]()
goodput.configure("tracked")
with witness.life(), goodput.job():
    with goodput.training_prep():
        chores.prepare()
    for step, batch in goodput.steps(chores.Batches(STEPS)):
        loss = chores.train(batch)
        log(step, loss)
print(goodput.report())
assert end() == STEPS, "it has what it was given"
