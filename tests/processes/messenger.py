"""A rank that publishes numbered messages, and notes each once it is out: INDEX COUNT PORT FOLDER FIRST LAST PAUSE."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._live.channels import RankChannel


def main() -> None:
    index, count, _, folder, first, last, pause = sys.argv[1:]
    channel = RankChannel(RunDirectory(Path(folder) / "run"), "run", int(index), int(count))
    noted = os.open(Path(folder) / f"own-{index}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in range(int(first), int(last)):
        channel.publish(b"%d " % number + bytes(number % 500))
        os.write(noted, b"%d\n" % number)
        time.sleep(float(pause))
    print(channel.name, flush=True)


if __name__ == "__main__":
    main()
