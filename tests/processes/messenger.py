"""A rank that publishes numbered messages, and notes each once it is out; the first one notes what it receives.

Arguments: INDEX COUNT PORT FOLDER WAY FIRST LAST PAUSE. WAY is folder, or the runtime whose store all have: jax or
torch. Then only the first two ranks share a folder.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._live import channels, stores
from otel_goodput._live.channels import RankChannel


def initialize(way: str, index: int, count: int, port: str) -> None:
    if way == "jax":
        import jax

        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=index)
    elif way == "torch":
        import torch.distributed

        address = f"tcp://127.0.0.1:{port}"
        torch.distributed.init_process_group("gloo", init_method=address, rank=index, world_size=count)


def main() -> None:
    channels.RETRY_S, stores.PATIENCE_S = 0.5, 0.5
    index, count = map(int, sys.argv[1:3])
    port, folder, way, first, last, pause = sys.argv[3:]
    initialize(way, index, count, port)
    run = RunDirectory(Path(folder) / ("run" if way == "folder" or index < 2 else f"run-{index}"))
    run.create({})
    channel = RankChannel(run, "of all/ranks", index, count)
    note = os.open(Path(folder) / f"own-{index}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in range(int(first), int(last)):
        channel.publish(b"%d " % number + bytes(number % 500))
        os.write(note, f"{number} {channel.name}\n".encode())
        time.sleep(float(pause))
        if index == 0 and (Path(folder) / "new leader").exists():
            (Path(folder) / "new leader").rename(Path(folder) / "is new")
            channel = RankChannel(run, "of all/ranks", index, count)
        if index == 0:
            for rank, messages in channel.receive().items():
                for message in messages:
                    os.write(note, f"received {rank} {message.split()[0].decode()} {channel.name}\n".encode())


if __name__ == "__main__":
    main()
