"""Worker processes that load batches, spawned; configure() is at the top of the module."""

import multiprocessing
import time

import otel_goodput as goodput
from everyday.chores import Batches, train
from everyday.witness import witness

goodput.configure("spawned")


def load(number):
    time.sleep(0.05)
    return number


def main():
    with multiprocessing.get_context("spawn").Pool(2) as pool, witness.life(), goodput.job():
        for _step, batch in goodput.steps(Batches(60, source=pool.imap(load, range(60)))):
            train(batch, ms=16)
    print(goodput.report())


if __name__ == "__main__":
    main()
