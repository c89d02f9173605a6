"""Checks that what ranks publish comes through the store of the real torch.distributed: once, in order, to the leader.

With arguments it is one of the ranks: INDEX PORT.
"""

from __future__ import annotations

import importlib.util
import logging
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from otel_goodput._live.channels import RankChannel

NAME = "everyday.torch_store"
RANKS = 4
MESSAGES = 200
PATIENCE_S = 120.0


def check() -> str:
    """Run the ranks; returns "as by jax.distributed", or what is wrong."""
    if importlib.util.find_spec("torch") is None:
        return "not compared: torch is not installed"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    commands = [[sys.executable, "-m", NAME, str(index), str(port)] for index in range(RANKS)]
    root = Path(__file__).parents[1]
    ranks = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for command in commands]
    try:
        answers = [rank.communicate(timeout=2 * PATIENCE_S)[0].strip() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    wrong = {index: rank.returncode for index, rank in enumerate(ranks) if rank.returncode}
    return f"exit statuses {wrong}" if wrong else answers[0]


def main() -> None:
    import torch.distributed

    index, port = map(int, sys.argv[1:])
    logging.basicConfig()
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=index, world_size=RANKS)
    channel = RankChannel(None, "everyday", index, RANKS)
    if index:
        for number in range(MESSAGES):
            channel.publish(b"%d " % number + bytes(10 * number))
            time.sleep(0.002 * index)
        threading.Thread(target=go_on, args=(channel,), daemon=True).start()
    else:
        print(received(channel))
    torch.distributed.barrier()
    if index != RANKS - 1:  # one ends without it
        torch.distributed.destroy_process_group()


def go_on(channel: RankChannel) -> None:
    """Publish until the process ends, which must not be disturbed by that."""
    while True:
        channel.publish(b"-")


def received(channel: RankChannel) -> str:
    """Receive all messages; returns what is wrong."""
    numbers: dict[int, list[int]] = {index: [] for index in range(1, RANKS)}
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and any(len(each) < MESSAGES for each in numbers.values()):
        for rank, messages in channel.receive().items():
            numbers[rank] += [int(message.split(b" ")[0]) for message in messages if message != b"-"]
        time.sleep(0.01)
    wrong = [f"rank {rank}: {each}" for rank, each in numbers.items() if each != [*range(MESSAGES)]]
    if channel.name != "torch":
        wrong.append(f"through {channel.name or 'nothing'}")
    return "; ".join(wrong) or "as by jax.distributed"


if __name__ == "__main__":
    main()
