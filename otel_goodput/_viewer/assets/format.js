// How quantities are written: long times as in the text report (text/quantities.py), short ones with three digits.

const NS = 1e9;

/** A length of time, in ns: 850 ms, 12.3 s, 4 min 05 s, 3 h 07 min, 2 d 04 h. */
export function duration(ns) {
  if (ns < 0) return `-${duration(-ns)}`;
  const whole = ns / NS;
  if (whole >= 86400) return `${Math.floor(whole / 86400)} d ${padTwo((whole % 86400) / 3600)} h`;
  if (whole >= 3600) return `${Math.floor(whole / 3600)} h ${padTwo((whole % 3600) / 60)} min`;
  if (whole >= 59.95) return `${Math.max(1, Math.floor(whole / 60))} min ${padTwo(Math.max(60, whole) % 60)} s`;
  const [unit, size] = unitOf(whole);
  const value = whole / size;
  return `${unit === "ns" ? Math.round(value) : digits(value)} ${unit}`;
}

/** The same for an axis, where round values are the rule: 500 ms, 2 min, 1.5 h. */
export function axisDuration(ns) {
  const whole = Math.abs(ns) / NS;
  const [unit, size] =
    whole >= 86400 ? ["d", 86400] : whole >= 3600 ? ["h", 3600] : whole >= 60 ? ["min", 60] : unitOf(whole);
  return `${ns < 0 ? "-" : ""}${Number((whole / size).toPrecision(3))} ${unit}`;
}

function unitOf(whole) {
  if (whole >= 1 || whole === 0) return ["s", 1];
  return whole >= 1e-3 ? ["ms", 1e-3] : whole >= 1e-6 ? ["µs", 1e-6] : ["ns", 1e-9];
}

function digits(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function padTwo(value) {
  return String(Math.floor(value)).padStart(2, "0");
}

/** Exact seconds, for figures that are compared: ns as seconds with all nine decimals but trailing zeros. */
export function seconds(ns) {
  return `${(ns / NS).toFixed(9).replace(/\.?0+$/, "")} s`;
}

export function percent(part, whole) {
  return whole ? `${((100 * part) / whole).toFixed(2)} %` : "–";
}

/** A moment, ms since the epoch: in UTC, or in the reader's time zone as "2026-11-26 15:04:05.678 UTC+01:00". */
export function moment(ms, local = false) {
  const east = local ? -new Date(ms).getTimezoneOffset() : 0; // minutes
  const text = new Date(ms + east * 60_000).toISOString().replace("T", " ").slice(0, 23);
  if (!local) return `${text} UTC`;
  const two = (value) => String(value).padStart(2, "0");
  const offset = Math.abs(east);
  return `${text} UTC${east < 0 ? "-" : "+"}${two(Math.floor(offset / 60))}:${two(offset % 60)}`;
}

/** An amount of memory: 812 MiB, 15.6 GiB. */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let size = value;
  let unit = 0;
  while (size >= 1023.5 && unit < units.length - 1) {
    size /= 1024;
    unit++;
  }
  return `${unit ? digits(size) : size} ${units[unit]}`;
}

export function count(value, singular, plural = `${singular}s`) {
  return `${value.toLocaleString("en")} ${value === 1 ? singular : plural}`;
}
