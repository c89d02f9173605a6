// What is drawn over the lanes: labels, disruptions, what is selected, arrows, and lanes that are no spans.
import { incidentColor } from "./colors.js";
import { duration } from "./format.js";
import { kindTitle } from "./incidentspans.js";

const LETTER = 6.3; // pixels that a letter takes, about: measuring each would cost more than drawing
const MOST_LABELS = 1400; // a frame

/** Names of spans, cut to their width; over a hatching on a plain ground, so that they can be read. */
export function drawLabels(context, labels, ratio, colors) {
  context.font = colors.font;
  context.textBaseline = "middle";
  context.textAlign = "left";
  for (const { text, left, right, top, bottom, paint } of labels.slice(0, MOST_LABELS)) {
    const width = (right - left) / ratio;
    const room = Math.floor((width - 10) / LETTER);
    const high = (bottom - top) / ratio;
    if (room < 2 || high < 10) continue;
    const shown = fittingText(context, text, room, width - 8);
    if (!shown) continue;
    const x = left / ratio + 5;
    const y = (top + bottom) / 2 / ratio;
    if (!paint.solid) {
      context.fillStyle = paint.color;
      context.fillRect(x - 3, y - 6.5, Math.min(width - 4, context.measureText(shown).width + 6), 13);
    }
    context.fillStyle = paint.ink;
    context.fillText(shown, x, y + 0.5);
  }
}

/** As much of `text` as `width` pixels hold, about `room` letters; "" where that would say nothing. */
function fittingText(context, text, room, width) {
  if (text.length <= room + 1 && context.measureText(text).width <= width) return text;
  for (let length = Math.min(room, text.length) - 1; length >= 3; length--) {
    const shown = `${text.slice(0, length)}…`;
    if (context.measureText(shown).width <= width) return shown;
  }
  return "";
}

/** Say where a lane is summed up, unless its bins are wide enough to say so themselves. */
export function drawSummed(context, frame, lane, top, height, colors) {
  const text = "summed up";
  const long = context.measureText(text).width + 10;
  const { bins } = lane;
  const span =
    lane.binKind === "steps" && bins && bins.length ? (bins.ends[bins.length - 1] - bins.begins[0]) / bins.length : 0;
  if ((span * frame.scale) / frame.ratio > 60) return;
  for (const [begin, end] of lane.summed) {
    const left = Math.max(0, frame.x(begin) / frame.ratio);
    const right = Math.min(frame.width / frame.ratio, frame.x(end) / frame.ratio);
    if (right - left < long + 20) continue;
    context.fillStyle = colors.card;
    context.fillRect(left + 6, top + height / 2 - 7.5, long, 15);
    context.fillStyle = colors.text;
    context.fillText(text, left + 11, top + height / 2 + 0.5);
  }
}

/** Notices: triangles, each with its text if there is room for it. */
export function drawMarks(context, frame, marks, top, height, colors) {
  let free = -Infinity;
  for (const { time, text } of marks) {
    const x = frame.x(time) / frame.ratio;
    if (x < -10 || x > frame.width / frame.ratio + 10) continue;
    context.fillStyle = colors.warn;
    context.beginPath();
    context.moveTo(x, top + height - 4);
    context.lineTo(x - 6, top + 4);
    context.lineTo(x + 6, top + 4);
    context.fill();
    if (x + 10 < free) continue;
    const shown = text.slice(0, 60);
    context.fillStyle = colors.text;
    context.fillText(shown, x + 10, top + height / 2 + 0.5);
    free = x + 20 + context.measureText(shown).width;
  }
}

/** Slices: active ones filled, available ones pale, in all as a frame. */
export function drawLevels(context, frame, levels, end, top, height, colors) {
  const room = height - 6;
  levels.forEach((one, at) => {
    const begin = Math.max(frame.low, one.time);
    const until = Math.min(frame.high, at + 1 < levels.length ? levels[at + 1].time : end);
    if (until <= begin || !one.total) return;
    const left = frame.x(begin) / frame.ratio;
    const width = Math.max(1, (frame.x(until) - frame.x(begin)) / frame.ratio);
    const bar = (part, color, alpha) => {
      context.globalAlpha = alpha;
      context.fillStyle = color;
      context.fillRect(left, top + 3 + room * (1 - part), width, room * part);
      context.globalAlpha = 1;
    };
    bar(1, colors.soft, 0.12);
    bar(Math.min(1, one.available / one.total), colors.accent, 0.25);
    bar(Math.min(1, one.active / one.total), colors.accent, 0.6);
    const text = `${one.active} of ${one.total} active`;
    if (width > text.length * LETTER + 12) {
      context.fillStyle = colors.text;
      context.fillText(text, left + 6, top + height / 2 + 0.5);
    }
  });
}

