// Charts over time: uPlot with our axes, colours and tip. Dragging selects an interval of time for all panels.
import { axisText } from "./clock.js";
import { incidentColor } from "./colors.js";
import { axisDuration } from "./format.js";
import { make } from "./elements.js";
import { incidentSpans } from "./incidentspans.js";

/* global uPlot */

const LABEL_ROOM = 48; // px at the right: half of the longest label of a time axis, which may stand at its end

const BAND_ALPHA = 0.14;

const TIME_STEPS = [];
for (const unit of [1, 1e3, 1e6]) for (const step of [1, 2, 5, 10, 20, 50, 100, 200, 500]) TIME_STEPS.push(unit * step);
for (const step of [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400])
  TIME_STEPS.push(step * 1e9);
for (const days of [2, 5, 10, 20, 50, 100]) TIME_STEPS.push(days * 86400e9);

/** The colour that an element's text has now: canvases need it. */
export function inkColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function timeAxis(model) {
  return {
    ...axisStyle(),
    space: 100,
    incrs: TIME_STEPS,
    values: (_, splits, axis, space, step) => splits.map((ns) => axisText(model, ns, step)),
    incidents: () => incidentSpans(model),
  };
}

export function axisStyle() {
  return {
    stroke: inkColor("--soft"),
    grid: { stroke: inkColor("--grid"), width: 1 },
    ticks: { stroke: inkColor("--grid"), width: 1 },
    font: "12px system-ui, sans-serif",
  };
}

/** Lengths of time upwards. */
export function lengthAxis() {
  return { ...axisStyle(), size: 70, incrs: TIME_STEPS, values: (_, splits) => splits.map((ns) => axisDuration(ns)) };
}

/**
 * Draw a chart into `mount`. `options` are those of uPlot; besides `onRange([t0, t1] | null)` for what was dragged or
 * double clicked, and `tip(index, plot)`: rows of the tip, [[background | null, text, value]].
 */
export function drawPlot(mount, options, data) {
  const { onRange, tip, ...rest } = options;
  const holder = make("div", { class: "chart" });
  mount.append(holder);
  const bubble = make("div", { class: "tip", hidden: true });
  const hooks = { ...rest.hooks };
  if (onRange) {
    hooks.setSelect = [
      (plot) => {
        const { left, width } = plot.select;
        if (width < 3) return;
        onRange([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")].map(Math.round));
      },
      ...(hooks.setSelect || []),
    ];
  }
  const wrong = (rest.axes || []).find((axis) => axis.incidents);
  if (wrong) hooks.draw = [(plot) => drawBands(plot, wrong.incidents()), ...(hooks.draw || [])];
  if (tip) hooks.setCursor = [(plot) => moveTip(plot, bubble, tip), ...(hooks.setCursor || [])];
  const plot = new uPlot(
    {
      width: Math.max(200, mount.clientWidth),
      legend: { show: false },
      padding: [8, LABEL_ROOM, 0, 0],
      ...rest,
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: Boolean(onRange), y: false, setScale: false },
        ...rest.cursor,
      },
      hooks,
    },
    data,
    holder,
  );
  holder.append(bubble);
  if (onRange) plot.over.addEventListener("dblclick", () => onRange(null));
  plot.over.addEventListener("mouseleave", () => (bubble.hidden = true));
  follow(mount, plot);
  return plot;
}

/** When something was wrong: a band over the chart, with a bar on top of it. */
function drawBands({ ctx, bbox, valToPos }, spans) {
  const least = window.devicePixelRatio || 1;
  ctx.save();
  for (const { begin, end, one } of spans) {
    const left = Math.max(bbox.left, valToPos(begin, "x", true));
    const right = Math.min(bbox.left + bbox.width, Math.max(left + least, valToPos(end, "x", true)));
    if (right <= left) continue;
    ctx.fillStyle = inkColor(`--${incidentColor(one.kind)}`);
    ctx.globalAlpha = BAND_ALPHA;
    ctx.fillRect(left, bbox.top, right - left, bbox.height);
    ctx.globalAlpha = 1;
    ctx.fillRect(left, bbox.top, right - left, 3 * least);
  }
  ctx.restore();
}

function moveTip(plot, bubble, tip) {
  const { idx, left } = plot.cursor;
  const rows = idx === null || idx === undefined || left < 0 ? null : tip(idx, plot);
  bubble.hidden = !rows;
  if (!rows) return;
  bubble.replaceChildren(
    ...rows.map(([background, name, value], at) =>
      make(
        "div",
        { class: at ? "" : "strong" },
        make("span", {}, background ? make("span", { class: "swatch", style: { background } }) : null, name),
        make("span", { text: value ?? "" }),
      ),
    ),
  );
  const over = plot.over;
  const right = left > over.clientWidth / 2;
  bubble.style.top = `${over.offsetTop + 8}px`;
  bubble.style.left = right ? "auto" : `${over.offsetLeft + left + 14}px`;
  bubble.style.right = right ? `${over.offsetParent.clientWidth - over.offsetLeft - left + 14}px` : "auto";
}

const followed = new WeakMap();
const sizes = typeof ResizeObserver === "undefined" ? null : new ResizeObserver((entries) => entries.forEach(resize));

function resize({ target, contentRect }) {
  const plot = followed.get(target);
  const width = Math.floor(contentRect.width);
  if (plot && width > 100 && width !== plot.width) plot.setSize({ width, height: plot.height });
}

/** Keep a chart as wide as its mount. Charts are drawn anew with their panel, so a mount may get another one. */
function follow(mount, plot) {
  followed.set(mount, plot);
  sizes?.observe(mount);
}
