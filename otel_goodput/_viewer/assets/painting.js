// How one lane is painted: single spans where there is room for them, exact shares of each pixel column where not.
import { lowerBound } from "./data.js";

const ROOM = 3; // pixels that a span must be wide to be drawn by itself
let sumsBefore = new Float64Array(1024);
let sumsAfter = new Float64Array(1024);
let sumsOf = null; // the track and the time that sumsAfter holds
let sumsTime = 0;

/** Where and what: x = (t - view[0]) * scale on `surface`; times outside of `low` .. `high` are not drawn. */
export class Frame {
  constructor(surface, view, width, ratio) {
    Object.assign(this, { surface, width, ratio });
    [this.low, this.high] = view;
    this.origin = view[0];
    this.scale = width / (view[1] - view[0]);
    this.labels = [];
  }

  x(time) {
    return (time - this.origin) * this.scale;
  }

  time(x) {
    return this.origin + x / this.scale;
  }

  /** The same frame, cut to [begin, end]. Labels are shared. */
  cut([begin, end]) {
    const frame = Object.create(this);
    frame.low = Math.max(this.low, begin);
    frame.high = Math.min(this.high, end);
    return frame;
  }
}

/** Spans of one track. `least`: height in pixels that a share is drawn with at least. Wide spans get labels. */
export function paintSpans(frame, track, paints, top, bottom, { least = 1, mark = null, label = null } = {}) {
  if (!(frame.high > frame.low)) return;
  const { surface } = frame;
  let at = track.firstBehind(frame.low);
  while (at < track.length && track.begins[at] < frame.high) {
    const begin = Math.max(track.begins[at], frame.low);
    const end = Math.min(track.ends[at], frame.high);
    const left = frame.x(begin);
    const right = frame.x(end);
    if (right - left >= ROOM) {
      const paint = paints[track.kinds[at]];
      const first = Math.round(left);
      const last = Math.max(first + 1, Math.round(right) - 1);
      surface.rect(first, last, top, bottom, paint);
      if (mark) mark(track.rows[at], first, last, top, bottom);
      if (label && last - first > 26 * frame.ratio) {
        frame.labels.push({ text: label(track.rows[at], at), left: first, right: last, top, bottom, paint });
      }
      at++;
    } else {
      at = paintColumn(frame, track, paints, Math.max(0, Math.floor(left)), top, bottom, least, at);
    }
  }
}

/**
 * Spans that adjoin each other: every column of pixels shows the shares of what is in it, so that nothing that is there
 * leaves a gap. Wide spans fill the columns that are theirs alone, and get labels.
 */
export function paintShares(frame, track, paints, top, bottom, label) {
  const { surface } = frame;
  if (!track.length || !(frame.high > frame.low)) return;
  const low = Math.max(frame.low, track.begins[0]);
  const high = Math.min(frame.high, track.ends[track.length - 1]);
  const last = Math.min(surface.width, Math.ceil(frame.x(high)));
  let at = track.firstBehind(low);
  for (let x = Math.max(0, Math.floor(frame.x(low))); x < last; ) {
    const begin = Math.max(low, frame.time(x));
    const end = Math.min(high, frame.time(x + 1));
    at = Math.max(at, lowerBound(track.begins, begin, at, track.length) - 1);
    while (at + 1 < track.length && track.begins[at + 1] <= begin) at++;
    if (track.begins[at] <= begin && track.ends[at] >= end) {
      const right = Math.min(last, Math.max(x + 1, Math.floor(frame.x(track.ends[at]))));
      surface.rect(x, right, top, bottom, paints[track.kinds[at]]);
      if (right - x > 26 * frame.ratio) {
        frame.labels.push({ text: label(track.rows[at], at), left: x, right, top, bottom, paint: paints[track.kinds[at]] });
      }
      x = right;
    } else {
      sumsOf = null;
      track.before(begin, sumsBefore, Math.max(0, at));
      track.before(end, sumsAfter, Math.max(0, at));
      stackColumn(frame, paints, track.present, x, top, bottom, end - begin, 0);
      x += 1;
    }
  }
}

/** Shares of one column; the index of the first span that begins behind it. A wide span there is left to the caller. */
function paintColumn(frame, track, paints, x, top, bottom, least, from) {
  const begin = Math.max(frame.low, frame.time(x));
  const end = Math.min(frame.high, frame.time(x + 1));
  // Columns mostly follow one another: what was before the end of the last is before the begin of this one.
  if (sumsOf === track && sumsTime === begin) [sumsBefore, sumsAfter] = [sumsAfter, sumsBefore];
  else track.before(begin, sumsBefore, Math.max(0, from - 1));
  let next = track.before(end, sumsAfter, from);
  sumsOf = track;
  sumsTime = end;
  stackColumn(frame, paints, track.present, x, top, bottom, end - begin, least);
  if (next <= from) next = from + 1;
  // The last of them may go on far beyond the column.
  if (next - 1 > from && frame.x(track.ends[next - 1]) - frame.x(track.begins[next - 1]) >= ROOM) return next - 1;
  return next;
}

