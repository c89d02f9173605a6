// The canvas of the heat map: pixels of bins, hover, keys.
import { axisText } from "./clock.js";
import { canvasFill, categoryStyle, theme } from "./colors.js";
import { make } from "./elements.js";

const HEAT_MARGIN = 56; // px at the left, for the numbers of the processes
const HEAT_AXIS = 20;
// Cividis in short: told apart by everybody, and in grey.
const RAMP = [
  [0, 34, 78],
  [53, 69, 108],
  [102, 105, 112],
  [148, 142, 119],
  [200, 184, 102],
  [254, 232, 56],
];

/** share (0 to 1) -> [red, green, blue]. Goodput is bright where it is high; a loss is bright where it is high too. */
export function heatColors(good) {
  const ramp = good || theme() === "dark" ? RAMP : [...RAMP].reverse();
  return (share) => {
    const at = Math.max(0, Math.min(1, share)) * (ramp.length - 1);
    const low = Math.min(ramp.length - 2, Math.floor(at));
    return ramp[low].map((from, part) => Math.round(from + (ramp[low + 1][part] - from) * (at - low)));
  };
}

/** Draw rows of processes into `mount`, with a tip and keys. */
export function drawHeat(mount, spec) {
  const { rows } = spec;
  const rowHeight = Math.max(1, Math.min(16, Math.floor(420 / rows.length)));
  const height = rowHeight * rows.length;
  const canvas = make("canvas", {
    tabindex: "0",
    role: "img",
    "aria-label": `Share over time of ${rows.length} processes; arrow keys move, Enter opens the lanes of a process`,
  });
  const bubble = make("div", { class: "tip", hidden: true });
  mount.append(canvas, bubble);
  const width = Math.max(300, mount.clientWidth);
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = (height + HEAT_AXIS) * scale;
  canvas.style.width = "100%";
  canvas.style.height = `${height + HEAT_AXIS}px`;
  const plot = { ...spec, canvas, bubble, rowHeight, height, width, scale };
  plot.pixels = heatPixels(plot);
  paintHeat(plot);
  listenHeat(plot);
}

function shareAt(process, category, time) {
  const { bins } = process;
  if (!bins) return null;
  const bin = Math.floor((time - bins.begin) / bins.width);
  if (bin < 0 || bin >= bins.count) return null;
  const at = bins.categories.indexOf(category);
  return at < 0 ? 0 : bins.shares[at * bins.count + bin] / 255;
}

/** One pixel for each process and column of the canvas. */
function heatPixels({ rows, category, scope, width, good, canvas }) {
  const columns = Math.max(1, Math.min(2048, Math.round(width - HEAT_MARGIN)));
  const image = canvas.getContext("2d").createImageData(columns, rows.length);
  const colors = heatColors(good);
  const table = Array.from({ length: 256 }, (_, value) => colors(value / 255));
  rows.forEach((process, row) => {
    const { bins } = process;
    if (!bins) return;
    const at = bins.categories.indexOf(category);
    for (let column = 0; column < columns; column++) {
      const time = scope.begin + ((column + 0.5) / columns) * (scope.end - scope.begin);
      const bin = Math.floor((time - bins.begin) / bins.width);
      if (bin < 0 || bin >= bins.count) continue;
      const color = table[at < 0 ? 0 : bins.shares[at * bins.count + bin]];
      const pixel = 4 * (row * columns + column);
      image.data[pixel] = color[0];
      image.data[pixel + 1] = color[1];
      image.data[pixel + 2] = color[2];
      image.data[pixel + 3] = 255;
    }
  });
  const held = document.createElement("canvas");
  held.width = columns;
  held.height = rows.length;
  held.getContext("2d").putImageData(image, 0, 0);
  return held;
}

