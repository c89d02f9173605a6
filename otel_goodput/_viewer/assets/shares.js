// Where the time went over time: stacked shares of bins, with the restarts marked.
import { canvasFill, cssFill, sourceStyle, sourceTitle, shade } from "./colors.js";
import { axisStyle, drawPlot, inkColor, timeAxis } from "./plot.js";
import { button, head, make, watch } from "./elements.js";
import { fillCard } from "./mount.js";
import { binned, scopeOf, scopeTitle } from "./scope.js";
import { seen } from "./subject.js";
import { duration, percent } from "./format.js";
import { rangeText, timeText } from "./clock.js";

/* global uPlot */

const MARKS = 60; // more restarts than this in sight: lines only

export function startShares(model, state) {
  const names = ["document", "tail", "range", "attempt", "category", "process", "theme", "clock"];
  watch(state, names, () => drawShares(seen(model, state), state));
}

function drawShares(model, state) {
  if (!model.bins.count || !model.report.elapsed_s) return fillCard("shares");
  const scope = scopeOf(model, state);
  const cut = binned(model, scope);
  const order = stackOrder(model, cut);
  const marks = make("div", { class: "marks" });
  const mount = make("div");
  fillCard(
    "shares",
    head(
      "Over time",
      `${scopeTitle(scope)}; bins of ${duration(cut.width)}. Drag to select a time, double click for the whole run`,
    ),
    marks,
    mount,
  );
  const { begins, stacks, held } = stacked(cut, order);
  const drawn = [...order].reverse();
  const shown = order.includes(state.category) ? state.category : null;
  const series = [{}, ...drawn.map((category) => seriesOf(model, shown, category))];
  const plot = drawPlot(
    mount,
    {
      height: chartHeight(),
      scales: {
        x: { time: false, range: [scope.begin, Math.max(scope.end, scope.begin + 1)] },
        y: { range: [0, 100] },
      },
      axes: [timeAxis(model), { ...axisStyle(), size: 52, values: (_, splits) => splits.map((value) => `${value} %`) }],
      series,
      onRange: (range) => state.set({ range, view: range }),
      tip: (at) => tipRows(model, cut, order, held, at),
      hooks: {
        draw: [(made) => drawLines(made, model)],
        setSize: [(made) => placeMarks(marks, made, model, state)],
      },
    },
    [begins, ...stacks],
  );
  placeMarks(marks, plot, model, state);
}

/** As tall as the table beside it, within reason. */
function chartHeight() {
  const available = document.getElementById("account").clientHeight;
  return Math.max(250, Math.min(460, available - 70));
}

/** From the bottom: productive time, then the largest loss. */
function stackOrder(model, cut) {
  const sums = cut.values.map((column) => (column ? column.reduce((sum, value) => sum + value, 0) : 0));
  const rank = (category) => (model.categories[category].name === "productive" ? Infinity : sums[category]);
  return sums
    .map((_, category) => category)
    .filter((category) => sums[category] > 0)
    .sort((one, other) => rank(other) - rank(one));
}

/** Percent up to and with each category of `order`; the last bin is closed by a point of its own. */
function stacked(cut, order) {
  const rows = cut.begins.length;
  const held = new Float64Array(rows);
  for (const category of order) for (let at = 0; at < rows; at++) held[at] += cut.values[category][at];
  const running = new Float64Array(rows);
  const stacks = order.map((category) => {
    const column = cut.values[category];
    const made = [];
    for (let at = 0; at < rows; at++) {
      running[at] += column[at];
      made.push(held[at] ? (100 * running[at]) / held[at] : null);
    }
    made.push(made[made.length - 1]);
    return made;
  });
  // uPlot draws series over those before, so the highest stack comes first: see seriesOf.
  const begins = [...cut.begins, cut.begins[rows - 1] + cut.width];
  return { begins, stacks: stacks.reverse(), held };
}

function seriesOf(model, shown, category) {
  const style = sourceStyle(model.categories[category]);
  const faded = shown !== null && shown !== category;
  return {
    label: sourceTitle(model.categories[category]),
    width: 0,
    points: { show: false },
    paths: uPlot.paths.stepped({ align: 1 }),
    fill: (plot) => (faded ? `${style.color}30` : canvasFill(plot.ctx, style)),
    stroke: faded ? `${style.color}30` : shade(style.color, -0.2),
  };
}

function tipRows(model, cut, order, held, at) {
  const bin = Math.min(at, cut.begins.length - 1);
  const begin = cut.begins[bin];
  const rows = [[null, rangeText(model, [begin, begin + cut.width], duration(cut.width)), ""]];
  for (const category of order) {
    const ns = cut.values[category][bin];
    if (!ns) continue;
    const about = model.categories[category];
    rows.push([cssFill(sourceStyle(about)), sourceTitle(about), percent(ns, held[bin])]);
  }
  return rows;
}

function drawLines(plot, model) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = inkColor("--bad");
  ctx.lineWidth = devicePixelRatio;
  for (const one of model.disruptions) {
    const x = Math.round(plot.valToPos(one.time, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

/** Buttons above the chart: a restart, its reason and what it cost. */
function placeMarks(mount, plot, model, state) {
  const { left, width } = { left: plot.over.offsetLeft, width: plot.over.clientWidth };
  const inSight = model.disruptions
    .map((one, row) => ({ one, row, x: plot.valToPos(one.time, "x") }))
    .filter(({ x }) => x >= 0 && x <= width);
  mount.hidden = !inSight.length || inSight.length > MARKS;
  let reached = -Infinity;
  const made = inSight.map(({ one, row, x }) => {
    const cost = one.recovery_ns + one.wasted_ns;
    const words = `${one.reason} −${duration(cost)}`;
    const room = 4 + 6.6 * words.length;
    const wide = x - room / 2 > reached && x + room / 2 < width + 20;
    if (wide) reached = x + room / 2;
    const losses = `${duration(one.recovery_ns)} down, ${duration(one.wasted_ns)} in lost steps`;
    const full = `${one.reason} at ${timeText(model, one.time, 1e9)}: ${losses}`;
    const go = () => state.set({ selected: { kind: "disruption", row, process: 0 }, view: aroundDisruption(one) });
    return button(wide ? words : "▾", go, {
      class: `mark${wide ? "" : " narrow"}`,
      title: full,
      "aria-label": full,
      style: { left: `${left + x}px` },
    });
  });
  mount.replaceChildren(...made);
}

/** What to show of a disruption: from before the death until after the restart. */
export function aroundDisruption(one) {
  const begin = one.died_at === null ? one.time : Math.min(one.died_at, one.time);
  const pad = Math.max((one.time - begin) * 0.5, 60e9);
  return [begin - pad, one.time + pad];
}
