"""Which versions of Python are claimed: the same ones in every file, and no others are called tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def versions(words: str) -> list[str]:
    return re.findall(r"\b3\.\d+\b", words)


@pytest.fixture
def claimed() -> list[str]:
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text("pyproject.toml"))


def test_the_workflow_and_the_runner_hold_what_is_claimed(claimed: list[str]) -> None:
    (supported,) = re.findall(r"^SUPPORTED = \((.*)\)$", text(".ci/pythons.py"), re.MULTILINE)
    whole, wheel = re.findall(r"^ +python: \[(.*)\]$", text(".github/workflows/test.yml"), re.MULTILINE)
    assert versions(supported) == versions(whole) == claimed
    assert versions(wheel) == [claimed[0], claimed[-1]]


def test_what_is_only_tried_is_not_claimed(claimed: list[str]) -> None:
    (unclaimed,) = re.findall(r"^UNCLAIMED = \((.*)\)", text(".ci/pythons.py"), re.MULTILINE)
    tried = re.findall(r'- python: "(.*)"\n +unclaimed: true', text(".github/workflows/test.yml"))
    assert versions(unclaimed) == tried and not {*tried} & {*claimed}


def test_the_readme_and_what_pip_asks_for_say_the_same(claimed: list[str]) -> None:
    assert f"Python {claimed[0]} to {claimed[-1]}." in text("README.md")
    assert f'requires-python = ">={claimed[0]}"' in text("pyproject.toml")
