"""A function that makes steps slow is named by the profile: real processes, real stacks, seeded trials."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import warm

PROGRAM = Path(__file__).parent / "slow_function.py"
SLOW = ("slow_sleep", "slow_loop", "slow_regex", "slow_call", "slow_sort")
AT_ONCE = 4


def trial(folder: Path, what: str, seed: int) -> dict[str, Any]:
    process = warm.Process([sys.executable, PROGRAM, folder, what, str(seed)], stdout=subprocess.PIPE, text=True)
    with process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    answer: dict[str, Any] = json.loads(output)
    return answer


def names(answer: dict[str, Any], what: str) -> bool:
    """Whether what is said first is the slow function, or one inside it."""
    return bool(answer["grown"]) and what in answer["grown"][0][0] and "slow_function.py:" in answer["grown"][0][1]


@pytest.mark.release
def test_the_slow_function_is_named_in_38_of_40_trials(tmp_path: Path) -> None:
    trials = [(SLOW[number % len(SLOW)], number) for number in range(40)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda of: trial(tmp_path, *of), trials))
    wrong = [(of, answer) for of, answer in zip(trials, answers, strict=True) if not names(answer, of[0])]
    assert len(wrong) <= 2, wrong
