// All processes over time: one row each. The colour is the share of one category in each bin.
import { choice, goTo, head, make, select, watch } from "./elements.js";
import { fillCard } from "./mount.js";
import { drawHeat, heatColors } from "./heat.js";
import { processOrder } from "./disruptions.js";
import { rangeText } from "./clock.js";
import { scopeOf, scopeTitle } from "./scope.js";
import { sourceTitle } from "./colors.js";
import { count, duration } from "./format.js";

const heated = { category: null, order: "index", cursor: null };
const HEAT_ORDERS = [
  ["index", "By index"],
  ["pace", "Slowest"],
  ["lateness", "Latest"],
];

export function startHeatmap(model, state) {
  const draw = () => drawHeatmap(model, state, draw);
  state.on(["category"], () => {
    heated.category = state.category;
    draw();
  });
  watch(state, ["document", "range", "attempt", "process", "theme", "clock"], draw);
}

function drawHeatmap(model, state, draw) {
  const known = model.processes.filter((one) => one.bins);
  if (model.processes.length < 2 || !known.length) return fillCard("heatmap");
  const scope = scopeOf(model, state);
  const productive = model.categories.findIndex((one) => one.name === "productive");
  const category = heated.category ?? productive;
  const rows = [...model.processes].sort(processOrder(heated.order));
  const change = (changes) => {
    Object.assign(heated, changes);
    draw();
  };
  const used = new Set(known.flatMap((one) => one.bins.categories));
  const choices = model.categories
    .map((one, at) => [String(at), at === productive ? "goodput" : sourceTitle(one).slice(0, 60)])
    .filter(([at]) => used.has(Number(at)));
  const mount = make("div", { class: "heat" });
  const missing = model.processes.length - known.length;
  const hatched = missing ? ` (${missing} not known: hatched)` : "";
  const note = `${scopeTitle(scope)}, ${count(known.length, "process", "processes")}${hatched}; shares ± 0.2 %`;
  fillCard(
    "heatmap",
    head(
      "Processes over time",
      note,
      select("Share of", choices, String(category), (value) => change({ category: Number(value) })),
      choice("Order of the processes", HEAT_ORDERS, heated.order, (order) => change({ order })),
    ),
    mount,
    scale(category === productive),
  );
  const open = (process) => {
    state.set({ process: process.index });
    goTo("timeline-card");
  };
  const tip = (process, time, share) => tipText(model, process, time, share, sourceTitle(model.categories[category]));
  drawHeat(mount, {
    model,
    scope,
    rows,
    category,
    good: category === productive,
    chosen: state.process,
    open,
    tip,
    cursor: heated,
  });
}

function tipText(model, process, time, share, what) {
  const name = `process ${process.index}${process.host ? ` (${process.host})` : ""}`;
  if (!process.bins) return [name, process.problem || "not known"];
  const { begin, width } = process.bins;
  const from = begin + Math.floor((time - begin) / width) * width;
  const pace = process.pace ? `median step ${duration(process.pace.median_s * 1e9)}` : "";
  return [
    name,
    rangeText(model, [from, from + width], duration(width)),
    `${what}: ${(share * 100).toFixed(1)} %`,
    pace,
  ];
}

function scale(good) {
  const colors = heatColors(good);
  const steps = [0, 0.25, 0.5, 0.75, 1].map((share) => `rgb(${colors(share).join(" ")})`);
  return make(
    "div",
    { class: "legends" },
    make("span", { text: "0 %" }),
    make("span", { class: "ramp", style: { background: `linear-gradient(90deg, ${steps.join(", ")})` } }),
    make("span", { text: "100 %" }),
    make("span", { text: "Click a row, or use the arrow keys and Enter, to open the process in the timeline." }),
  );
}
