"""A slow data set behind a thread that loads ahead; the loop takes batches from a queue."""

import queue
import threading
import time

import otel_goodput as goodput
from everyday.chores import Batches, train
from everyday.witness import witness

goodput.configure("prefetched")


def ahead(count):
    """Batches that a thread lays ready."""
    ready = queue.Queue(4)

    def load():
        for number in range(count):
            with goodput.data_loading():
                time.sleep(0.028)
            ready.put(number)

    threading.Thread(target=load, daemon=True).start()
    for _ in range(count):
        yield ready.get()


with witness.life(), goodput.job():
    for _step, batch in goodput.steps(Batches(60, source=ahead(60))):
        train(batch)
print(goodput.report())
