// How moments are written: from the start of the run, or in UTC. The reader chooses.
import { moment } from "./format.js";

const CLOCK_KEY = "otel-goodput-clock";
let clockChosen = "";

/** "relative" or "utc". */
export function clockKind() {
  if (!clockChosen) {
    try {
      clockChosen = localStorage.getItem(CLOCK_KEY) === "utc" ? "utc" : "relative";
    } catch {
      clockChosen = "relative";
    }
  }
  return clockChosen;
}

export function chooseClock(kind, state) {
  clockChosen = kind;
  try {
    localStorage.setItem(CLOCK_KEY, kind);
  } catch {
    // it holds until the page is closed
  }
  state.tell(["clock", "theme"]);
}

/** A moment (ns from the run's start) as the reader wants it; `step`: ns that should still be told apart. */
export function timeText(model, ns, step = 1e6) {
  if (clockKind() === "utc") {
    const text = moment(model.origin_ms + ns / 1e6);
    return step >= 1e9 ? `${text.slice(0, 19)} UTC` : text;
  }
  return clockSinceStart(ns, step);
}

/** A moment on an axis: short. */
export function axisText(model, ns, step) {
  if (clockKind() !== "utc") return clockSinceStart(ns, step);
  const text = moment(model.origin_ms + ns / 1e6);
  if (step >= 86400e9) return text.slice(5, 10);
  if (step >= 60e9) return text.slice(11, 16);
  return step >= 1e9 ? text.slice(11, 19) : text.slice(11, 23);
}

/** Time since the start as 1 d 02:03:04.567. */
function clockSinceStart(ns, step) {
  const sign = ns < 0 ? "-" : "+";
  const decimals = step >= 1e9 ? 0 : step >= 1e6 ? 3 : step >= 1e3 ? 6 : 9;
  const scale = 10 ** decimals;
  const ticks = Math.round((Math.abs(ns) / 1e9) * scale);
  const whole = Math.floor(ticks / scale);
  const days = Math.floor(whole / 86400);
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  const clock = `${two((whole % 86400) / 3600)}:${two((whole % 3600) / 60)}:${two(whole % 60)}`;
  const rest = decimals ? `.${String(ticks % scale).padStart(decimals, "0")}` : "";
  return `${sign}${days ? `${days} d ` : ""}${clock}${rest}`;
}

/** A stretch of time: from, to and length. */
export function rangeText(model, [begin, end], lengthText) {
  const step = end - begin >= 60e9 ? 1e9 : 1e6;
  return `${timeText(model, begin, step)} – ${timeText(model, end, step)} (${lengthText})`;
}
