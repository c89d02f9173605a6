// How long steps took: net, wall or device time, coloured by fate; a bar lists its steps, a step leads to the timeline.
import { FATE_NAMES, cssFill, fateStyle } from "./colors.js";
import { spanEnd } from "./data.js";
import { button, choice, goTo, head, make, swatch, table, watch } from "./elements.js";
import { fillCard } from "./mount.js";
import { axisDuration, count, duration } from "./format.js";
import { centred, isDetailed, scopeOf, scopeTitle, stepRowsIn } from "./scope.js";
import { timeText } from "./clock.js";
import { reportOf, whose } from "./subject.js";

const MEASURES = [
  ["net", "Net"],
  ["wall", "Wall"],
  ["device", "Device"],
];
const LINEAR_BINS = 60;
const LISTED = 200;
const SLOWEST = 10;
const FATES = [0, 1, 2, 3];

// Choices of this panel alone.
// `scale` null: linear where steps are held one by one, else logarithmic, as the buckets are.
const look = { measure: "net", scale: null, bin: null };

export function startHistogram(model, state) {
  const draw = () => drawHistogram(model, state, draw);
  state.on(["range", "attempt"], () => (look.bin = null));
  watch(state, ["document", "range", "attempt", "theme", "clock"], draw);
}

/** Time of a step in a row of `steps`, or -1. */
export function stepTime(steps, row, measure) {
  if (measure === "wall") return steps.wall[row];
  if (measure === "net") return steps.wall[row] < 0 ? -1 : steps.net[row];
  return steps.device_begin[row] < 0 || steps.device_end[row] < 0
    ? -1
    : steps.device_end[row] - steps.device_begin[row];
}

/** {bins: [{low, high, counts by fate, rows}], exact, missing}: of steps one by one, or of the document's buckets. */
export function histogramOf(model, scope, measure, scale) {
  if (isDetailed(model, scope)) return exactBins(model, scope, measure, scale);
  const { histogram } = model;
  const wanted = MEASURES.findIndex(([name]) => name === measure);
  const byBucket = new Map();
  let missing = 0;
  for (let row = 0; row < histogram.rows; row++) {
    if (histogram.measure[row] !== wanted) continue;
    if (scope.kind === "attempt" && histogram.attempt[row] !== scope.attempt.number) continue;
    // In the lowest bucket are those that were cut off before any time was theirs.
    if (histogram.bucket[row] === 0) missing += histogram.count[row];
    else addTo(byBucket, histogram.bucket[row], histogram.fate[row], histogram.count[row]);
  }
  const bins = [...byBucket.values()].sort((one, other) => one.low - other.low);
  const rows = stepRowsIn(model.steps, scope);
  for (const row of rows) {
    const time = stepTime(model.steps, row, measure);
    if (time > 0) byBucket.get(bucketOf(time))?.rows.push(row);
  }
  return { bins, exact: false, missing };
}

function addTo(byBucket, bucket, fate, number) {
  if (!byBucket.has(bucket))
    byBucket.set(bucket, { low: bucketEdge(bucket), high: bucketEdge(bucket + 1), counts: [0, 0, 0, 0], rows: [] });
  const bin = byBucket.get(bucket);
  bin.counts[fate] += number;
  return bin;
}

const bucketEdge = (bucket) => 2 ** (bucket / 16);
const bucketOf = (time) => Math.floor(16 * Math.log2(time));

function exactBins(model, scope, measure, scale) {
  const { steps } = model;
  const timed = [];
  let missing = 0;
  for (const row of stepRowsIn(steps, scope)) {
    const time = stepTime(steps, row, measure);
    if (time > 0) timed.push([time, row]);
    else missing += 1;
  }
  if (!timed.length) return { bins: [], exact: true, missing };
  if (scale === "log") {
    const byBucket = new Map();
    for (const [time, row] of timed) addTo(byBucket, bucketOf(time), steps.fate[row], 1).rows.push(row);
    return { bins: [...byBucket.values()].sort((one, other) => one.low - other.low), exact: true, missing };
  }
  const sorted = Float64Array.from(timed, ([time]) => time).sort();
  const low = sorted[0];
  const high = sorted[sorted.length - 1] + 1;
  // The last bar holds all that is far longer than the others, so that these can be told apart.
  const usual = Math.min(high, sorted[Math.floor(0.995 * (sorted.length - 1))] * 1.1 + 1);
  const width = Math.max(1, (usual - low) / LINEAR_BINS);
  const bins = Array.from({ length: LINEAR_BINS }, (_, at) => ({
    low: low + at * width,
    high: low + (at + 1) * width,
    counts: [0, 0, 0, 0],
    rows: [],
  }));
  if (high > usual) bins.push({ low: low + LINEAR_BINS * width, high, counts: [0, 0, 0, 0], rows: [], rest: true });
  for (const [time, row] of timed) {
    const bin = bins[Math.min(bins.length - 1, Math.floor((time - low) / width))];
    bin.counts[steps.fate[row]] += 1;
    bin.rows.push(row);
  }
  return { bins, exact: true, missing };
}

