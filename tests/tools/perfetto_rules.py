"""Reads exported traces as Perfetto does, by its own schema, and holds them to its rules."""

from __future__ import annotations

import gzip
import importlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_CLEARED, _NEEDED = 1, 2


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
    depth: int = 0


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

    def comparable(self) -> tuple[Any, ...]:
        """The content without the numbers of tracks and arrows."""
        place = {track: (self.groups[self.parents[track]], name) for track, name in self.tracks.items()}
        slices = sorted(
            (*place[one.track], one.name, one.begin, one.end, *map(str, one.args.items())) for one in self.slices
        )
        moments = sorted((time, name, str(args)) for _, time, name, args in self.moments)
        return slices, moments, {name: sorted(values) for name, values in self.values.items()}, self.arrows()

    def arrows(self) -> list[tuple[str, int, str, int]]:
        """From which slice to which: name and begin of both."""
        outs = {number: one for one in self.slices for number in one.out}
        ins = {number: one for one in self.slices for number in one.into}
        assert outs.keys() == ins.keys(), "an arrow has two ends"
        return sorted((outs[at].name, outs[at].begin, ins[at].name, ins[at].begin) for at in outs)


def _schema() -> Any:
    """Perfetto's own. Some of its versions refuse the protobuf that other packages of a test environment ask for."""
    try:
        return importlib.import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    except ImportError as error:
        pytest.skip(f"perfetto is not installed: {error}")
    except Exception as error:
        if type(error).__name__ != "VersionError":
            raise
        pytest.skip(f"perfetto does not go with this protobuf: {error}")


def protobuf(path: Path) -> Trace:
    """Read a trace in protobuf; every rule of Perfetto's that it breaks fails the test."""
    schema = _schema()
    data = path.read_bytes()
    whole = schema.Trace()
    whole.ParseFromString(gzip.decompress(data) if path.suffix == ".gz" else data)
    assert not _unknown(whole)
    trace = Trace()
    names: dict[int, str] = {}
    keys: dict[int, str] = {}
    categories: dict[int, str] = {}
    open_slices: dict[int, list[Slice]] = {}
    counters: dict[int, str] = {}
    latest = 0
    assert whole.packet[0].sequence_flags == _CLEARED and whole.packet[0].first_packet_on_sequence
    clocks = {clock.clock_id: clock.timestamp for clock in whole.packet[0].clock_snapshot.clocks}
    assert clocks.keys() == {1, 6} and len(set(clocks.values())) == 1
    assert whole.packet[0].clock_snapshot.primary_trace_clock == 6
    for packet in whole.packet:
        assert packet.trusted_packet_sequence_id == 1
        assert packet.sequence_flags & (_CLEARED | _NEEDED)
        for table, found in (
            (names, packet.interned_data.event_names),
            (keys, packet.interned_data.debug_annotation_names),
            (categories, packet.interned_data.event_categories),
        ):
            for one in found:
                assert one.iid and one.iid not in table
                table[one.iid] = one.name if isinstance(one.name, str) else one.name.decode()
        if packet.HasField("track_descriptor"):
            _describe(packet.track_descriptor, trace, counters)
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert packet.timestamp >= latest, "sorted by time"
        latest = packet.timestamp
        assert event.track_uuid in trace.tracks or event.track_uuid in counters, "the track is described before"
        args = {keys[one.name_iid]: getattr(one, one.WhichOneof("value")) for one in event.debug_annotations}
        stack = open_slices.setdefault(event.track_uuid, [])
        if event.type == _BEGIN:
            assert categories[event.category_iids[0]] == "goodput"
            begun = Slice(
                event.track_uuid, names[event.name_iid], latest, -1, args, tuple(event.terminating_flow_ids),
                tuple(event.flow_ids), len(stack),
            )  # fmt: skip
            stack.append(begun)
            trace.slices.append(begun)
        elif event.type == _END:
            stack.pop().end = latest
        elif event.type == _INSTANT:
            trace.moments.append((event.track_uuid, latest, names[event.name_iid], args))
        else:
            assert event.type == _COUNTER
            trace.values.setdefault(counters[event.track_uuid], []).append((latest, event.double_counter_value))
    assert not any(open_slices.values()), "what begins has its end"
    return trace


def _describe(described: Any, trace: Trace, counters: dict[int, str]) -> None:
    uuid = described.uuid
    assert uuid and uuid not in trace.groups and uuid not in trace.tracks and uuid not in counters, "unique"
    if described.HasField("process"):
        assert described.process.pid > 0
        trace.groups[uuid] = described.process.process_name
        return
    assert described.parent_uuid in trace.groups, "above it is one that was described before"
    trace.parents[uuid] = described.parent_uuid
    if described.HasField("counter"):
        assert described.counter.unit_name
        counters[uuid] = described.name
    else:
        trace.tracks[uuid] = described.name


def _unknown(message: Any) -> bool:
    """Whether a message, or one inside of it, has fields that the schema does not know."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    if len(UnknownFieldSet(message)):
        return True
    inner = [value for field, value in message.ListFields() if field.message_type is not None]
    return any(_unknown(one) for value in inner for one in (value if hasattr(value, "__len__") else [value]))


def chrome(path: Path) -> Trace:
    """Read a trace in Chrome's JSON and hold it to what its importers need."""
    data = path.read_bytes()
    whole = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    origin = int(whole["otherData"]["origin_unix_ns"])
    assert whole["displayTimeUnit"] == "ns"
    trace = Trace()
    arrows: Counter[tuple[str, int]] = Counter()
    latest: dict[tuple[int, int], Slice] = {}
    before = -1
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
        assert time >= before, "sorted by time"
        before = time
        args = event.get("args", {})
        if kind == "X":
            assert event["dur"] >= 0 and trace.parents[event["tid"]] == event["pid"]
            found = Slice(event["tid"], name, time, time + round(event["dur"] * 1000), args)
            trace.slices.append(found)
            latest[event["tid"], time] = found
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
