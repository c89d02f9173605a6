"""An evaluation and a save in the middle of the loop, as decorator and as context manager."""

import otel_goodput as goodput
from everyday import chores
from everyday.witness import witness

goodput.configure("evaluated")


@goodput.custom("eval")
def evaluate():
    chores.evaluate()


with witness.life(), goodput.job():
    with goodput.training_prep():
        chores.prepare()
    for step, batch in goodput.steps(chores.Batches(60)):
        chores.train(batch)
        if step % 10 == 9:
            evaluate()
        if step % 20 == 19:
            with goodput.checkpoint_save(step):
                chores.save(step)
print(goodput.report())
