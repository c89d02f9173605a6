// The two scales of the timeline, time since the run's start and UTC, and the map of the whole run above them.

const FINE_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500]
  .flatMap((one) => [one, one * 1e3, one * 1e6])
  .sort((one, other) => one - other);
const SECOND_NS = 1e9;
const TICK_STEPS = [
  ...FINE_STEPS,
  ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200].map((one) => one * SECOND_NS),
  ...[1, 2, 5, 10, 20, 50, 100].map((one) => one * 86400 * SECOND_NS),
];
const MONTH_NAMES = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const padded = (value) => String(value).padStart(2, "0");

/** Distance of ticks, in ns, so that labels of `room` pixels do not touch. `scale`: pixels per ns. */
export function tickStep(scale, room) {
  return TICK_STEPS.find((step) => step * scale >= room) || TICK_STEPS[TICK_STEPS.length - 1];
}

/** Ticks since the start: [{time, text}] */
export function relativeTicks([low, high], scale) {
  const step = tickStep(scale, 96);
  const ticks = [];
  for (let at = Math.ceil(low / step); at * step < high; at++)
    ticks.push({ time: at * step, text: scaleText(at * step, step) });
  return ticks;
}

/** A time since the start as a scale with ticks every `step` ns writes it. */
export function scaleText(time, step) {
  const sign = time < 0 ? "−" : "";
  const digits = step >= SECOND_NS ? 0 : Math.min(9, Math.ceil(Math.log10(SECOND_NS / step) - 1e-9));
  const whole = Math.abs(time);
  const days = Math.floor(whole / (86400 * SECOND_NS));
  const hours = Math.floor(whole / (3600 * SECOND_NS)) % 24;
  const minutes = Math.floor(whole / (60 * SECOND_NS)) % 60;
  const rest = (whole - Math.floor(whole / (60 * SECOND_NS)) * 60 * SECOND_NS) / SECOND_NS;
  const rounded = digits ? rest.toFixed(digits).padStart(digits + 3, "0") : padded(Math.round(rest));
  const clock = `${hours}:${padded(minutes)}${step < 3600 * SECOND_NS ? `:${rounded}` : ""}`;
  return `${sign}${days ? `${days} d ` : ""}${step >= 86400 * SECOND_NS ? (days ? "" : "0") : clock}`.trim();
}

/** Ticks of round moments in UTC. `origin`: ms since the epoch. */
export function utcTicks([low, high], scale, origin) {
  const step = Math.max(1e6, tickStep(scale, 110));
  const ms = step / 1e6;
  const ticks = [];
  let day = "";
  for (let at = Math.ceil((origin + low / 1e6) / ms); ; at++) {
    const time = (at * ms - origin) * 1e6;
    if (time >= high || ticks.length > 400) break;
    const date = new Date(at * ms);
    const today = `${MONTH_NAMES[date.getUTCMonth()]} ${date.getUTCDate()}`;
    const parts = [padded(date.getUTCHours()), padded(date.getUTCMinutes())];
    if (step < 60 * SECOND_NS) parts.push(padded(date.getUTCSeconds()));
    let text = parts.join(":");
    if (step < SECOND_NS) text += `.${String(date.getUTCMilliseconds()).padStart(3, "0")}`;
    if (today !== day) text = step >= 86400 * SECOND_NS ? today : `${today}, ${text}`;
    day = today;
    ticks.push({ time, text });
  }
  return ticks;
}

/** Draw both scales at `top`, each row `height` high, and thin lines down to `bottom`. */
export function drawAxis(context, frame, colors, origin, { top, height, bottom, width }) {
  const view = [frame.low, frame.high];
  const x = (time) => frame.x(time) / frame.ratio;
  const scale = frame.scale / frame.ratio;
  context.fillStyle = colors.sunk;
  context.fillRect(0, top, width, 2 * height);
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.font = colors.font;
  for (const { time, text } of relativeTicks(view, scale)) {
    const at = Math.round(x(time)) + 0.5;
    context.fillStyle = colors.grid;
    context.fillRect(at - 0.5, top, 1, height);
    context.fillRect(at - 0.5, top + 2 * height, 1, bottom - top - 2 * height);
    if (at + 4 + context.measureText(text).width > width) continue;
    context.fillStyle = colors.text;
    context.fillText(text, at + 4, top + height / 2 + 0.5);
  }
  let free = -Infinity;
  for (const { time, text } of utcTicks(view, scale, origin)) {
    const at = Math.round(x(time)) + 0.5;
    context.fillStyle = colors.line;
    context.fillRect(at - 0.5, top + height, 1, 5);
    if (at < free || at + context.measureText(text).width + 8 > width - 34) continue;
    context.fillStyle = colors.soft;
    context.fillText(text, at + 4, top + height * 1.5 + 0.5);
    free = at + context.measureText(text).width + 12;
  }
  context.fillStyle = colors.soft;
  context.textAlign = "right";
  const label = "UTC";
  context.fillStyle = colors.sunk;
  context.fillRect(width - 34, top + height, 34, height);
  context.fillStyle = colors.soft;
  context.fillText(label, width - 6, top + height * 1.5 + 0.5);
  context.textAlign = "left";
  context.fillStyle = colors.line;
  context.fillRect(0, top + 2 * height - 1, width, 1);
}
