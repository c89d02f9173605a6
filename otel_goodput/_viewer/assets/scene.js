// One picture of the timeline: lanes in pixels, then what is drawn over them.
import { drawAxis } from "./axis.js";
import { rgb } from "./colors.js";
import { incidentSpans } from "./incidentspans.js";
import { drawConnections, drawCurve, drawFlags, drawIncidents, drawLabels, drawLevels } from "./decoration.js";
import { drawMarks, drawOutline, drawStretch, drawSummed } from "./decoration.js";
import { factsOf } from "./facts.js";
import { laneBins } from "./lanes.js";
import { Frame, paintBins, paintShares, paintSpans, paintStepBins } from "./painting.js";
import { spanPlaces } from "./places.js";
import { relationsOf } from "./relations.js";

export const MAP_HIGH = 26; // heights in CSS pixels: the map of the whole run,
export const SCALE_HIGH = 18; // each of the two scales,
export const FLAGS_HIGH = 20; // the names of disruptions,
export const INCIDENTS_HIGH = 18; // and those of incidents
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

/** Colours of the page's theme, read once. */
function paletteOf(timeline) {
  if (timeline.colors) return timeline.colors;
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  timeline.colors = Object.fromEntries(
    ["card", "sunk", "line", "text", "soft", "accent", "bad", "grid", "focus", "warn"].map((name) => [
      name,
      value(name),
    ]),
  );
  timeline.colors.font = `11px ${FONT}`;
  return timeline.colors;
}

/** Draw the rows in sight. */
export function drawScene(timeline, ratio) {
  const { surface, context } = timeline;
  const colors = paletteOf(timeline);
  surface.resize(timeline.canvas.width, timeline.canvas.height);
  surface.clear(colors.card);
  const frame = (timeline.frame = new Frame(surface, timeline.view(), timeline.canvas.width, ratio));
  const placed = (timeline.placed = timeline.placedRows());
  const device = (y) => Math.round(y * ratio);
  for (const { row, top } of placed)
    if (!row.pinned) paintRow(timeline, frame, row, device(top), device(top + row.height), ratio);
  surface.fill(0, surface.width, 0, device(timeline.bodyTop), colors.card);
  const under = frame.labels.length;
  for (const { row, top } of placed)
    if (row.pinned) paintRow(timeline, frame, row, device(top), device(top + row.height), ratio);
  paintMap(timeline, frame, ratio);
  surface.show(context, 0, 0);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  decorateScene(timeline, frame, placed, under, colors);
}

function paintRow(timeline, frame, row, top, bottom, ratio) {
  const { lane } = row;
  const { surface } = frame;
  const colors = paletteOf(timeline);
  if (!lane) surface.fill(0, surface.width, top, bottom, colors.sunk);
  if (row.id === timeline.active && document.activeElement === timeline.canvas)
    surface.fill(0, surface.width, top, bottom, mixed(colors.card, colors.focus, 0.12));
  if (!lane) return;
  const cut = row.cut ? frame.cut(row.cut) : frame;
  const pad = Math.max(1, Math.round(2 * ratio));
  const [high, low] = [top + pad, bottom - pad];
  const bins = laneBins(lane);
  if (bins && lane.binKind === "bin" && (lane.ofProcess || lane.summed.length))
    paintBins(cut, bins, shownPaints(timeline, lane), high, low);
  if (bins && lane.binKind === "steps")
    for (const part of lane.summed) paintStepBins(cut.cut(part), bins, timeline.model.step_bins, lane, high, low);
  const depth = lane.tracks.length;
  lane.tracks.forEach((track, at) => {
    const upper = depth > 1 ? Math.round(high + ((low - high) * at) / depth) : high;
    const lower = depth > 1 ? Math.round(high + ((low - high) * (at + 1)) / depth) - 1 : low;
    const options = {
      least: Math.round((lane.least || 1) * ratio),
      label: lane.labelOf ? lane.labelOf(at) : lane.label,
    };
    if (lane.flags && !(lane.paintsOf && at === 0)) options.mark = flagMarks(surface, lane.flags, ratio, colors.bad);
    if (lane.kind === "owner") paintShares(cut, track, shownPaints(timeline, lane), upper, lower, lane.label);
    else paintSpans(cut, track, lane.paintsOf ? lane.paintsOf(at) : shownPaints(timeline, lane), upper, lower, options);
  });
  if (lane.summed && !lane.ofProcess)
    for (const [begin, end] of lane.summed)
      surface.veil(
        Math.round(cut.x(Math.max(begin, cut.low))),
        Math.round(cut.x(Math.min(end, cut.high))),
        high,
        low,
        colors.card,
      );
}

