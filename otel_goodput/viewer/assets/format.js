// How quantities are written; the same as text/quantities.py, which writes them in the text report.

const NS = 1e9;

/** A length of time, in ns, with three significant digits and the unit that fits. */
export function duration(ns) {
  const sign = ns < 0 ? "-" : "";
  const seconds = Math.abs(ns) / NS;
  if (seconds >= 86400) return `${sign}${digits(seconds / 86400)} d`;
  if (seconds >= 3600) return `${sign}${digits(seconds / 3600)} h`;
  if (seconds >= 60) return `${sign}${digits(seconds / 60)} min`;
  if (seconds >= 1 || seconds === 0) return `${sign}${digits(seconds)} s`;
  if (seconds >= 1e-3) return `${sign}${digits(seconds * 1e3)} ms`;
  if (seconds >= 1e-6) return `${sign}${digits(seconds * 1e6)} µs`;
  return `${sign}${Math.round(seconds * NS)} ns`;
}

function digits(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** Exact seconds, for figures that are compared: ns as seconds with all nine decimals but trailing zeros. */
export function seconds(ns) {
  return `${(ns / NS).toFixed(9).replace(/\.?0+$/, "")} s`;
}

export function percent(part, whole) {
  return whole ? `${((100 * part) / whole).toFixed(2)} %` : "–";
}

/** A moment, ms since the epoch, in UTC. */
export function moment(ms) {
  return `${new Date(ms).toISOString().replace("T", " ").slice(0, 23)} UTC`;
}

export function count(value, singular, plural = `${singular}s`) {
  return `${value.toLocaleString("en")} ${value === 1 ? singular : plural}`;
}
