// Draws random lanes with the timeline's own modules and holds them against a second reading, as slow and plain as can
// be. Imported by test_timeline.py into a page that has the page's own modules; throws at the first difference.
import { BinTrack, packTracks, uncovered } from "./spans.js";
import { Frame, paintBins, paintSpans } from "./painting.js";
import { relativeTicks, utcTicks } from "./axis.js";

/** Throw unless it holds. */
function assert(holds, what = "") {
  if (!holds) throw new Error(`it does not hold: ${what}`);
}

assert.equal = (one, other) => assert(one === other, `${one} is ${other}`);
assert.notEqual = (one, other) => assert(one !== other, `${one} is not ${other}`);
assert.deepEqual = (one, other) => assert.equal(JSON.stringify(one), JSON.stringify(other));

let drawn = 1;
/** A whole number below `limit`, the same ones for the same seed. */
function random(limit) {
  drawn = (drawn * 48271) % 2147483647;
  return drawn % limit;
}

const KINDS = 4;
const END = 100000;

function randomSpans(count, apart) {
  const spans = [];
  let time = 0;
  for (let row = 0; row < count; row++) {
    const begin = apart ? time + random(50) : random(END);
    const end = begin + random(apart ? 60 : 3000);
    spans.push([begin, end, random(KINDS), row]);
    time = end;
  }
  return spans;
}

const held = ([begin, end], low, high) => Math.max(0, Math.min(end, high) - Math.max(begin, low));
const sumOf = (spans, kind, low, high) =>
  spans.reduce((sum, span) => sum + (span[2] === kind ? held(span, low, high) : 0), 0);

/** What is painted, by column and kind. */
class Picture {
  constructor(width, height) {
    this.width = width;
    this.height = height;
    this.columns = Array.from({ length: width }, () => new Array(height).fill(-1));
  }
  column(x, top, bottom, kind) {
    for (let y = top; y < bottom; y++) this.columns[x][y] = kind;
  }
  rect(left, right, top, bottom, kind) {
    for (let x = Math.max(0, left); x < Math.min(right, this.width); x++) this.column(x, top, bottom, kind);
  }
  pixels(x, kind) {
    return this.columns[x].filter((one) => one === kind).length;
  }
}

function packing() {
  const spans = randomSpans(200, false);
  const tracks = packTracks(
    spans.map((one) => [...one]),
    KINDS,
  );
  const rows = [];
  for (const track of tracks) {
    for (let at = 0; at < track.length; at++) {
      rows.push(track.rows[at]);
      if (at) assert(track.ends[at - 1] <= track.begins[at], "spans of a track overlap");
      if (tracks.length < 24) assert.equal(track.ends[at], spans[track.rows[at]][1]);
    }
  }
  assert.deepEqual(
    rows.sort((one, other) => one - other),
    spans.map((_, row) => row),
    "every span is in one track",
  );
}

function sums() {
  const spans = randomSpans(300, true);
  const [track] = packTracks(
    spans.map((one) => [...one]),
    KINDS,
  );
  const into = new Float64Array(KINDS);
  for (let tries = 0; tries < 200; tries++) {
    const time = random(20000);
    track.before(time, into);
    for (let kind = 0; kind < KINDS; kind++) assert.equal(into[kind], sumOf(spans, kind, 0, time));
  }
}

function columns() {
  const spans = randomSpans(400, true);
  const [track] = packTracks(
    spans.map((one) => [...one]),
    KINDS,
  );
  const end = spans[spans.length - 1][1];
  const width = 20 + random(60);
  const low = random(Math.floor(end / 3));
  const high = end - random(Math.floor(end / 3));
  const picture = new Picture(width, 100);
  const frame = new Frame(picture, [low, high], width, 1);
  paintSpans(frame, track, [0, 1, 2, 3], 0, 100, { least: 0 });
  for (let x = 0; x < width; x++) {
    const [begin, until] = [frame.time(x), frame.time(x + 1)];
    // A span as wide as a few pixels is drawn by itself, with a gap: there only what it is counts.
    const wide = spans.some((one) => (one[1] - one[0]) * frame.scale >= 2.5 && held(one, begin, until) > 0);
    if (wide) continue;
    for (let kind = 0; kind < KINDS; kind++) {
      const share = sumOf(spans, kind, begin, until) / (until - begin);
      assert(Math.abs(picture.pixels(x, kind) - 100 * share) <= 1.01, `column ${x}: ${picture.pixels(x, kind)}, ${share}`);
    }
  }
}

function bins() {
  const count = 1 + random(60);
  const values = Array.from({ length: count }, () => [random(400), random(300), random(300), 0]);
  const track = new BinTrack(0, 1000, count, KINDS, (kind, bin) => values[bin][kind], [0, 1, 2, 3]);
  const into = new Float64Array(KINDS);
  for (let bin = 0; bin <= count; bin++) {
    track.before(bin * 1000, into);
    for (let kind = 0; kind < 3; kind++) assert.equal(into[kind], values.slice(0, bin).reduce((sum, one) => sum + one[kind], 0));
  }
  const picture = new Picture(4 * count, 100);
  paintBins(new Frame(picture, [0, 1000 * count], 4 * count, 1), track, [0, 1, 2, 3], 0, 100);
  for (let bin = 0; bin < count; bin++) {
    for (let kind = 0; kind < 3; kind++) {
      assert(Math.abs(picture.pixels(4 * bin + 1, kind) - values[bin][kind] / 10) <= 1.01);
    }
  }
}

function stretches() {
  const windows = Array.from({ length: random(6) }, () => random(900)).map((begin) => [begin, begin + 1 + random(200)]);
  windows.sort((one, other) => one[0] - other[0]);
  const rest = uncovered(windows, 0, 1000);
  for (let time = 0; time < 1000; time++) {
    const inside = (parts) => parts.some(([begin, end]) => begin <= time && time < end);
    assert.notEqual(inside(windows), inside(rest));
  }
}

function scales() {
  const width = 10 ** (2 + random(15)) * (1 + random(9));
  const low = random(1000000) * 1000;
  const view = [low, low + width];
  for (const ticks of [relativeTicks(view, 1200 / width), utcTicks(view, 1200 / width, 1764000000123)]) {
    assert(ticks.length <= 14, "labels touch");
    for (const { time, text } of ticks) {
      assert(time >= low && time < low + width);
      assert(text.length > 0 && !text.includes("NaN"));
    }
  }
}

/** All of it, sixty times; the same for the same seed. Returns the number of rounds. */
export function drawnAsListed(seed) {
  drawn = Number(seed) + 1;
  let rounds = 0;
  for (; rounds < 60; rounds++) for (const check of [packing, sums, columns, bins, stretches, scales]) check();
  return rounds;
}
