"""A notebook's cells, run several times in one process."""

import otel_goodput as goodput
from everyday.chores import Batches, prepare, train
from everyday.witness import witness


def cell(steps: int) -> None:
    witness.number = -1
    goodput.configure("notebook")
    with witness.life(), goodput.job():
        prepare()
        for _step, batch in goodput.steps(Batches(steps)):
            train(batch)
    print(goodput.report())


cell(30)
cell(40)
cell(35)