/** Stack `after` - `before` from the bottom up. */
function stackColumn(frame, paints, present, x, top, bottom, length, least) {
  if (x >= frame.surface.width || !(length > 0)) return;
  const height = bottom - top;
  let filled = 0; // exact, so that roundings do not add up
  let y = bottom;
  for (const kind of present) {
    if (y <= top) break;
    const share = (sumsAfter[kind] - sumsBefore[kind]) / length;
    if (share <= 1e-6) continue;
    filled += share;
    let high = Math.max(top, Math.min(y, Math.round(bottom - filled * height)));
    if (y - high < least) high = Math.max(top, y - least);
    if (high < y) frame.surface.column(x, high, y, paints[kind]);
    y = high;
  }
}

/** Bins: shares of each pixel column, or of each bin where these are wider than a pixel. */
export function paintBins(frame, track, paints, top, bottom) {
  const low = Math.max(frame.low, track.begin);
  const high = Math.min(frame.high, track.end);
  if (!(high > low)) return;
  const height = bottom - top;
  if (track.width * frame.scale < 2) {
    const last = Math.min(frame.surface.width, Math.ceil(frame.x(high)));
    const first = Math.max(0, Math.floor(frame.x(low)));
    paintBinColumns(frame, track, paints, top, bottom, [first, last], [low, high]);
    return;
  }
  const firstBin = Math.max(0, track.at(low));
  const lastBin = Math.min(track.count - 1, Math.floor((high - track.begin) / track.width));
  for (let bin = firstBin; bin <= lastBin; bin++) {
    const left = Math.round(frame.x(Math.max(low, track.begin + bin * track.width)));
    const right = Math.round(frame.x(Math.min(high, track.begin + (bin + 1) * track.width)));
    let filled = 0;
    let y = bottom;
    for (const kind of track.present) {
      const sums = track.sums[kind];
      const share = (sums[bin + 1] - sums[bin]) / track.width;
      if (!share) continue;
      filled += share;
      const upper = Math.max(top, Math.round(bottom - filled * height));
      if (upper >= y) continue;
      frame.surface.rect(left, right, upper, y, paints[kind]);
      y = upper;
    }
  }
}

/** Shares of each pixel column: stackColumn and before in one, for a screen of lanes has a hundred thousand columns. */
function paintBinColumns(frame, track, paints, top, bottom, [first, last], [low, high]) {
  const { surface } = frame;
  const { present, count, width } = track;
  const kinds = present.length;
  const sums = present.map((kind) => track.sums[kind]);
  const own = present.map((kind) => paints[kind]);
  const before = new Float64Array(kinds);
  const height = bottom - top;
  let begin = Math.max(low, frame.time(first));
  track.before(begin, sumsBefore);
  sumsOf = null;
  for (let at = 0; at < kinds; at++) before[at] = sumsBefore[present[at]];
  for (let x = first; x < last; x++) {
    const end = Math.min(high, frame.time(x + 1));
    const place = Math.min(count, Math.max(0, (end - track.begin) / width));
    const bin = Math.min(count - 1, Math.floor(place));
    const part = place - bin;
    const scale = height / (end - begin);
    let filled = 0; // exact, so that roundings do not add up
    let y = bottom;
    for (let at = 0; at < kinds; at++) {
      const column = sums[at];
      const value = column[bin] + (column[bin + 1] - column[bin]) * part;
      const held = value - before[at];
      before[at] = value;
      if (!(held > 0) || y <= top) continue;
      filled += held;
      const upper = Math.max(top, Math.round(bottom - filled * scale));
      if (upper < y) surface.column(x, upper, y, own[at]);
      y = Math.min(y, upper);
    }
    begin = end;
  }
}

/** Bins of steps in their whole height, the share that is lost from the top; narrow ones by columns. */
export function paintStepBins(frame, track, bins, lane, top, bottom) {
  if (!(frame.high > frame.low)) return;
  const narrow = bins.rows && ((bins.begin[bins.rows - 1] - bins.begin[0]) / bins.rows) * frame.scale < ROOM;
  if (narrow) {
    paintSpans(frame, track, lane.paints, top, bottom);
    return;
  }
  const { surface } = frame;
  for (let at = track.firstBehind(frame.low); at < track.length && track.begins[at] < frame.high; at++) {
    const row = track.rows[at];
    if (at > 0 && track.rows[at - 1] === row) continue;
    const end = at + 1 < track.length && track.rows[at + 1] === row ? track.ends[at + 1] : track.ends[at];
    const left = Math.round(frame.x(Math.max(frame.low, track.begins[at])));
    const right = Math.max(left + 1, Math.round(frame.x(Math.min(frame.high, end))) - 1);
    const lost = Math.round((bottom - top) * (bins.count[row] ? bins.lost[row] / bins.count[row] : 0));
    surface.rect(left, right, top + lost, bottom, lane.paints[0]);
    surface.rect(left, right, top, top + lost, lane.paints[1]);
    if (right - left > 60 * frame.ratio)
      frame.labels.push({
        text: lane.binLabel(row),
        left,
        right,
        top,
        bottom,
        paint: { ...lane.paints[0], solid: false },
      });
  }
}
