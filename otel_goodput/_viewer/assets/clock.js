// How moments are written: from the start of the run, in UTC, or in the reader's time zone. The reader chooses.
import { moment } from "./format.js";

export const CLOCK_KINDS = [
  ["relative", "From the start"],
  ["utc", "UTC"],
  ["local", "Local time"],
];

const CLOCK_KEY = "otel-goodput-clock";
let clockChosen = "";

/** The first of a pair in CLOCK_KINDS. */
export function clockKind() {
  if (!clockChosen) {
    try {
      clockChosen = localStorage.getItem(CLOCK_KEY);
    } catch {
      clockChosen = "";
    }
    if (!CLOCK_KINDS.some(([kind]) => kind === clockChosen)) clockChosen = "relative";
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

/** The button at the top: it shows how times are written, and goes on to the next way. */
export function startClock(state) {
  const chooser = document.getElementById("clock");
  const show = () => {
    const [, words] = CLOCK_KINDS.find(([kind]) => kind === clockKind());
    chooser.textContent = words;
    chooser.setAttribute("aria-label", `Times: ${words}. Change how times are written`);
  };
  chooser.addEventListener("click", () => {
    const at = CLOCK_KINDS.findIndex(([kind]) => kind === clockKind());
    chooseClock(CLOCK_KINDS[(at + 1) % CLOCK_KINDS.length][0], state);
  });
  state.on(["clock"], show);
  show();
}

/** A moment (ns from the run's start) as the reader wants it; `step`: ns that should still be told apart. */
export function timeText(model, ns, step = 1e6) {
  if (clockKind() === "relative") return clockSinceStart(ns, step);
  const text = moment(model.origin_ms + ns / 1e6, clockKind() === "local");
  return step >= 1e9 ? `${text.slice(0, 19)}${text.slice(23)}` : text;
}

/** A moment on an axis: short. */
export function axisText(model, ns, step) {
  if (clockKind() === "relative") return clockSinceStart(ns, step);
  const text = moment(model.origin_ms + ns / 1e6, clockKind() === "local");
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

/** An interval of time: from, to and length. */
export function rangeText(model, [begin, end], lengthText) {
  const step = end - begin >= 60e9 ? 1e9 : 1e6;
  return `${timeText(model, begin, step)} – ${timeText(model, end, step)} (${lengthText})`;
}
