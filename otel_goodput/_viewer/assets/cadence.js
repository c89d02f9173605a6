// From one step's start to the next: on the device, on the host, waiting for data, compiling, saving, other.
import { cssFill, categoryStyle, inkOf } from "./colors.js";
import { covered } from "./device.js";
import { axisStyle, drawPlot, lengthAxis, timeAxis } from "./plot.js";
import { head, make, swatch, table, tableRow, watch } from "./elements.js";
import { fillCard } from "./mount.js";
import { count, duration, percent } from "./format.js";
import { isDetailed, isSettled, scopeOf, scopeTitle, stepRowsIn, timeByCategory } from "./scope.js";
import { whose } from "./subject.js";

// Part of the cadence: the categories it is made of, and the colour it is drawn in.
const CADENCE_PARTS = [
  ["step, on the device", [], "productive"],
  ["step, on the host", ["productive", "wasted_progress", "stalled", "in_flight"], "in_flight"],
  ["exposed data loading", ["data_loading"], "data_loading"],
  ["compiling", ["program_startup"], "program_startup"],
  ["saving", ["checkpoint_save"], "checkpoint_save"],
  ["custom phases", ["custom"], "custom"],
  ["other", null, "other"],
];

export function startCadence(model, state) {
  watch(state, ["document", "range", "attempt", "theme", "clock"], () => drawCadence(model, state));
}

/**
 * Intervals from the first to the last step start of each attempt in a scope: [{begin, end, steps}], `steps` of which
 * each lasts to the next one's start. From the steps, or where these are not held, from bins of steps.
 */
function stepStretches(model, scope) {
  const byAttempt = new Map();
  const see = (attempt, start, number) => {
    const one = byAttempt.get(attempt);
    if (!one) byAttempt.set(attempt, { begin: start, end: start, steps: number });
    else {
      one.begin = Math.min(one.begin, start);
      one.end = Math.max(one.end, start);
      one.steps += number;
    }
  };
  if (isDetailed(model, scope)) {
    for (const row of stepRowsIn(model.steps, scope)) see(model.steps.attempt[row], model.steps.start[row], 1);
    return [...byAttempt.values()]
      .map(({ begin, end, steps }) => ({ begin, end, steps: steps - 1 }))
      .filter((one) => one.steps > 0);
  }
  const { step_bins: bins } = model;
  const last = new Map();
  for (let row = 0; row < bins.rows; row++) {
    if (bins.begin[row] < scope.begin || bins.begin[row] >= scope.end) continue;
    const attempt = model.attempts.find((one) => one.begin <= bins.begin[row] && bins.begin[row] < one.end);
    if (!attempt) continue;
    see(attempt.number, bins.begin[row], bins.count[row]);
    last.set(attempt.number, bins.count[row]);
  }
  return [...byAttempt]
    .map(([attempt, { begin, end, steps }]) => ({ begin, end, steps: steps - last.get(attempt) }))
    .filter((one) => one.steps > 0);
}

/** {steps, total, parts: [[name, ns, category]], exact}: sums over the intervals; the parts add up to the total. */
export function cadenceOf(model, scope) {
  const stretchesFound = stepStretches(model, scope);
  const sums = new Array(model.categories.length).fill(0);
  let steps = 0;
  let device = 0;
  for (const one of stretchesFound) {
    steps += one.steps;
    timeByCategory(model, one.begin, one.end).forEach((ns, category) => (sums[category] += ns));
    if (isDetailed(model, scope)) device += stepsOnDevice(model, one);
  }
  const total = sums.reduce((sum, ns) => sum + ns, 0);
  const parts = CADENCE_PARTS.map(([name, names, category]) => [name, sumOver(model, sums, names), category]);
  // The device works on a step only in time that is the step's.
  device = Math.min(device, parts[1][1]);
  parts[0][1] = device;
  parts[1][1] -= device;
  const rest = parts.find(([name]) => name === "other");
  rest[1] = total - parts.reduce((sum, part) => sum + part[1], 0);
  if (!device) parts[1] = ["step", parts[1][1], "productive"];
  return {
    steps,
    total,
    parts: parts.filter(([, ns]) => ns > 0),
    exact: isSettled(model, scope.begin, scope.end) && isDetailed(model, scope),
  };
}

function sumOver(model, sums, names) {
  return names ? model.categories.reduce((sum, { name }, at) => sum + (names.includes(name) ? sums[at] : 0), 0) : 0;
}

