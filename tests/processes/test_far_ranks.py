"""A job on hosts that share no folder and whose clocks differ, through the store of jax, as ``make everyday`` does it
through that of torch: the leader is stopped, goes on, and is killed."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import warm
from ports import reserved_port

from everyday.far_ranks import FarRanks, story


def started(command: Sequence[str], environment: Mapping[str, str], errors: int) -> warm.Process:
    pipe = subprocess.PIPE
    return warm.Process(command, env=environment, stdin=pipe, stdout=pipe, stderr=errors, jax=True)


@pytest.mark.jax
@pytest.mark.crash
@pytest.mark.release
def test_a_deputy_goes_on_with_the_account_that_the_leader_has_left_in_the_store(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    with reserved_port() as port:
        ranks = FarRanks("jax", port, tmp_path, started)
        try:
            assert [*story(ranks)] == []
        finally:
            ranks.stop()
