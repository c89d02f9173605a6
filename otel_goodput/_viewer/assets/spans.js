// Spans of a lane, and what any interval of time is made of: exact, from running sums, in O(log n).
import { lowerBound } from "./data.js";

const DEEPEST = 24; // spans above one another in a lane; what lies deeper is laid over the last

/** Spans in order that do not overlap. `kinds` index the paints of the lane, `rows` the table that they are from. */
export class SpanTrack {
  constructor(begins, ends, kinds, rows, kindCount) {
    Object.assign(this, { begins, ends, kinds, rows, kindCount });
    this.length = begins.length;
    this.sums = null;
  }

  /** Running sums by kind, made when they are first needed: sums[kind][i] is the time of it in the spans before i. */
  running() {
    if (this.sums) return this.sums;
    this.sums = [];
    const known = this.begun ? this.begun.length : 0;
    const before = known ? this.begun.running() : [];
    const seen = new Set(known ? this.begun.present : []);
    for (let at = known; at < this.length; at++) seen.add(this.kinds[at]);
    this.present = [...seen].sort((one, other) => one - other);
    for (let kind = 0; kind < this.kindCount; kind++) {
      const sums = seen.has(kind) ? new Float64Array(this.length + 1) : null;
      if (sums && before[kind]) sums.set(before[kind]);
      for (let at = known; sums && at < this.length; at++) {
        sums[at + 1] = sums[at] + (this.kinds[at] === kind ? this.ends[at] - this.begins[at] : 0);
      }
      this.sums.push(sums);
    }
    return this.sums;
  }

  /** Time of each `present` kind before `time`, written to `into`. `from`: a span known to begin before it. */
  before(time, into, from = 0) {
    const next = lowerBound(this.begins, time, from, this.length);
    const sums = this.running();
    for (const kind of this.present) into[kind] = sums[kind][next];
    if (next && this.ends[next - 1] > time) into[this.kinds[next - 1]] -= this.ends[next - 1] - time;
    return next;
  }

  /** [[begin, end]] that spans cover without a gap. */
  covered() {
    return joinedIntervals(Array.from(this.begins, (begin, at) => [begin, this.ends[at]]));
  }

  /** Index of the first span that ends behind `time`. */
  firstBehind(time) {
    const place = Math.max(0, lowerBound(this.begins, time) - 1);
    return place < this.length && this.ends[place] <= time ? place + 1 : place;
  }

  /** Index of the span at `time`, or -1; else of the nearest one that is no further than `reach` ns away. */
  at(time, reach = 0) {
    const next = lowerBound(this.begins, time);
    const last = next - 1;
    if (last >= 0 && this.ends[last] >= time) return last;
    const behind = last >= 0 ? time - this.ends[last] : Infinity;
    const ahead = next < this.length ? this.begins[next] - time : Infinity;
    if (Math.min(behind, ahead) > reach) return -1;
    return behind < ahead ? last : next;
  }
}

/** Bins of equal width with the time of each kind in them; inside of a bin it is taken to be spread evenly. */
export class BinTrack {
  /** `share(kind, bin)`: ns, of the `kinds` that there may be. */
  constructor(begin, width, count, kindCount, share, kinds) {
    Object.assign(this, { begin, width, count, kindCount });
    const none = new Float64Array(count + 1);
    this.sums = Array.from({ length: kindCount }, (_, kind) => {
      if (!kinds.includes(kind)) return none;
      const sums = new Float64Array(count + 1);
      for (let bin = 0; bin < count; bin++) sums[bin + 1] = sums[bin] + share(kind, bin);
      return sums;
    });
    this.present = this.sums.flatMap((sums, kind) => (sums[count] ? [kind] : []));
  }

  get end() {
    return this.begin + this.width * this.count;
  }

  before(time, into) {
    const place = Math.min(this.count, Math.max(0, (time - this.begin) / this.width));
    const bin = Math.min(this.count - 1, Math.floor(place));
    const part = place - bin;
    for (const kind of this.present) {
      const sums = this.sums[kind];
      into[kind] = sums[bin] + (sums[bin + 1] - sums[bin]) * part;
    }
    return bin;
  }

