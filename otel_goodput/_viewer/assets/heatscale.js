// The colours of the map of ranks over time: a scale on which a few points beside the run's median are seen.
import { theme } from "./colors.js";

// Cividis in short: told apart by everybody, and in grey.
const RAMP = [
  [0, 34, 78],
  [53, 69, 108],
  [102, 105, 112],
  [148, 142, 119],
  [200, 184, 102],
  [254, 232, 56],
];
const REACH = 0.15; // of shares beside the median, to which most of the colours go
const USUAL = 0.82; // place of the median on the ramp
const FAR = 0.15; // and of what is that far beside it

const EXCESS = [[0, 1], [0.04, USUAL], [0.2, 0.3], [1, 0]]; // share, place: 4 % is what makes a rank slow

/** The highest number that stands for a share; the next one stands for "not known". */
export const FULL = 254;
export const UNKNOWN = 255;

/**
 * A scale: {median, good, stops: [share, place on the ramp] each, rising in share, color(share)}. Most of its colours are for
 * shares near the median; `good`: the higher the better, so what is bright is usual.
 */
export function heatScale(median, good) {
  const middle = Math.max(0, Math.min(1, median));
  const near = good ? Math.min(REACH, middle * 0.8) : Math.min(REACH, (1 - middle) * 0.8);
  const places = good
    ? [[0, 0], [middle - near, FAR], [middle, USUAL], [1, 1]]
    : [[0, 1], [middle, USUAL], [middle + near, FAR], [1, 0]];
  const stops = places.filter(([share], at) => !at || share > places[at - 1][0]);
  const turned = !good && theme() === "dark"; // a loss is dark on light ground, and bright on dark ground
  return { median: middle, good, stops, color: (share) => rampColor(stops, share, turned) };
}

/** A scale of by how much something is longer than usual, as a share: what is usual is bright, on dark ground dark. */
export function excessScale() {
  const stops = EXCESS;
  const turned = theme() === "dark";
  return { median: 0, good: false, stops, color: (share) => rampColor(stops, share, turned) };
}

function rampColor(stops, share, turned) {
  const above = Math.max(1, stops.findIndex(([stop], at) => at && share <= stop));
  const [[from, low], [to, high]] = [stops[above - 1], stops[above]];
  const place = Math.max(0, Math.min(1, low + ((high - low) * (share - from)) / (to - from)));
  const at = (turned ? 1 - place : place) * (RAMP.length - 1);
  const first = Math.min(RAMP.length - 2, Math.floor(at));
  return RAMP[first].map((value, part) => Math.round(value + (RAMP[first + 1][part] - value) * (at - first)));
}

/** Colours of all numbers that stand for shares, as pixels (RGBA, little-endian); what is not known is clear. */
export function heatPixels(scale) {
  const pixels = new Uint32Array(UNKNOWN + 1);
  for (let value = 0; value <= FULL; value++) {
    const [red, green, blue] = scale.color(value / FULL);
    pixels[value] = ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  }
  return pixels;
}
