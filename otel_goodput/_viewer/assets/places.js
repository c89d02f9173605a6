// Where on a lane something is, and what is at a place of it.
import { lowerBound } from "./data.js";
import { laneBins } from "./lanes.js";

/** What a lane shows at `time` (or within `reach` ns); `place`: 0 (top) to 1 (bottom) of its height. */
export function laneItemAt(source, lane, time, reach, place) {
  const item = singleAt(source, lane, time, reach, place);
  if (item) return item;
  const bins = laneBins(lane);
  if (!bins) return null;
  if (lane.binKind === "steps") {
    if (!lane.summed.some(([begin, end]) => begin <= time && time <= end)) return null;
    const row = lowerBound(source.model.step_bins.begin, time + 0.5) - 1;
    return row >= 0 ? { kind: "steps", row, process: 0 } : null;
  }
  if (!lane.ofProcess && !lane.summed.length) return null;
  const bin = bins.at(time);
  const process = lane.process ?? source.own;
  return bin >= 0 ? { kind: "bin", row: bin, process } : null;
}

function singleAt(source, lane, time, reach, place) {
  const process = 0;
  if (lane.marks) {
    const near = lane.marks.filter((one) => Math.abs(one.time - time) <= 3 * reach);
    near.sort((one, other) => Math.abs(one.time - time) - Math.abs(other.time - time));
    return near.length ? { kind: "notice", row: near[0].row, process } : null;
  }
  if (lane.levels) {
    const later = lane.levels.findIndex((one) => one.time > time);
    const row = (later < 0 ? lane.levels.length : later) - 1;
    return row >= 0 ? { kind: "slice", row, process } : null;
  }
  const depth = lane.tracks.length;
  if (!depth) return null;
  const layer = Math.min(depth - 1, Math.floor(place * depth));
  const track = lane.tracks[layer];
  const index = track.at(time, reach);
  if (index < 0) return null;
  const row = track.rows[index];
  if (lane.kind === "device") {
    const owner = source.model.device.owner[row];
    return owner >= 0 ? { kind: "step", row: owner, process } : { kind: "phase", row: -owner - 1, process };
  }
  return { kind: lane.kindAt ? lane.kindAt(layer) : lane.kind, row, process };
}

/** Places of what is selected on a lane: [{begin, end, depth, of}]; of a step or phase, on the device lane as well. */
export function spanPlaces(source, lane, selected, facts) {
  const { kind, row } = selected;
  if (kind === "bin") {
    const shows = lane.ofProcess
      ? lane.process === selected.process
      : lane.kind === "owner" && lane.summed.length && leads(source, selected.process);
    return shows ? [{ begin: facts.begin, end: facts.end, depth: 0, of: 1 }] : [];
  }
  if (kind === "steps")
    return lane.kind === "step" && lane.bins ? [{ begin: facts.begin, end: facts.end, depth: 0, of: 1 }] : [];
  if (kind === "notice") return lane.marks ? [{ begin: facts.begin, end: facts.begin, depth: 0, of: 1 }] : [];
  if (kind === "slice") return lane.levels ? [{ begin: facts.begin, end: facts.end, depth: 0, of: 1 }] : [];
  if (kind === "save" && lane.key === "checkpoints") return savePlaces(source, lane, row);
  if (lane.kind === "device")
    return kind === "step" || kind === "phase" ? devicePlaces(source, lane, kind === "step" ? row : -row - 1) : [];
  const ranges = [];
  lane.tracks.forEach((track, depth) => {
    if ((lane.kindAt ? lane.kindAt(depth) : lane.kind) !== kind) return;
    const at = placeOfRow(track, row, lane.key === "commits" && kind === "save" ? null : facts.begin);
    if (at >= 0) ranges.push({ begin: track.begins[at], end: track.ends[at], depth, of: lane.tracks.length });
  });
  return ranges;
}

/** Index of the span of table row `row`, which begins at `begin` (null: not known), or -1. */
function placeOfRow(track, row, begin) {
  if (begin === null) return track.rows.indexOf(row);
  for (let at = lowerBound(track.begins, begin); at < track.length && track.begins[at] === begin; at++) {
    if (track.rows[at] === row) return at;
  }
  return -1;
}

function savePlaces(source, lane, row) {
  const { saves, phases } = source.model;
  const ranges = [];
  lane.tracks.forEach((track, depth) => {
    const at = track.at(saves.begin[row]);
    const same = at >= 0 && phases.start[track.rows[at]] === saves.begin[row];
    if (same) ranges.push({ begin: track.begins[at], end: track.ends[at], depth, of: lane.tracks.length });
  });
  return ranges;
}

function devicePlaces(source, lane, owner) {
  source.deviceRows ??= firstRows(source.model.device);
  const row = source.deviceRows.get(owner);
  if (row === undefined) return [];
  const begin = source.model.device.begin[row];
  return lane.tracks.flatMap((track, depth) => {
    const at = placeOfRow(track, row, begin);
    return at < 0 ? [] : [{ begin: track.begins[at], end: track.ends[at], depth, of: lane.tracks.length }];
  });
}

/** First row of the device's table by owner. */
function firstRows(device) {
  const rows = new Map();
  for (let row = device.rows - 1; row >= 0; row--) rows.set(device.owner[row], row);
  return rows;
}

function leads(source, process) {
  return source.own === process;
}

/** What comes before (-1) or behind (1) the selected on the lane that shows it. */
export function itemBeside(source, lanes, selected, by) {
  const { kind, row } = selected;
  const inOrder = {
    disruption: source.model.disruptions,
    notice: source.model.notices,
    slice: source.model.slices,
    attempt: source.model.attempts,
  }[kind];
  if (inOrder) return inOrder[row + by] ? { ...selected, row: row + by } : null;
  if (kind === "save" || kind === "steps" || kind === "bin") {
    const rows = kind === "save" ? source.model.saves.rows : kind === "steps" ? source.model.step_bins.rows : Infinity;
    return row + by >= 0 && row + by < rows ? { ...selected, row: row + by } : null;
  }
  for (const lane of lanes) {
    for (const [depth, track] of lane.tracks.entries()) {
      if ((lane.kindAt ? lane.kindAt(depth) : lane.kind) !== kind) continue;
      const at = track.rows.indexOf(row);
      if (at >= 0) return at + by >= 0 && at + by < track.length ? { ...selected, row: track.rows[at + by] } : null;
    }
  }
  return null;
}
