"""A worker of Ray, which ends without exit handlers: Ray kills it once the driver is done."""

import os

import ray


@ray.remote
def train():
    import otel_goodput as goodput
    from everyday import chores
    from everyday.witness import witness

    goodput.configure("ray")
    with witness.life(), goodput.job():
        with goodput.training_prep():
            chores.prepare()
        for step, batch in goodput.steps(chores.Batches(120)):
            chores.train(batch)
            if step % 40 == 39:
                with goodput.checkpoint_save(step):
                    chores.save(step)
    return str(goodput.report())


# The worker has this process's working directory, imports and run folder.
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": dict(os.environ)})
print(ray.get(train.remote()))
ray.shutdown()
