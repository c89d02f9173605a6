// The scale of a map of ranks over time, with its numbers.
import { make } from "./elements.js";

export const pointsText = (share) => `${Number((100 * share).toFixed(1))} %`;

/** Equal room for each part of the scale, as its colors have; within a part it is linear. `name`: what it is a scale of. */
export function heatRamp(scale, name) {
  const parts = scale.stops.length - 1;
  const colors = [];
  scale.stops.slice(1).forEach(([to], at) => {
    const from = scale.stops[at][0];
    for (let step = at ? 1 : 0; step <= 4; step++) {
      colors.push(`rgb(${scale.color(from + ((to - from) * step) / 4).join(" ")}) ${(100 * (at + step / 4)) / parts}%`);
    }
  });
  const ticks = scale.stops.map(([share], at) =>
    make("span", {
      class: share === scale.median ? "strong" : "",
      text: share === scale.median ? `median ${pointsText(share)}` : pointsText(share),
      style: { left: `${(100 * at) / parts}%` },
    }),
  );
  return make(
    "span",
    { class: "heat-scale", role: "img", "aria-label": `Scale of ${name} from ${pointsText(scale.stops[0][0])} to ${pointsText(scale.stops[parts][0])}` },
    make("span", { class: "ramp", style: { background: `linear-gradient(90deg, ${colors.join(", ")})` } }),
    make("span", { class: "heat-ticks", "aria-hidden": "true" }, ...ticks),
  );
}
