// Colours and hatchings. Every category has a colour and, unless it is productive, a hatching as well, so that
// they can be told apart without seeing colours (the colours follow Okabe and Ito).

const HATCHES = ["none", "rising", "falling", "cross", "dots", "level", "upright"];

// category: [light, dark, hatching]
const CATEGORY_COLORS = {
  productive: ["#0072b2", "#4aa3dd", "none"],
  accelerator_init: ["#8d6bb5", "#a98bd0", "rising"],
  training_prep: ["#b59ad6", "#c7b1e3", "falling"],
  program_startup: ["#cc79a7", "#d98dba", "rising"],
  data_loading: ["#e69f00", "#f0b429", "rising"],
  checkpoint_save: ["#009e73", "#2fbf95", "falling"],
  checkpoint_restore: ["#6fc3a8", "#8ad6be", "cross"],
  custom: ["#b8a900", "#d8cb2f", "level"],
  wasted_progress: ["#d55e00", "#ee7b30", "cross"],
  stalled: ["#8c1d18", "#e0645c", "upright"],
  infrastructure_recovery: ["#4d4d4d", "#9a9a9a", "cross"],
  elastic_slice_down: ["#7a4a21", "#b07c4e", "rising"],
  elastic_scale_up: ["#a6764a", "#caa078", "falling"],
  elastic_reinitialization: ["#c9a987", "#e0c6a8", "dots"],
  in_flight: ["#56b4e9", "#86cdf2", "dots"],
  other: ["#b3b3b3", "#6f6f6f", "level"],
};

// A phase has the colour of the category that its time usually goes to.
const PHASE_CATEGORIES = {
  step: "productive",
  compile: "program_startup",
  elastic_wait: "elastic_slice_down",
  elastic_reinit: "elastic_reinitialization",
  job: "other",
  exclusion: "other",
  part: "in_flight",
};

/** By number of a step's fate: kept, lost, in flight, none, skipped. */
export const FATE_NAMES = ["kept", "lost", "in flight", "left before it began", "skipped batch"];
const FATE_CATEGORIES = ["productive", "wasted_progress", "in_flight", "other", "data_loading"];

// Kind of an incident: the colour of page.css that it is marked in.
const INCIDENT_COLORS = { hang: "bad", slowdown: "warn", restart_loop: "bad" };

/** Name of the page's colour for incidents of a kind. */
export function incidentColor(kind) {
  return INCIDENT_COLORS[kind] || "warn";
}

/** "light" or "dark": what the page is drawn in now. */
export function theme() {
  return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
}

/** Colour ("#rrggbb") and hatching of a category by name, in the present theme. */
export function categoryStyle(name) {
  const [light, dark, hatch] = CATEGORY_COLORS[name] || CATEGORY_COLORS.other;
  return { color: theme() === "dark" ? dark : light, hatch };
}

/** The same of a category of the document, {name, custom}: custom names differ in shade and hatching. */
export function sourceStyle(category) {
  const style = categoryStyle(category.name);
  if (!category.custom) return style;
  const number = nameNumber(category.custom);
  return { color: shade(style.color, (number % 5) * 0.11 - 0.22), hatch: HATCHES[1 + (number % (HATCHES.length - 1))] };
}

/** The same of a phase by its name in semconv, and of the fate of a step by its number. */
export function phaseStyle(phase, name = "") {
  if (phase === "custom") return sourceStyle({ name: "custom", custom: name });
  return categoryStyle(PHASE_CATEGORIES[phase] || phase);
}

export function fateStyle(fate) {
  return categoryStyle(FATE_CATEGORIES[fate] || "other");
}

/** What people call a category of the document. */
export function sourceTitle(category) {
  return category.custom ? `custom: ${category.custom}` : category.name.replaceAll("_", " ");
}

/** "#rrggbb" as [red, green, blue], 0 to 255. */
export function rgb(color) {
  const value = parseInt(color.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** A colour made lighter (amount > 0) or darker. */
export function shade(color, amount) {
  const goal = amount > 0 ? 255 : 0;
  const mixed = rgb(color).map((part) => Math.round(part + (goal - part) * Math.abs(amount)));
  return `#${mixed.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}

/** A number that is the same for the same text, wherever the page is opened. */
export function nameNumber(text) {
  let value = 7;
  for (const letter of text) value = (value * 31 + letter.codePointAt(0)) % 1000003;
  return value;
}

const patterns = new Map();

/** What to fill with on a canvas: a colour, or a pattern of it with its hatching. */
export function canvasFill(context, { color, hatch }) {
  if (hatch === "none") return color;
  const key = `${color} ${hatch}`;
  if (!patterns.has(key)) patterns.set(key, tile(color, hatch));
  return context.createPattern(patterns.get(key), "repeat");
}

/** A tile of 8 by 8 device pixels that repeats without a seam. */
function tile(color, hatch) {
  const size = 8;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  context.fillStyle = color;
  context.fillRect(0, 0, size, size);
  context.strokeStyle = context.fillStyle = lineColor(color);
  context.lineWidth = 1.4;
  const line = (...points) => {
    context.beginPath();
    for (let at = 0; at < points.length; at += 2) context.lineTo(points[at], points[at + 1]);
    context.stroke();
  };
  if (hatch === "rising" || hatch === "cross") for (const shift of [-size, 0, size]) line(shift, size, shift + size, 0);
  if (hatch === "falling" || hatch === "cross")
    for (const shift of [-size, 0, size]) line(shift, 0, shift + size, size);
  if (hatch === "level") line(0, 4, size, 4);
  if (hatch === "upright") line(4, 0, 4, size);
  if (hatch === "dots") {
    context.fillRect(1, 1, 2, 2);
    context.fillRect(5, 5, 2, 2);
  }
  return canvas;
}

function lineColor(color) {
  const [red, green, blue] = rgb(color);
  return red * 0.3 + green * 0.59 + blue * 0.11 > 140 ? shade(color, -0.38) : shade(color, 0.42);
}

const LINES = {
  rising: (line) => `repeating-linear-gradient(135deg, ${line} 0 1.4px, transparent 1.4px 6px)`,
  falling: (line) => `repeating-linear-gradient(45deg, ${line} 0 1.4px, transparent 1.4px 6px)`,
  level: (line) => `repeating-linear-gradient(0deg, ${line} 0 1.2px, transparent 1.2px 6px)`,
  upright: (line) => `repeating-linear-gradient(90deg, ${line} 0 1.2px, transparent 1.2px 6px)`,
  dots: (line) => `radial-gradient(circle, ${line} 1.2px, transparent 1.4px) 0 0 / 5px 5px`,
};

/** The same for an element: a value of CSS `background`. */
export function cssFill({ color, hatch }) {
  if (hatch === "none") return color;
  const line = lineColor(color);
  const names = hatch === "cross" ? ["rising", "falling"] : [hatch];
  return `${names.map((name) => LINES[name](line)).join(", ")}, ${color}`;
}

/** The plain colour of a category, for lines. */
export function inkOf(name) {
  return categoryStyle(name).color;
}
