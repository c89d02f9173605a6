"""Reinforcement learning with two roles: actors generate rollouts, learners train on them and send the weights back.

Four processes on this CPU: two actors, one of which is slow, and two learners, which average their gradients in each
step. The sleeps stand for the work of accelerators. Each process says its role, so the report has the goodput of each
role, and that of the job as their sum. It is compared with what the processes noted by their own clocks. Exit status 1
if they differ.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

import otel_goodput as goodput

ACTORS = LEARNERS = 2
GENERATE_S, SLOW_S, TRAIN_S = 0.02, 0.04, 0.015  # a rollout of each actor; a step of training
SYNC = 10  # rollouts with the same weights
PATIENCE_S = 30
NS = 1_000_000_000
Noted = dict[str, Any]


class Links(NamedTuple):
    """How processes exchange rollouts and weights, each actor with its learner, and what they noted."""

    rollouts: list[Queue[float]]
    weights: list[Queue[float]]
    gradients: Any
    together: Barrier
    noted: Queue[tuple[str, Noted]]


def configure(role: str, index: int, directory: str) -> None:
    goodput.configure(
        "rl_roles",
        run_id="rl_roles",
        directory=directory,
        exporters="none",
        role=role,
        process_index=index,
        process_count=ACTORS + LEARNERS,
    )


def act(index: int, links: Links, rounds: int, directory: str) -> None:
    """Generate rollouts with the latest weights, and wait for new ones after every ``SYNC``."""
    configure("actor", index, directory)
    chance, mean, steps = random.Random(index), 0.0, list[tuple[int, int]]()
    begin = time.time_ns()
    with goodput.job():
        for number, _ in goodput.steps(range(rounds)):
            began = time.time_ns()
            time.sleep(SLOW_S if index else GENERATE_S)
            links.rollouts[index].put(chance.gauss(mean, 1.0))
            steps.append((began, time.time_ns()))
            if number % SYNC == SYNC - 1:
                with goodput.custom("weight_sync"):
                    mean = links.weights[index].get(timeout=PATIENCE_S)
    links.noted.put(("actor", {"steps": steps, "elapsed": time.time_ns() - begin}))
    goodput.shutdown()


def learn(index: int, links: Links, rounds: int, directory: str) -> None:
    """Train on the rollouts of an actor, with the other learners, and send the weights after every ``SYNC`` steps."""
    configure("learner", ACTORS + index, directory)
    mean, steps = 0.0, list[tuple[int, int]]()

    def received() -> Iterator[float]:
        for _ in range(rounds):
            yield links.rollouts[index].get(timeout=PATIENCE_S)

    begin = time.time_ns()
    with goodput.job():
        for number, action in goodput.steps(received()):
            began = time.time_ns()
            time.sleep(TRAIN_S)
            links.gradients[index] = 0.1 * (3.0 - mean) * (1 + abs(action) / 10)  # the reward is best at 3
            links.together.wait(PATIENCE_S)
            mean += sum(links.gradients) / LEARNERS
            links.together.wait(PATIENCE_S)
            steps.append((began, time.time_ns()))
            if number % SYNC == SYNC - 1:
                with goodput.custom("weight_sync"):
                    links.weights[index].put(mean)
    links.noted.put(("learner", {"steps": steps, "elapsed": time.time_ns() - begin}))
    goodput.shutdown()


def run(rounds: int, directory: str) -> list[tuple[str, Noted]]:
    """Run the job; returns what each process noted, with its role."""
    start = multiprocessing.get_context("spawn")
    links = Links(
        [start.Queue() for _ in range(ACTORS)],
        [start.Queue() for _ in range(ACTORS)],
        start.Array("d", LEARNERS),
        start.Barrier(LEARNERS),
        start.Queue(),
    )
    jobs = [(act, index) for index in range(ACTORS)] + [(learn, index) for index in range(LEARNERS)]
    processes = [start.Process(target=job, args=(index, links, rounds, directory), daemon=True) for job, index in jobs]
    for process in processes:
        process.start()
    noted = [links.noted.get(timeout=2 * PATIENCE_S) for _ in processes]
    for process in processes:
        process.join(PATIENCE_S)
    return noted


def checks(report: dict[str, Any], noted: list[tuple[str, Noted]]) -> Iterator[tuple[bool, str]]:
    """Compare a report with what the processes noted: whether each figure holds, and what it is."""
    roles = report["ranks"]["roles"]
    shares: dict[str, float] = {}
    warming: dict[str, float] = {}  # what the first steps take longer than others may count as start-up
    for role in ("actor", "learner"):
        own = [each for name, each in noted if name == role]
        if role == "actor":  # each at its own pace
            lengths = [[end - begin for begin, end in each["steps"]] for each in own]
            elapsed = sum(each["elapsed"] for each in own)
        else:  # together: a step begins when the last of them begins it
            steps = [list(zip(*step, strict=True)) for step in zip(*(each["steps"] for each in own), strict=True)]
            lengths = [[max(ends) - max(begins) for begins, ends in steps]]
            elapsed = max(each["elapsed"] for each in own)
        shares[role] = sum(map(sum, lengths)) / elapsed
        warming[role] = sum(max(0, each[0] - statistics.median_low(each)) for each in lengths) / elapsed
        value = roles[role]["goodput"]
        holds = -0.03 - warming[role] < value - shares[role] < 0.03
        yield holds, f"{role}: goodput {value:.1%}, by its own clocks {shares[role]:.1%}"
    value, mean = report["goodput"], sum(shares.values()) / len(shares)
    least = mean - sum(warming.values()) / len(warming)
    yield least - 0.03 < value < mean + 0.03, f"job: goodput {value:.1%}, the mean of its devices {mean:.1%}"
    seconds = {**report["seconds"], **report["seconds"].get("custom", {})}
    seconds.pop("custom", None)
    whole = sum(round(spent * NS) for spent in seconds.values())
    yield whole == round(report["elapsed_s"] * NS), f"the categories add up to {whole / NS:.6f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="rollouts of each actor, a multiple of 10 (default: 60)")
    parser.add_argument("--directory", help="keep the journals there (default: keep nothing)")
    args = parser.parse_args()
    if args.rounds < SYNC or args.rounds % SYNC:
        parser.error("--rounds must be a multiple of 10")
    with tempfile.TemporaryDirectory() as passing:
        directory = args.directory or passing
        noted = run(args.rounds, directory)
        with goodput.open_run(directory) as recorded:
            report = recorded.report()
    print(report)
    results = list(checks(report.to_json(), noted))
    for holds, text in results:
        print(f"{'ok  ' if holds else 'FAIL'}  {text}")
    return 0 if all(holds for holds, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
