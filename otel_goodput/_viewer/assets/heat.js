// The canvas of the map of ranks over time: pixels of cells, marks of waits, hover, keys.
import { axisText } from "./clock.js";
import { canvasFill, categoryStyle, incidentColor, sourceStyle } from "./colors.js";
import { make } from "./elements.js";
import { incidentSpans } from "./incidentspans.js";
import { heatPixels } from "./heatscale.js";

export const HEAT_MARGIN = 64; // px at the left, for the numbers of the processes
const HEAT_AXIS = 20;
const HIGHEST = 22; // px of a row
const HEAT_ROOM = 512; // px of all rows; of more processes, neighbors share a row
const LABEL_HIGH = 13;
const MARK_HIGH = 3; // px at least
const KEY_STEP = 8; // px

const heatSizes = typeof ResizeObserver === "undefined" ? null : new ResizeObserver((entries) => entries.forEach(heatResized));
const heatDrawn = new WeakMap(); // by mount: its width, and what draws it again

function heatResized({ target, contentRect }) {
  const { width, draw } = heatDrawn.get(target) || {};
  if (draw && target.isConnected && Math.abs(contentRect.width - width) > 1) draw();
}

/** Draw a map anew when its mount has another width. */
export function followHeat(mount, draw) {
  heatDrawn.set(mount, { width: mount.clientWidth, draw });
  heatSizes?.observe(mount);
}

/** How many rows there are for so many processes, and how high each is, px. */
export function heatRows(processes) {
  const together = Math.ceil(processes / HEAT_ROOM);
  return { together, rowHeight: Math.max(1, Math.min(HIGHEST, Math.floor(HEAT_ROOM / Math.ceil(processes / together)))) };
}

/** Columns of cells for a mount. */
export function heatColumns(mount) {
  return Math.max(100, Math.min(2048, Math.round(mount.clientWidth - HEAT_MARGIN)));
}

/**
 * Draw rows of cells into `mount`, with a tip and keys. `spec`: {model, scope, rows, grid (of rows), scale, rowHeight,
 * marks ([{row, begin, end, category}]), named (indices of rows whose labels come first), chosen (index of a row), label
 * (what it is), words (id of what it shows, in words), rowName(one of the rows), isKnown(one of the rows), tip(row, time),
 * open(row, time), cursor}.
 */
export function drawHeat(mount, spec) {
  const { rows, rowHeight } = spec;
  const height = rowHeight * rows.length;
  const canvas = make("canvas", {
    tabindex: "0",
    role: "img",
    "aria-label": `${spec.label}: a map of ${rows.length} rows over time. Arrow keys move, Enter opens the timeline of a process.`,
    "aria-describedby": spec.words,
  });
  const bubble = make("div", { class: "tip", "aria-live": "polite", hidden: true });
  mount.append(canvas, bubble);
  const width = Math.max(HEAT_MARGIN + 100, mount.clientWidth);
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = (height + HEAT_AXIS) * scale;
  canvas.style.width = "100%";
  canvas.style.height = `${height + HEAT_AXIS}px`;
  const plot = { ...spec, canvas, bubble, height, width, ratio: scale };
  plot.image = cellImage(plot);
  paintHeat(plot);
  listenHeat(plot);
}

/** One pixel for each cell. */
function cellImage({ grid, rows, scale }) {
  const { columns, cells } = grid;
  const held = document.createElement("canvas");
  held.width = columns;
  held.height = rows.length;
  const context = held.getContext("2d");
  const image = context.createImageData(columns, rows.length);
  const colors = heatPixels(scale);
  const pixels = new Uint32Array(image.data.buffer);
  for (let at = 0; at < cells.length; at++) pixels[at] = colors[cells[at]];
  context.putImageData(image, 0, 0);
  return held;
}

function paintHeat(plot) {
  const { canvas, ratio, width, height, rows, rowHeight, image, grid, isKnown } = plot;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height + HEAT_AXIS);
  context.imageSmoothingEnabled = false;
  const room = width - HEAT_MARGIN;
  context.fillStyle = canvasFill(context, { ...categoryStyle("other"), hatch: "rising" });
  rows.forEach((one, row) => {
    if (!isKnown(one)) context.fillRect(HEAT_MARGIN, row * rowHeight, room, rowHeight);
  });
  context.drawImage(image, 0, 0, grid.columns, rows.length, HEAT_MARGIN, 0, room, height);
  if (rowHeight >= 8) drawGaps(plot, context);
  drawWaitMarks(plot, context);
  drawWrong(plot, context);
  drawRowLabels(plot, context);
  drawTimes(plot, context);
  markRow(plot, context);
}

function drawGaps({ rows, rowHeight, width }, context) {
  for (let row = 1; row < rows.length; row++) context.clearRect(HEAT_MARGIN, row * rowHeight - 0.5, width, 1);
}

function heatPlace({ scope, width }, time) {
  return HEAT_MARGIN + ((width - HEAT_MARGIN) * (time - scope.begin)) / (scope.end - scope.begin);
}

/** Where the job waited for a rank, in the colour of what that did. */
function drawWaitMarks(plot, context) {
  const { marks, rowHeight, model, width } = plot;
  const high = Math.max(MARK_HIGH, Math.round(rowHeight * 0.4));
  for (const { row, begin, end, category } of marks) {
    const [from, to] = [begin, end].map((time) => Math.max(HEAT_MARGIN, Math.min(width, heatPlace(plot, time))));
    if (to <= from) continue;
    const wide = Math.max(1, to - from);
    const low = rowHeight > high ? (row + 1) * rowHeight - high - 1 : (row + 0.5) * rowHeight - high / 2;
    context.fillStyle = canvasFill(context, sourceStyle(model.categories[category]));
    context.fillRect(from, low, wide, high);
  }
}

