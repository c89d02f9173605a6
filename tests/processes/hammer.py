"""One process of a distributed job, of which a thread calls the store of jax all the time: also before it is there."""

from __future__ import annotations

import json
import sys
import threading
import time

from otel_goodput._live.stores import JaxStore


def main(index: int, count: int, port: int) -> None:
    stop, calls = threading.Event(), 0

    def hammer() -> None:
        nonlocal calls
        store = JaxStore()
        while not stop.wait(0.0005):
            try:
                if JaxStore.client() is not None:
                    store.set(f"otel/{index}", b"x" * 100)
                    list(store.several("otel", ()))
                    calls += 1
            except Exception:  # as it is shut down
                time.sleep(0.001)

    thread = threading.Thread(target=hammer)
    thread.start()
    import jax

    jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    time.sleep(0.3 + 0.1 * index)
    jax.distributed.shutdown()
    time.sleep(0.1)
    stop.set()
    thread.join()
    print(json.dumps(calls), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