function drawHistogram(model, state, draw) {
  if (!reportOf(model).started_steps) return fillCard("histogram");
  const scope = scopeOf(model, state);
  const scale = look.scale || (isDetailed(model, scope) ? "linear" : "log");
  const shown = { ...histogramOf(model, scope, look.measure, scale), scale };
  const change = (changes) => {
    Object.assign(look, { bin: null }, changes);
    draw();
  };
  const total = shown.bins.reduce((sum, bin) => sum + sumOf(bin), 0);
  const note = noteOf(model, scope, shown, total);
  fillCard(
    "histogram",
    head(
      "How long steps took",
      note,
      choice("What is measured", MEASURES, look.measure, (measure) => change({ measure })),
      choice(
        "Axis",
        [
          ["linear", "Linear"],
          ["log", "Log"],
        ],
        scale,
        (value) => change({ scale: value }),
      ),
    ),
    total
      ? histogramBars(model, shown, draw)
      : make("p", { class: "soft", text: `No step with a known ${look.measure} time here.` }),
    total ? fateLegend(shown) : null,
    total && look.bin !== null && shown.bins[look.bin] ? stepList(model, state, shown.bins[look.bin], shown) : null,
    total ? slowestSteps(model, state, scope) : null,
    total ? countsTable(shown) : null,
  );
}

function noteOf(model, scope, shown, total) {
  const parts = [
    scope.kind === "range" && !shown.exact ? "whole run (no single steps are available for this time)" : scopeTitle(scope),
    count(total, "step"),
  ];
  if (shown.missing) parts.push(`${shown.missing.toLocaleString("en")} without this figure`);
  if (!shown.exact) parts.push("in buckets 4.4 % wide");
  return `${whose(model)}${parts.join(", ")}`;
}

const sumOf = (bin) => bin.counts.reduce((sum, one) => sum + one, 0);

function histogramBars(model, { bins, scale }, draw) {
  const most = Math.max(...bins.map(sumOf));
  const place = placing(bins, scale);
  const columns = bins.map((bin, at) => {
    const sum = sumOf(bin);
    const [left, width] = place(bin);
    const words = `${edgesOf(bin)}: ${count(sum, "step")}${fateWords(bin)}`;
    const parts = FATES.filter((fate) => bin.counts[fate]).map((fate) =>
      make("span", {
        style: { height: `${(100 * bin.counts[fate]) / most}%`, background: cssFill(fateStyle(fate)) },
      }),
    );
    const column = button("", () => ((look.bin = look.bin === at ? null : at), draw()), {
      class: "column",
      title: words,
      "aria-label": words,
      "aria-pressed": String(look.bin === at),
      tabindex: at === (look.bin ?? firstFull(bins)) ? "0" : "-1",
      disabled: !sum,
      data: { bin: String(at) },
      style: { left: `${left}%`, width: `max(3px, calc(${width}% - 1px))` },
    });
    column.append(...parts);
    return column;
  });
  const plot = make(
    "div",
    { class: "columns", role: "group", "aria-label": "Steps by length; arrow keys go from bar to bar" },
    ...columns,
  );
  plot.addEventListener("keydown", walkBars);
  const ticks = tickBins(bins).map((bin) =>
    make("span", { text: axisDuration(bin.low), style: bin.rest ? { right: "0" } : { left: `${place(bin)[0]}%` } }),
  );
  return make(
    "div",
    { class: "histogram" },
    make("span", { class: "most soft", text: most.toLocaleString("en") }),
    plot,
    make("div", { class: "columns-axis" }, ...ticks),
  );
}

const firstFull = (bins) => bins.findIndex((bin) => sumOf(bin) > 0);

/** Where a bar stands, in percent: by length on the linear axis, by its logarithm on the other. */
function placing(bins, scale) {
  const on = scale === "log" ? Math.log2 : (value) => value;
  const bounded = bins.filter((bin) => !bin.rest);
  const low = on(bounded[0].low);
  const high = on(bounded[bounded.length - 1].high);
  const room = bins.length > bounded.length ? 96 : 100;
  return (bin) => {
    if (bin.rest) return [97, 3];
    const left = (room * (on(bin.low) - low)) / (high - low);
    return [left, (room * (on(bin.high) - low)) / (high - low) - left];
  };
}

