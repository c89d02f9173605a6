"""Reads exported traces as the importers of Perfetto and Chrome do, and holds them to their rules."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Slice:
    """A slice; times in ns since the epoch, arrows by their numbers."""

    track: int
    name: str
    begin: int
    end: int
    args: dict[str, Any]
    into: tuple[int, ...] = ()
    out: tuple[int, ...] = ()


@dataclass
class Trace:
    """What a trace holds: names of groups and tracks by number, the group of each track, slices, moments, values."""

    groups: dict[int, str] = field(default_factory=dict)
    tracks: dict[int, str] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    moments: list[tuple[int, int, str, dict[str, Any]]] = field(default_factory=list)
    values: dict[str, list[tuple[int, float]]] = field(default_factory=dict)

    def of(self, track: str, group: str | None = None) -> list[Slice]:
        """The slices of tracks that are called so, in the group that is called so."""
        return [
            one
            for one in self.slices
            if self.tracks[one.track] == track and (group is None or self.groups[self.parents[one.track]] == group)
        ]

    def arrows(self) -> list[tuple[str, int, str, int]]:
        """From which slice to which: name and begin of both."""
        outs = {number: one for one in self.slices for number in one.out}
        ins = {number: one for one in self.slices for number in one.into}
        assert outs.keys() == ins.keys(), "an arrow has two ends"
        return sorted((outs[at].name, outs[at].begin, ins[at].name, ins[at].begin) for at in outs)


def chrome(path: Path) -> Trace:
    """Read a trace in Chrome's JSON and hold it to what its importers need."""
    data = path.read_bytes()
    whole = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    origin = int(whole["otherData"]["origin_unix_ns"])
    assert whole["displayTimeUnit"] == "ns"
    trace = Trace()
    arrows: Counter[tuple[str, int]] = Counter()
    latest: dict[tuple[int, int], Slice] = {}
    before: dict[tuple[int, Any], int] = {}
    for event in whole["traceEvents"]:
        kind, name = event["ph"], event["name"]
        if kind == "M":
            if name == "process_name":
                trace.groups[event["pid"]] = event["args"]["name"]
            elif name == "thread_name":
                trace.tracks[event["tid"]] = event["args"]["name"]
                trace.parents[event["tid"]] = event["pid"]
            continue
        assert event["pid"] in trace.groups
        time = origin + round(event["ts"] * 1000)
        track = event["pid"], event.get("tid", name)  # importers sort; of slices that begin together the outer is first
        assert time >= before.get(track, 0), "sorted by time on each track"
        before[track] = time
        args = event.get("args", {})
        if kind == "X":
            assert event["dur"] >= 0 and trace.parents[event["tid"]] == event["pid"]
            piece = Slice(event["tid"], name, time, time + round(event["dur"] * 1000), args)
            trace.slices.append(piece)
            latest[event["tid"], time] = piece
        elif kind in "sf":
            arrows[kind, event["id"]] += 1
            assert kind == "s" or event["bp"] == "e"
            bound = latest[event["tid"], time]
            if kind == "s":
                bound.out = (*bound.out, event["id"])
            else:
                bound.into = (*bound.into, event["id"])
        elif kind == "i":
            assert event["s"] == "p"
            trace.moments.append((event["tid"], time, name, args))
        else:
            assert kind == "C"
            [value] = args.values()
            trace.values.setdefault(name, []).append((time, value))
    assert set(arrows.values()) <= {1}
    _nested(trace)
    return trace


def _nested(trace: Trace) -> None:
    """Slices of one track lie inside of each other or apart."""
    stacks: dict[int, list[Slice]] = {}
    for one in sorted(trace.slices, key=lambda one: (one.begin, -one.end)):
        stack = stacks.setdefault(one.track, [])
        while stack and stack[-1].end <= one.begin:
            stack.pop()
        assert not stack or one.end <= stack[-1].end, (stack[-1], one)
        stack.append(one)