/** Progress at risk: a saw-tooth, filled. */
export function drawCurve(context, frame, lane, top, height, colors) {
  const { curve, most } = lane;
  const y = (ns) => top + height - 3 - ((height - 6) * ns) / most;
  const low = frame.low;
  context.beginPath();
  let last = 0;
  let begun = false;
  for (let row = 0; row < curve.rows; row++) {
    const next = row + 1 < curve.rows ? curve.time[row + 1] : curve.time[row];
    if (next < low) continue;
    const x = frame.x(curve.time[row]) / frame.ratio;
    if (!begun) context.moveTo(x, y(0));
    begun = true;
    context.lineTo(x, y(curve.ns[row]));
    last = x;
    if (curve.time[row] > frame.high) break;
  }
  if (!begun) return;
  context.lineTo(last, y(0));
  context.globalAlpha = 0.28;
  context.fillStyle = colors.warn;
  context.fill();
  context.globalAlpha = 1;
  context.strokeStyle = colors.warn;
  context.lineWidth = 1;
  context.stroke();
}

/** Disruptions over all lanes, with what each cost above; places of the texts: [{left, right, row}]. */
export function drawFlags(context, frame, disruptions, colors, { top, high, bottom, width }) {
  if (!disruptions.length) return [];
  context.fillStyle = colors.card;
  context.fillRect(0, top, width, high);
  context.font = colors.font;
  context.textBaseline = "middle";
  const flags = [];
  let free = -Infinity;
  disruptions.forEach((one, row) => {
    const died = frame.x(one.died_at ?? one.time) / frame.ratio;
    const again = frame.x(one.time) / frame.ratio;
    if (again < -600 || died > width) return;
    context.fillStyle = colors.bad;
    context.globalAlpha = 0.13;
    context.fillRect(died, top + high, Math.max(1, again - died), bottom - top - high);
    context.globalAlpha = 0.75;
    context.fillRect(Math.round(died), top, 1, bottom - top);
    context.globalAlpha = 1;
    const lost = one.wasted_ns ? ` · ${duration(one.wasted_ns)} lost` : "";
    const text = `▼ ${one.reason}${one.recovery_ns ? ` · ${duration(one.recovery_ns)} down` : ""}${lost}`.slice(0, 80);
    const long = context.measureText(text).width + 12;
    const short = context.measureText(`▼ ${one.reason}`.slice(0, 24)).width + 12;
    const left = Math.max(Math.min(died, width - long), Math.min(0, again));
    const next =
      row + 1 < disruptions.length
        ? frame.x(disruptions[row + 1].died_at ?? disruptions[row + 1].time) / frame.ratio
        : Infinity;
    const shown = left + long < next || next < left ? text : left + short < next ? `▼ ${one.reason}`.slice(0, 24) : "▼";
    const space = context.measureText(shown).width + 8;
    if (left < free) return;
    context.fillStyle = colors.card;
    context.fillRect(left + 1, top + 1, space, high - 2);
    context.fillStyle = colors.bad;
    context.fillText(shown, left + 4, top + high / 2 + 0.5);
    free = left + space;
    flags.push({ left, right: left + space, row });
  });
  context.fillStyle = colors.line;
  context.fillRect(0, top + high - 1, width, 1);
  return flags;
}

/** Incidents: a band over all lanes, and in a row of their own a bar with what was wrong. */
export function drawIncidents(context, frame, spans, colors, { top, high, bottom, width }) {
  if (!spans.length) return;
  context.fillStyle = colors.card;
  context.fillRect(0, top, width, high);
  context.font = colors.font;
  context.textBaseline = "middle";
  let free = -Infinity;
  for (const { begin, end, one } of spans) {
    const left = Math.max(-2, frame.x(begin) / frame.ratio);
    const right = Math.min(width + 2, Math.max(left + 2, frame.x(end) / frame.ratio));
    if (right < 0 || left > width) continue;
    context.fillStyle = colors[incidentColor(one.kind)];
    context.globalAlpha = 0.1;
    context.fillRect(left, top + high, right - left, bottom - top - high);
    context.globalAlpha = 1;
    context.fillRect(left, top + high - 4, right - left, 3);
    if (left < free) continue;
    const cause = one.kind === "restart_loop" ? one.phase : one.cause.replaceAll("_", " ");
    const text = `${kindTitle(one)} · ${cause}${one.rank === null ? "" : ` of rank ${one.rank}`}`.slice(0, 60);
    const shown = Math.min(Math.max(2, left + 2), Math.max(2, width - context.measureText(text).width - 4));
    context.fillText(text, shown, top + (high - 4) / 2);
    free = shown + context.measureText(text).width + 8;
  }
  context.fillStyle = colors.line;
  context.fillRect(0, top + high - 1, width, 1);
}