/** Paints of a lane of categories, the others pale where one is emphasised. */
function shownPaints(timeline, lane) {
  const { category } = timeline.state;
  if (category === null || lane.paints !== timeline.source.categories) return lane.paints;
  const pale = mixed(paletteOf(timeline).card, paletteOf(timeline).soft, 0.18);
  const dim = {
    ...lane.paints[0],
    solid: true,
    base: packedColor(pale),
    tile: new Uint32Array(64).fill(packedColor(pale)),
    ink: paletteOf(timeline).soft,
    color: pale,
  };
  return lane.paints.map((paint, at) => (at === category ? paint : dim));
}

function paintMap(timeline, frame, ratio) {
  const whole = new Frame(frame.surface, timeline.whole, frame.width, ratio);
  if (timeline.model.bins.count)
    paintBins(
      whole,
      timeline.source.mainBins(),
      timeline.source.categories,
      Math.round(3 * ratio),
      Math.round((MAP_HIGH - 4) * ratio),
    );
}

function decorateScene(timeline, frame, placed, under, colors) {
  const { context } = timeline;
  const [width, height] = [timeline.width, timeline.height];
  drawAxis(context, frame, colors, timeline.model.origin_ms, {
    top: MAP_HIGH,
    height: SCALE_HIGH,
    bottom: height,
    width,
  });
  drawStretch(context, new Frame(frame.surface, timeline.whole, frame.width, frame.ratio), timeline.view(), colors, {
    top: 1,
    bottom: MAP_HIGH - 2,
    width,
    kind: "map",
  });
  const within = (top, callback) => {
    context.save();
    context.beginPath();
    context.rect(0, top, width, height - top);
    context.clip();
    callback();
    context.restore();
  };
  const rest = (chosen, top, labels) =>
    within(top, () => {
      drawLabels(context, labels, frame.ratio, colors);
      for (const { row, top: y } of chosen) {
        if (!row.lane) continue;
        if (row.lane.summed && !row.lane.ofProcess) drawSummed(context, frame, row.lane, y, row.height, colors);
        if (row.lane.marks) drawMarks(context, frame, row.lane.marks, y, row.height, colors);
        if (row.lane.levels) drawLevels(context, frame, row.lane.levels, timeline.model.end, y, row.height, colors);
        if (row.lane.curve) drawCurve(context, frame, row.lane, y, row.height, colors);
      }
    });
  rest(
    placed.filter(({ row }) => !row.pinned),
    timeline.bodyTop,
    frame.labels.slice(0, under),
  );
  rest(
    placed.filter(({ row }) => row.pinned),
    timeline.head,
    frame.labels.slice(under),
  );
  drawIncidents(context, frame, incidentSpans(timeline.model), colors, {
    top: timeline.head - INCIDENTS_HIGH,
    high: INCIDENTS_HIGH,
    bottom: height,
    width,
  });
  timeline.flags = drawFlags(context, frame, timeline.model.disruptions, colors, {
    top: MAP_HIGH + 2 * SCALE_HIGH,
    high: FLAGS_HIGH,
    bottom: height,
    width,
  });
  within(timeline.head, () => decorateSelection(timeline, frame, placed, colors));
  const body = { top: MAP_HIGH, bottom: height, width };
  if (timeline.state.range) drawStretch(context, frame, timeline.state.range, colors, { ...body, kind: "range" });
  if (timeline.measure && timeline.measure.end !== null)
    drawStretch(context, frame, [timeline.measure.begin, timeline.measure.end], colors, {
      ...body,
      kind: "measure",
    });
  if (timeline.tree.pinnedHeight) {
    context.fillStyle = colors.soft;
    context.fillRect(0, timeline.bodyTop - 1, width, 1);
  }
}

function decorateSelection(timeline, frame, placed, colors) {
  const selected = timeline.selected();
  if (!selected) return;
  const facts = factsOf(timeline.source, selected);
  const places = placed.flatMap(({ row, top }) =>
    row.lane ? spanPlaces(timeline.source, row.lane, selected, facts).map((place) => ({ ...place, row, top })) : [],
  );
  drawOutline(timeline.context, frame, facts, places, colors, timeline.height);
  drawConnections(timeline.context, frame, relationsOf(timeline.source, selected), placed, colors);
}

function packedColor(color) {
  const [red, green, blue] = rgb(color);
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** "#rrggbb" between two colours. */
function mixed(one, other, part) {
  const [first, second] = [rgb(one), rgb(other)];
  return `#${first
    .map((value, at) =>
      Math.round(value + (second[at] - value) * part)
        .toString(16)
        .padStart(2, "0"),
    )
    .join("")}`;
}

/** Draws what is wrong with a span onto it: failed ones have a red edge below, slow ones one above. */
function flagMarks(surface, flags, ratio, bad) {
  const edge = Math.max(2, Math.round(2.5 * ratio));
  return (row, left, right, top, bottom) => {
    if (flags[row] & 2) surface.fill(left, right, bottom - edge, bottom, bad);
    if (flags[row] & 8) surface.fill(left, right, top, top + edge, bad);
  };
}
