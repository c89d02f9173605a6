// The reader's own charts: durations of a phase, a name, a part or a function, over time or as a histogram.
// They are kept in the address, so a shared link shows them too.
import { cssFill, phaseStyle } from "./colors.js";
import { drawPlot, lengthAxis, timeAxis } from "./plot.js";
import { button, choice, head, make, select, swatch, watch } from "./elements.js";
import { fillCard } from "./mount.js";
import { count, duration } from "./format.js";
import { rowsIn, scopeOf, stepRowsIn } from "./scope.js";
import { NONBLOCKING, addChart, draws, groupTitle, phaseTitle } from "./topk.js";
import { timeText } from "./clock.js";

/* global uPlot */

const CHART_BINS = 40;
const CHART_FORMS = [
  ["time", "Over time"],
  ["histogram", "Histogram"],
];

export function startCharts(model, state) {
  watch(state, ["document", "range", "attempt", "charts", "theme", "clock"], () => drawCharts(model, state));
}

/** What there can be a chart of, the longest in all first. */
function chartChoices(model) {
  const job = model.phase_names.indexOf("job");
  return model.groups
    .filter((group) => group.phase !== job && group.count)
    .sort((one, other) => other.sum_ns - one.sum_ns);
}

function drawCharts(model, state) {
  const groups = chartChoices(model);
  if (!groups.length) return fillCard("own-charts");
  const free = groups.filter((group) => !state.charts.some((one) => draws(model, one, group)));
  const titles = free.map((group, at) => {
    const phase = model.phase_names[group.phase].replaceAll("_", " ");
    return [
      String(at),
      `${shorten(groupTitle(model, group))}${group.name ? ` (${phase})` : ""}, ${group.count.toLocaleString("en")}`,
    ];
  });
  const list = select("What to plot", titles, "0", () => {});
  const plus = button("+ chart", () => free.length && addChart(model, state, free[Number(list.value)]), {
    id: "add-chart",
    disabled: !free.length,
  });
  const mounts = state.charts.map(() => make("div", { class: "own-chart" }));
  fillCard(
    "own-charts",
    head("Charts of your own", "saved in the page's address", list, plus),
    mounts.length ? make("div", { class: "own-grid" }, ...mounts) : null,
  );
  state.charts.forEach((spec, at) => drawOwn(mounts[at], model, state, spec, at));
}

const shorten = (text) => (text.length > 60 ? `${text.slice(0, 57)}…` : text);

/** [start, length, row] of each of what a chart is about that has ended, in order. */
export function durationsOf(model, scope, spec) {
  const { steps, phases } = model;
  const durations = [];
  if (spec.of === "step") {
    for (const row of stepRowsIn(steps, scope))
      if (steps.wall[row] >= 0) durations.push([steps.start[row], steps.wall[row], row]);
  } else {
    const phase = model.phase_names.indexOf(spec.of);
    const name = model.names.indexOf(spec.name);
    for (const row of rowsIn(phases, scope)) {
      const background = Boolean(phases.flags[row] & NONBLOCKING);
      if (background !== Boolean(spec.background)) continue;
      if (phases.phase[row] === phase && phases.name[row] === name && phases.wall[row] >= 0)
        durations.push([phases.start[row], phases.wall[row], row]);
    }
  }
  return durations.sort((one, other) => one[0] - other[0]);
}

function drawOwn(mount, model, state, spec, at) {
  const scope = scopeOf(model, state);
  const durations = durationsOf(model, scope, spec);
  const total = durations.reduce((sum, one) => sum + one[1], 0);
  const form = spec.form === "histogram" ? "histogram" : "time";
  const replace = (changed) => state.set({ charts: state.charts.map((one, each) => (each === at ? changed : one)) });
  const title = phaseTitle(spec.of, spec.name, spec.background);
  const style = phaseStyle(spec.of, spec.name);
  const whole = model.groups.find((group) => draws(model, spec, group));
  const left =
    scope.kind === "run" && whole && whole.count > durations.length
      ? `; ${whole.count.toLocaleString("en")} in all, the others are only summed up`
      : "";
  mount.append(
    make(
      "div",
      { class: "card-head" },
      make("h3", { class: "clamp", title }, swatch(cssFill(style)), title),
      make("span", {
        class: "soft",
        text: `${count(durations.length, "time")}, ${duration(total)} in all${left}`,
      }),
      make(
        "span",
        { class: "tools" },
        choice("Form", CHART_FORMS, form, (value) => replace({ ...spec, form: value })),
        button("Remove", () => state.set({ charts: state.charts.filter((_, each) => each !== at) }), {
          class: "remove-chart",
          "aria-label": `Remove the chart of ${title}`,
        }),
      ),
    ),
  );
  if (!durations.length)
    return mount.append(
      make("p", {
        class: "soft",
        text: whole ? "None ended in this time." : "This run has nothing with this name.",
      }),
    );
  const plot = make("div");
  mount.append(plot);
  if (form === "time") drawOverTime(plot, model, state, scope, durations, style);
  else drawLengths(plot, durations, style);
  return undefined;
}

function drawOverTime(mount, model, state, scope, durations, style) {
  drawPlot(
    mount,
    {
      height: 180,
      scales: {
        x: { time: false, range: [scope.begin, Math.max(scope.end, scope.begin + 1)] },
        y: { range: (_, low, high) => [0, high * 1.08 || 1] },
      },
      axes: [timeAxis(model), lengthAxis()],
      series: [
        {},
        {
          width: 0,
          stroke: style.color,
          points: { show: true, size: durations.length > 500 ? 3 : 6, fill: style.color, stroke: style.color },
        },
      ],
      onRange: (range) => state.set({ range, view: range }),
      tip: (at) => [[style.color, duration(durations[at][1]), timeText(model, durations[at][0])]],
    },
    [durations.map((one) => one[0]), durations.map((one) => one[1])],
  );
}

function drawLengths(mount, durations, style) {
  const lengths = durations.map((one) => one[1]);
  const low = lengths.reduce((least, one) => Math.min(least, one));
  const high = lengths.reduce((most, one) => Math.max(most, one)) + 1;
  const width = Math.max(1, (high - low) / CHART_BINS);
  const counts = new Array(CHART_BINS).fill(0);
  for (const length of lengths) counts[Math.min(CHART_BINS - 1, Math.floor((length - low) / width))] += 1;
  const edges = counts.map((_, at) => low + (at + 0.5) * width);
  drawPlot(
    mount,
    {
      height: 180,
      scales: { x: { time: false, range: [low, high] }, y: { range: (_, least, most) => [0, most * 1.08 || 1] } },
      axes: [
        { ...lengthAxis(), size: 30, space: 90 },
        {
          ...lengthAxis(),
          size: 60,
          incrs: undefined,
          values: (_, splits) => splits.map((one) => (Number.isInteger(one) ? one.toLocaleString("en") : "")),
        },
      ],
      series: [
        {},
        {
          stroke: style.color,
          fill: style.color,
          width: 1,
          points: { show: false },
          paths: uPlot.paths.bars({ size: [0.9] }),
        },
      ],
      tip: (at) => [
        [
          style.color,
          `${duration(low + at * width)} – ${duration(low + (at + 1) * width)}`,
          counts[at].toLocaleString("en"),
        ],
      ],
    },
    [edges, counts],
  );
}