/** A few bins whose lower edges are written below. */
function tickBins(bins) {
  const every = Math.max(1, Math.ceil(bins.filter((bin) => !bin.rest).length / 5));
  const last = bins.length - 1;
  return bins.filter((bin, at) => (at % every === 0 && at < last - every / 2) || bin.rest);
}

function edgesOf(bin) {
  return bin.rest ? `${duration(bin.low)} and more` : `${duration(bin.low)} – ${duration(bin.high)}`;
}

function fateWords(bin) {
  const fates = FATES.filter((fate) => bin.counts[fate]).map(
    (fate) => `${bin.counts[fate].toLocaleString("en")} ${FATE_NAMES[fate]}`,
  );
  return ` (${fates.join(", ")})`;
}

function walkBars(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  event.stopPropagation();
  const all = [...event.currentTarget.querySelectorAll(".column:not(:disabled)")];
  const next = all[all.indexOf(document.activeElement) + step];
  if (next) next.focus();
}

function fateLegend({ bins }) {
  const present = FATES.filter((fate) => bins.some((bin) => bin.counts[fate]));
  return make(
    "div",
    { class: "legends" },
    ...present.map((fate) => make("span", { class: "legend" }, swatch(cssFill(fateStyle(fate))), FATE_NAMES[fate])),
  );
}

const LISTED_COLUMNS = [
  ["Step", "text"],
  ["Attempt", "number"],
  ["Start", "text"],
  ["Time", "number"],
  ["Fate", "text"],
];

/** Rows of `steps`, the longest first, and the first `most` of them as cells of a table. */
function longestFirst(model, state, unsorted, most) {
  const { steps } = model;
  const rows = [...unsorted].sort(
    (one, other) => stepTime(steps, other, look.measure) - stepTime(steps, one, look.measure),
  );
  const listed = rows
    .slice(0, most)
    .map((row) => [
      button(`step ${steps.number[row]}`, () => showStep(model, state, row), { class: "link" }),
      String(steps.attempt[row]),
      timeText(model, steps.start[row]),
      duration(stepTime(steps, row, look.measure)),
      FATE_NAMES[steps.fate[row]],
    ]);
  return { rows, listed };
}

/** The slowest steps of a scope. Of a long run the slow ones are held one by one in any case. */
function slowestSteps(model, state, scope) {
  const timed = [...stepRowsIn(model.steps, scope)].filter((row) => stepTime(model.steps, row, look.measure) > 0);
  if (!timed.length) return null;
  const { listed } = longestFirst(model, state, timed, SLOWEST);
  return make(
    "details",
    { id: "slowest-steps", open: true },
    make("summary", { text: `The ${count(listed.length, "slowest step")}` }),
    make("div", { class: "scroll short" }, table("Slowest steps", LISTED_COLUMNS, listed)),
  );
}

/** The steps of a bar, the longest first. */
function stepList(model, state, bin, shown) {
  const { rows, listed } = longestFirst(model, state, bin.rows, LISTED);
  const total = sumOf(bin);
  let note = `${edgesOf(bin)}: ${count(total, "step")}`;
  if (rows.length < total) note += `; ${rows.length.toLocaleString("en")} of them are listed one by one`;
  if (rows.length > LISTED) note += `; the ${LISTED} longest are listed`;
  return make(
    "div",
    { class: "step-list", id: "histogram-steps" },
    make("p", { class: "soft", text: note, data: { exact: String(shown.exact) } }),
    listed.length ? make("div", { class: "scroll short" }, table("Steps of the bar", LISTED_COLUMNS, listed)) : null,
  );
}

/** Select a step and put it into the middle of the timeline. */
export function showStep(model, state, row) {
  const { steps } = model;
  const length = spanEnd(steps.start[row], steps.wall[row], model.end) - steps.start[row];
  const process = model.processes.find((one) => one.leader)?.index ?? 0;
  state.set({
    selected: { kind: "step", row, process },
    view: centred(model, steps.start[row] + length / 2, 4 * length),
  });
  goTo("timeline-card");
}

function countsTable({ bins }) {
  const columns = [
    ["From", "number"],
    ["To", "number"],
    ["Steps", "number"],
    ...FATES.map((fate) => [FATE_NAMES[fate], "number"]),
  ];
  const full = bins.filter((bin) => sumOf(bin));
  const rows = full.map((bin) => [
    duration(bin.low),
    duration(bin.high),
    make("span", { text: String(sumOf(bin)), data: { count: String(sumOf(bin)) } }),
    ...FATES.map((fate) => String(bin.counts[fate])),
  ]);
  return make(
    "details",
    {},
    make("summary", { text: "Counts as a table" }),
    make("div", { class: "scroll short" }, table("Steps by length", columns, rows, { id: "histogram-table" })),
  );
}