/** An interval of time: what the map shows, the range of all panels, or what is measured. */
export function drawStretch(context, frame, [begin, end], colors, { top, bottom, width, kind }) {
  const left = Math.max(-2, frame.x(begin) / frame.ratio);
  const right = Math.min(width + 2, frame.x(end) / frame.ratio);
  if (kind !== "measure") {
    context.fillStyle = colors.card;
    context.globalAlpha = kind === "map" ? 0.62 : 0.5;
    context.fillRect(0, top, Math.max(0, left), bottom - top);
    context.fillRect(right, top, Math.max(0, width - right), bottom - top);
    context.globalAlpha = 1;
  } else {
    context.fillStyle = colors.warn;
    context.globalAlpha = 0.14;
    context.fillRect(left, top, right - left, bottom - top);
    context.globalAlpha = 1;
  }
  const color = kind === "measure" ? colors.warn : colors.accent;
  context.strokeStyle = color;
  context.lineWidth = kind === "map" ? 1.5 : 1;
  context.strokeRect(Math.round(left) + 0.5, top + 0.5, Math.max(1, Math.round(right - left) - 1), bottom - top - 1);
  if (kind === "map") return;
  const text = duration(end - begin);
  context.font = colors.font;
  const long = context.measureText(text).width + 12;
  const x = Math.min(width - long - 2, Math.max(2, (left + right - long) / 2));
  if (right < 0 || left > width) return;
  context.fillStyle = color;
  context.fillRect(x, top, long, 16);
  context.fillStyle = colors.card;
  context.fillText(text, x + 6, top + 8.5);
}

/** Frame what is selected, and lead its edges through all lanes. */
export function drawOutline(context, frame, facts, places, colors, bottom) {
  const x = (time) => frame.x(time) / frame.ratio;
  context.fillStyle = colors.focus;
  context.globalAlpha = 0.55;
  for (const time of facts.end > facts.begin ? [facts.begin, facts.end] : [facts.begin])
    context.fillRect(Math.round(x(time)), 0, 1, bottom);
  context.globalAlpha = 1;
  for (const { begin, end, depth, of, row, top } of places) {
    const high = (row.height - 4) / of;
    const left = Math.round(x(begin)) - 1;
    const width = Math.max(4, Math.round(x(end)) - left);
    context.lineWidth = 3;
    context.strokeStyle = colors.card;
    context.strokeRect(left - 0.5, top + 1.5 + high * depth, width + 1, high + 1);
    context.lineWidth = 2;
    context.strokeStyle = colors.text;
    context.strokeRect(left - 0.5, top + 1.5 + high * depth, width + 1, high + 1);
  }
}

/** Arrows between places of lanes. `placed`: rows in sight. */
export function drawConnections(context, frame, relations, placed, colors, own) {
  const middle = (key) => {
    const there = placed.find(({ row }) => row.lane && row.lane.key === key);
    return there ? there.top + there.row.height / 2 : null;
  };
  for (const { from, to } of relations) {
    if (!from || !to) continue;
    const first = [frame.x(from.time) / frame.ratio, middle(from.lane === "own" ? own : from.lane)];
    const second = [frame.x(to.time) / frame.ratio, middle(to.lane)];
    if (first[1] === null || second[1] === null) continue;
    drawArrow(context, first, second, colors);
  }
}

function drawArrow(context, [left, top], [right, bottom], colors) {
  const level = top === bottom;
  const bend = level ? Math.min(40, Math.abs(right - left) / 3) : Math.max(18, Math.abs(right - left) / 2);
  const [firstX, firstY, lastX, lastY] = level
    ? [left, top - bend, right, bottom - bend]
    : [left + bend, top, right - bend, bottom];
  for (const [color, width] of [
    [colors.card, 4],
    [colors.text, 1.6],
  ]) {
    context.strokeStyle = context.fillStyle = color;
    context.lineWidth = width;
    context.beginPath();
    context.moveTo(left, top);
    context.bezierCurveTo(firstX, firstY, lastX, lastY, right, bottom);
    context.stroke();
    const angle = Math.atan2(bottom - lastY, right - lastX);
    context.beginPath();
    context.moveTo(right, bottom);
    for (const turn of [-0.45, 0.45])
      context.lineTo(right - 8 * Math.cos(angle + turn), bottom - 8 * Math.sin(angle + turn));
    context.fill();
  }
}