/** Time in an interval in which the device worked on steps. */
function stepsOnDevice(model, interval) {
  const { device } = model;
  const begins = [];
  const ends = [];
  for (let row = 0; row < device.rows; row++) {
    if (device.owner[row] < 0 || device.end[row] < interval.begin || device.begin[row] > interval.end) continue;
    begins.push(device.begin[row]);
    ends.push(device.end[row]);
  }
  return covered(begins, ends, begins.length, interval);
}

const CADENCE_COLUMNS = [
  ["", "text"],
  ["Part", "text"],
  ["Mean per step", "number"],
  ["Share", "number"],
];

function drawCadence(model, state) {
  const scope = scopeOf(model, state);
  const cadence = cadenceOf(model, scope);
  if (!cadence.steps || !cadence.total) return fillCard("cadence");
  const about = cadence.exact ? "" : "≈ ";
  const pieces = cadence.parts.map(([name, ns, category]) =>
    make("span", {
      class: "piece",
      title: `${name}: ${about}${duration(ns / cadence.steps)}`,
      style: { "flex-grow": String(ns / cadence.total), background: cssFill(categoryStyle(category)) },
    }),
  );
  const rows = cadence.parts.map(([name, ns, category]) =>
    tableRow(
      CADENCE_COLUMNS,
      [swatch(cssFill(categoryStyle(category))), name, about + duration(ns / cadence.steps), percent(ns, cadence.total)],
      { data: { part: name, ns: String(ns) } },
    ),
  );
  rows.push(
    tableRow(CADENCE_COLUMNS, ["", "cadence", about + duration(cadence.total / cadence.steps), "100 %"], {
      class: "sum",
      data: { steps: String(cadence.steps), ns: String(cadence.total) },
    }),
  );
  const mount = make("div");
  fillCard(
    "cadence",
    head("Time from one step to the next", `${whose(model)}${scopeTitle(scope)}, mean of ${count(cadence.steps, "step")}`),
    make("div", { class: "bar", role: "img", "aria-label": "Cadence of a step by what it is spent on" }, ...pieces),
    table("Cadence of a step", CADENCE_COLUMNS, rows),
    model.step_bins.rows > 1
      ? make("h3", { text: "Step time over time: minimum, median and maximum of groups of steps" })
      : null,
    mount,
  );
  if (model.step_bins.rows > 1) drawPace(mount, model, state, scope);
}

const knownLength = (ns) => (ns === null ? "–" : duration(ns));

/** Does training slow down? Net time of bins of steps, and their time on the device. */
function drawPace(mount, model, state, scope) {
  const { step_bins: bins } = model;
  const known = (column) => Array.from(bins[column], (ns) => (ns < 0 ? null : ns));
  const order = Array.from({ length: bins.rows }, (_, row) => row).sort(
    (one, other) => bins.begin[one] - bins.begin[other],
  );
  const ordered = (column) => {
    const values = known(column);
    return order.map((row) => values[row]);
  };
  const begins = order.map((row) => bins.begin[row]);
  const [least, median, most, device] = ["net_min", "net_median", "net_max", "device_median"].map(ordered);
  const net = inkOf("productive");
  const dots = { width: 0, points: { show: true, size: 3 } };
  const series = [
    {},
    {
      label: "greatest",
      ...dots,
      stroke: inkOf("wasted_progress"),
      points: { ...dots.points, fill: inkOf("wasted_progress"), stroke: inkOf("wasted_progress") },
    },
    { label: "median", width: 1.5, stroke: net },
    { label: "minimum", width: 1, stroke: inkOf("other") },
  ];
  const columns = [most, median, least];
  if (device.some((ns) => ns !== null)) {
    series.push({ label: "median on the device", width: 1, stroke: inkOf("checkpoint_save"), dash: [4, 3] });
    columns.push(device);
  }
  drawPlot(
    mount,
    {
      height: 170,
      scales: {
        x: { time: false, range: [scope.begin, Math.max(scope.end, scope.begin + 1)] },
        y: { range: (_, low, high) => [0, high * 1.05 || 1] },
      },
      axes: [timeAxis(model), { ...axisStyle(), ...lengthAxis() }],
      series,
      onRange: (range) => state.set({ range, view: range }),
      tip: (at) => [
        [null, `steps ${bins.first[order[at]]} to ${bins.last[order[at]]}`, count(bins.count[order[at]], "step")],
        ...series.slice(1).map((one, each) => [one.stroke, one.label, knownLength(columns[each][at])]),
      ],
    },
    [begins, ...columns],
  );
  mount.append(
    make(
      "div",
      { class: "legends" },
      ...series.slice(1).map((one) => make("span", { class: "legend" }, swatch(one.stroke), one.label)),
    ),
  );
}