/** When something was wrong: a bar at the foot of the map, and its edges through all rows. */
function drawWrong(plot, context) {
  const { model, width, height, canvas } = plot;
  const style = getComputedStyle(canvas);
  for (const { begin, end, one } of incidentSpans(model)) {
    const [from, to] = [begin, end].map((time) => Math.max(HEAT_MARGIN, Math.min(width, heatPlace(plot, time))));
    if (end < plot.scope.begin || begin > plot.scope.end) continue;
    context.fillStyle = style.getPropertyValue(`--${incidentColor(one.kind)}`).trim();
    context.fillRect(from, height, Math.max(2, to - from), MARK_HIGH);
    for (const edge of [from, to]) context.fillRect(Math.min(width - 1, edge), 0, 1, height);
  }
}

/** Numbers of rows: those that are named first, then as many as there is room for. */
function drawRowLabels({ canvas, rows, rowHeight, named, rowName }, context) {
  const { fontFamily } = getComputedStyle(canvas);
  const every = Math.max(1, Math.ceil(LABEL_HIGH / rowHeight));
  const usual = rows.map((_, row) => row).filter((row) => row % every === 0);
  const taken = [];
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const row of [...named, ...usual]) {
    const y = Math.max(6, (row + 0.5) * rowHeight);
    if (taken.some((other) => Math.abs(other - y) < LABEL_HIGH - 0.5)) continue;
    taken.push(y);
    const strong = named.includes(row);
    context.font = `${strong ? "700 " : ""}11px ${fontFamily}`;
    context.fillStyle = heatInk(strong ? "--text" : "--soft");
    context.fillText(rowName(rows[row]), HEAT_MARGIN - 8, y);
  }
}

function drawTimes({ canvas, width, height, model, scope }, context) {
  const room = width - HEAT_MARGIN;
  const ticks = Math.max(1, Math.floor(room / 160));
  const length = scope.end - scope.begin;
  context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
  context.fillStyle = heatInk("--soft");
  for (let tick = 0; tick <= ticks; tick++) {
    const time = scope.begin + (length * tick) / ticks;
    context.textAlign = tick === ticks ? "right" : tick ? "center" : "left";
    context.fillText(axisText(model, time, length > 120e9 ? 1e9 : 1e6), HEAT_MARGIN + (room * tick) / ticks, height + 12);
  }
}

function heatInk(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function markRow(plot, context) {
  const { rowHeight, width, chosen, cursor } = plot;
  context.lineWidth = 1.5;
  context.strokeStyle = heatInk("--text");
  if (chosen >= 0)
    context.strokeRect(HEAT_MARGIN + 0.5, chosen * rowHeight + 0.5, width - HEAT_MARGIN - 1, Math.max(2, rowHeight - 1));
  if (!cursor.cursor) return;
  const { x, row: at } = cursor.cursor;
  context.strokeRect(x - 3, at * rowHeight - 1, 6, rowHeight + 2);
}

function listenHeat(plot) {
  const { canvas, bubble, rows, rowHeight, cursor } = plot;
  const cell = (event) => {
    const box = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / rowHeight);
    const x = ((event.clientX - box.left) * plot.width) / box.width;
    return rows[row] && x >= HEAT_MARGIN ? { row, x } : null;
  };
  const open = (hit) => plot.open(hit.row, timeAt(plot, hit.x));
  canvas.addEventListener("mousemove", (event) => showCell(plot, cell(event)));
  canvas.addEventListener("mouseleave", () => (bubble.hidden = true));
  canvas.addEventListener("click", (event) => {
    const hit = cell(event);
    if (hit) open(hit);
  });
  canvas.addEventListener("blur", () => {
    cursor.cursor = null;
    bubble.hidden = true;
    paintHeat(plot);
  });
  canvas.addEventListener("keydown", (event) => {
    const [across, down] = { ArrowLeft: [-KEY_STEP, 0], ArrowRight: [KEY_STEP, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[
      event.key
    ] || [0, 0];
    const now = cursor.cursor || { row: 0, x: HEAT_MARGIN + 4 };
    if (event.key === "Enter") return open(now);
    if (!across && !down) return undefined;
    event.preventDefault();
    event.stopPropagation();
    cursor.cursor = {
      row: Math.max(0, Math.min(rows.length - 1, now.row + down)),
      x: Math.max(HEAT_MARGIN, Math.min(plot.width - 1, now.x + across)),
    };
    paintHeat(plot);
    return showCell(plot, cursor.cursor);
  });
}

function timeAt({ scope, width }, x) {
  return scope.begin + ((x - HEAT_MARGIN) / (width - HEAT_MARGIN)) * (scope.end - scope.begin);
}

function showCell(plot, hit) {
  const { bubble, canvas, rowHeight } = plot;
  bubble.hidden = !hit;
  if (!hit) return;
  bubble.replaceChildren(...plot.tip(hit.row, timeAt(plot, hit.x)));
  const { clientWidth } = canvas;
  const x = (hit.x * clientWidth) / plot.width;
  const right = x > clientWidth / 2;
  bubble.style.top = `${(hit.row + 1) * rowHeight + 6}px`;
  bubble.style.left = right ? "auto" : `${x + 12}px`;
  bubble.style.right = right ? `${clientWidth - x + 12}px` : "auto";
}
