"""What happens to a job's spans and last values in a sidecar when something fails: they all arrive, once.

The scenarios mostly wait, for a minute or two, so they run at the same time.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product

import pytest

from .collector import binary
from .outcomes import AT_SIDECAR
from .sidecars import Sidecar

# What is laid over each other.
CONFIGS: dict[str, tuple[str, ...]] = {
    "gcp-sidecar": (),
    "gcp-sidecar, classic-metrics": ("classic-metrics.yaml",),
    "gcp-sidecar-classic": (),
}
AT_ONCE = 8
OFTEN = {"OTEL_METRIC_EXPORT_INTERVAL": "1000", "OTEL_BSP_SCHEDULE_DELAY": "100"}  # ms
MINUTE_S = 60.0
Opener = Callable[..., Sidecar]


def nothing(sidecar: Opener) -> None:
    with sidecar() as rig, rig.job() as job:
        rig.complete(job.end().account)
        assert not rig.google.refusals


def a_last_export_soon_after_the_one_before(sidecar: Opener) -> None:
    """The job exports by itself, and once more when it ends a moment later."""
    with sidecar() as rig, rig.job(flush=True) as job:
        end = job.end()
        rig.complete(end.account)
        assert not rig.google.refusals


def a_backend_away_for_a_minute(sidecar: Opener) -> None:
    """It is away before the job begins; the job ends in that time."""
    with sidecar(up=False) as rig, rig.job(OFTEN, lasts=5.0) as job:
        begin = time.monotonic()
        end = job.end()
        assert not end.warnings and end.stopping < 5
        time.sleep(max(begin + MINUTE_S - time.monotonic(), 0.0))
        rig.rise()
        rig.complete(end.account)


def a_backend_that_fails_for_a_while(sidecar: Opener) -> None:
    """It answers that it is not available, in the middle of the job and at its end."""
    with sidecar() as rig, rig.job(OFTEN, pauses=["middle"]) as job:
        job.wait_for("middle")
        rig.google.fail("*", "UNAVAILABLE", None)
        job.go_on()
        end = job.end()
        time.sleep(5.0)
        rig.google.heal()
        rig.complete(end.account)


def answers_that_are_lost(sidecar: Opener) -> None:
    """What was written is sent again: points are there once all the same, spans have the same names."""
    with sidecar() as rig, rig.job() as job:
        rig.google.fail("*", "UNAVAILABLE", 4, after_write=True)
        rig.complete(job.end().account, again=True)


def sigterm_at_the_end_of_the_job(sidecar: Opener) -> None:
    with sidecar() as rig, rig.job() as job:
        end = job.end()
        assert rig.collector.stop() < 15
        rig.collector.start()  # what it left on the disk
        rig.complete(end.account)


def sigkill_at_the_end_of_the_job(sidecar: Opener) -> None:
    with sidecar() as rig, rig.job() as job:
        end = job.end()
        rig.collector.kill()
        rig.collector.start()
        rig.complete(end.account, again=True)


def sigterm_while_the_backend_is_away(sidecar: Opener) -> None:
    """The disk goes on to the next collector, as from one pod to the next."""
    with sidecar(up=False) as rig, rig.job() as job:
        end = job.end()
        rig.collector.stop(grace_s=5.0)
        rig.rise()
        rig.collector.start()
        rig.complete(end.account)


def sigkill_while_the_backend_is_away(sidecar: Opener) -> None:
    with sidecar(up=False) as rig, rig.job() as job:
        end = job.end()
        time.sleep(1.0)
        rig.collector.kill()
        rig.collector.start()
        time.sleep(1.0)
        rig.collector.kill()
        rig.rise()
        rig.collector.start()
        rig.complete(end.account)


def a_collector_that_crashes_while_the_job_trains(sidecar: Opener) -> None:
    """It is away for longer than an export may last; the job goes on, and on its end."""
    with sidecar() as rig, rig.job(OFTEN, lasts=30.0, pauses=["middle"]) as job:
        job.wait_for("middle")
        rig.collector.kill()
        job.go_on()
        time.sleep(10.0)
        rig.collector.start()
        rig.complete(job.end().account, again=True)


SCENARIOS: dict[str, Callable[[Opener], None]] = {
    function.__name__.replace("_", " "): function
    for function in (
        a_backend_away_for_a_minute,  # the longest first
        nothing,
        a_last_export_soon_after_the_one_before,
        a_backend_that_fails_for_a_while,
        answers_that_are_lost,
        sigterm_at_the_end_of_the_job,
        sigkill_at_the_end_of_the_job,
        sigterm_while_the_backend_is_away,
        sigkill_while_the_backend_is_away,
        a_collector_that_crashes_while_the_job_trains,
    )
}


@pytest.mark.release
@pytest.mark.crash
@pytest.mark.timeout(600)
def test_nothing_is_lost(tmp_path_factory: pytest.TempPathFactory) -> None:
    binary()
    with ThreadPoolExecutor(AT_ONCE, "scenario") as pool:
        ends = {
            (scenario, config): pool.submit(
                SCENARIOS[scenario],
                partial(Sidecar, tmp_path_factory.mktemp("scenario"), config.partition(",")[0], over=CONFIGS[config]),
            )
            for scenario, config in product(SCENARIOS, CONFIGS)
        }
    wrong = {names: error for names, end in ends.items() if (error := end.exception()) is not None}
    for (scenario, config), error in wrong.items():
        print(f"--- {config}: {scenario}")
        traceback.print_exception(error)
    assert not wrong


def test_the_readme_tells_of_every_one() -> None:
    assert SCENARIOS.keys() == AT_SIDECAR.keys()