function paintHeat(plot) {
  const { canvas, scale, width, height, rows, rowHeight, pixels, model, scope } = plot;
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height + HEAT_AXIS);
  context.imageSmoothingEnabled = false;
  const room = width - HEAT_MARGIN;
  context.fillStyle = canvasFill(context, { ...categoryStyle("other"), hatch: "rising" });
  rows.forEach((process, row) => {
    if (!process.bins) context.fillRect(HEAT_MARGIN, row * rowHeight, room, rowHeight);
  });
  context.drawImage(pixels, HEAT_MARGIN, 0, room, height);
  const style = getComputedStyle(canvas);
  context.font = `11px ${style.fontFamily}`;
  context.fillStyle = style.color;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const every = Math.max(1, Math.ceil(13 / rowHeight));
  rows.forEach((process, row) => {
    if (row % every === 0)
      context.fillText(String(process.index), HEAT_MARGIN - 8, Math.max(6, (row + 0.5) * rowHeight));
  });
  context.textAlign = "center";
  const ticks = Math.max(2, Math.floor(room / 160));
  const length = scope.end - scope.begin;
  for (let tick = 0; tick <= ticks; tick++) {
    const x = HEAT_MARGIN + (room * tick) / ticks;
    context.textAlign = tick === ticks ? "right" : tick ? "center" : "left";
    context.fillText(
      axisText(model, scope.begin + (length * tick) / ticks, length > 120e9 ? 1e9 : 1e6),
      x,
      height + 12,
    );
  }
  markRow(plot, context);
}

function markRow(plot, context) {
  const { rows, rowHeight, width, chosen, cursor } = plot;
  context.lineWidth = 1.5;
  context.strokeStyle = getComputedStyle(plot.canvas).color;
  const row = rows.findIndex((process) => process.index === chosen);
  if (row >= 0)
    context.strokeRect(HEAT_MARGIN + 0.5, row * rowHeight + 0.5, width - HEAT_MARGIN - 1, Math.max(2, rowHeight - 1));
  if (!cursor.cursor) return;
  const { x, row: at } = cursor.cursor;
  context.strokeRect(x - 3, at * rowHeight - 1, 6, rowHeight + 2);
}

function listenHeat(plot) {
  const { canvas, bubble, rows, rowHeight, cursor } = plot;
  const cell = (event) => {
    const box = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / rowHeight);
    const x = event.clientX - box.left;
    return rows[row] && x >= HEAT_MARGIN ? { row, x } : null;
  };
  canvas.addEventListener("mousemove", (event) => showCell(plot, cell(event)));
  canvas.addEventListener("mouseleave", () => (bubble.hidden = true));
  canvas.addEventListener("click", (event) => {
    const hit = cell(event);
    if (hit) plot.open(rows[hit.row]);
  });
  canvas.addEventListener("blur", () => {
    cursor.cursor = null;
    bubble.hidden = true;
    paintHeat(plot);
  });
  canvas.addEventListener("keydown", (event) => {
    const [across, down] = { ArrowLeft: [-8, 0], ArrowRight: [8, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[
      event.key
    ] || [0, 0];
    const now = cursor.cursor || { row: 0, x: HEAT_MARGIN + 4 };
    if (event.key === "Enter") return plot.open(rows[now.row]);
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

function showCell(plot, hit) {
  const { bubble, canvas, rows, scope, rowHeight, category } = plot;
  bubble.hidden = !hit;
  if (!hit) return;
  const process = rows[hit.row];
  const room = canvas.clientWidth - HEAT_MARGIN;
  const time = scope.begin + ((hit.x - HEAT_MARGIN) / room) * (scope.end - scope.begin);
  const share = shareAt(process, category, time);
  const lines = plot.tip(process, time, share ?? 0).filter((line) => line);
  bubble.replaceChildren(...lines.map((line, at) => make("div", { class: at ? "" : "strong", text: line })));
  const right = hit.x > canvas.clientWidth / 2;
  bubble.style.top = `${(hit.row + 1) * rowHeight + 6}px`;
  bubble.style.left = right ? "auto" : `${hit.x + 12}px`;
  bubble.style.right = right ? `${canvas.clientWidth - hit.x + 12}px` : "auto";
}