  at(time) {
    const bin = Math.floor((time - this.begin) / this.width);
    return bin >= 0 && bin < this.count ? bin : -1;
  }
}

/** Lay spans that may overlap in as few tracks as they need. `entries`: [[begin, end, kind, row]]. */
export function packTracks(entries, kindCount) {
  entries.sort((one, other) => one[0] - other[0] || other[1] - one[1]);
  const layers = [];
  for (const entry of entries) {
    let layer = layers.find((spans) => spans[spans.length - 1][1] <= entry[0]);
    if (!layer && layers.length < DEEPEST) layers.push((layer = []));
    if (!layer) {
      layer = layers[DEEPEST - 1];
      const last = layer[layer.length - 1];
      last[1] = Math.max(last[0], Math.min(last[1], entry[0]));
    }
    layer.push(entry);
  }
  return layers.map((spans) => trackOf(spans, kindCount));
}

/** A track of entries that are in order and do not overlap, behind those of the track `begun`, if there is one. */
export function trackOf(entries, kindCount, begun = null) {
  const first = begun ? begun.length : 0;
  const length = first + entries.length;
  const track = [new Float64Array(length), new Float64Array(length), new Uint16Array(length), new Float64Array(length)];
  if (begun) [begun.begins, begun.ends, begun.kinds, begun.rows].forEach((column, part) => track[part].set(column));
  entries.forEach((entry, at) => {
    for (let part = 0; part < 4; part++) track[part][first + at] = entry[part];
  });
  const made = new SpanTrack(...track, kindCount);
  made.begun = begun;
  return made;
}

/**
 * Tracks of a table that grows. What is settled is laid once; rows that are open, and those that have come since, are
 * laid behind it each time.
 */
export class GrowingTracks {
  constructor() {
    this.base = null;
    this.open = [];
    this.laid = 0;
  }

  /** `entry(row)`: its span, as of {@link packTracks}, or null; `settled(row)`: it does not change any more. */
  tracks(rows, entry, settled, kindCount) {
    const laid = [];
    const add = (row) => {
      const span = entry(row);
      if (span) laid.push(span);
    };
    if (!this.base) {
      for (let row = 0; row < rows; row++) {
        if (settled(row)) add(row);
        else this.open.push(row);
      }
      this.base = packTracks(laid.splice(0), kindCount);
      this.laid = rows;
    }
    this.open.forEach(add);
    for (let row = this.laid; row < rows; row++) add(row);
    return laid.length ? longerTracks(this.base, laid, kindCount) : this.base;
  }
}

/** Lay more spans behind those of tracks. */
function longerTracks(base, entries, kindCount) {
  entries.sort((one, other) => one[0] - other[0] || other[1] - one[1]);
  const layers = base.map((track) => ({ track, last: track.ends[track.length - 1], more: [] }));
  for (const entry of entries) {
    let layer = layers.find(({ last }) => last <= entry[0]);
    if (!layer && layers.length < DEEPEST) layers.push((layer = { track: null, last: 0, more: [] }));
    if (!layer) {
      layer = layers[DEEPEST - 1];
      entry[0] = Math.min(entry[1], Math.max(entry[0], layer.last)); // what lies deeper is cut
    }
    layer.more.push(entry);
    layer.last = Math.max(layer.last, entry[1]);
  }
  return layers.map(({ track, more }) => (more.length ? trackOf(more, kindCount, track) : track));
}

/** Intervals [begin, end], in order of their begin, with those joined that touch or overlap. */
export function joinedIntervals(intervals) {
  const ranges = [];
  for (const [begin, end] of intervals) {
    const last = ranges[ranges.length - 1];
    if (last && begin <= last[1]) last[1] = Math.max(last[1], end);
    else ranges.push([begin, end]);
  }
  return ranges;
}

/** Parts of [begin, end] that no one of the rising `windows` covers. */
export function uncovered(windows, begin, end) {
  const ranges = [];
  let last = begin;
  for (const [low, high] of windows) {
    if (low > last) ranges.push([last, Math.min(low, end)]);
    last = Math.max(last, high);
    if (last >= end) break;
  }
  if (last < end) ranges.push([last, end]);
  return ranges.filter(([low, high]) => high > low);
}
