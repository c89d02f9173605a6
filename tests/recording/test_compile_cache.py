"""The counts of the persistent compilation cache, from many threads."""

from __future__ import annotations

import threading

from otel_goodput._recording.hooks import CompileCache


def test_an_unused_cache_is_not_reported() -> None:
    cache = CompileCache()
    assert cache.figures() is None
    cache.use()
    assert cache.figures() == (0, 0, 0.0)


def test_no_count_of_any_thread_is_lost() -> None:
    cache, begun = CompileCache(), threading.Barrier(8)

    def compile_many(number: int) -> None:
        begun.wait(30)
        for _ in range(2_000):
            cache.add(hit=bool(number % 2))
            cache.save(0.5 if number % 2 else -0.25)  # powers of 2: sums of them are exact

    threads = [threading.Thread(target=compile_many, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        figures = cache.figures()
        if figures is not None:
            assert seen <= figures.hits + figures.misses <= 16_000
            seen = figures.hits + figures.misses
    for thread in threads:
        thread.join()
    assert cache.figures() == (8_000, 8_000, 2_000.0)


def test_a_cache_that_is_slower_than_the_compiler_saves_less_than_nothing() -> None:
    cache = CompileCache()
    cache.add(hit=True)
    cache.save(-0.125)
    assert cache.figures() == (1, 0, -0.125)
