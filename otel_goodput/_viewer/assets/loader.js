// What training waited for in its data loaders: by stage, and by worker.
import { cssFill, categoryStyle, inkOf, shade } from "./colors.js";
import { count, duration, percent } from "./format.js";
import { head, make, swatch, table, watch } from "./elements.js";
import { fillCard } from "./mount.js";
import { nanoseconds } from "./scope.js";
import { reportOf } from "./subject.js";

const WORKERS_SHOWN = 16;
const LOADER_COLUMNS = [
  ["", "text"],
  ["Exposed", "number"],
  ["Of the waiting", "number"],
  ["Hidden", "number"],
  ["A batch", "number"],
];

export function startLoader(model, state) {
  watch(state, ["model", "document", "theme"], () => drawLoader(model));
}

function drawLoader(model) {
  const report = reportOf(model);
  const { loader } = report;
  if (!loader) return fillCard("loader");
  const { waited_s: waited, batches } = loader;
  const ideal = loader.ideal_goodput;
  const parts = [`training waited ${duration(nanoseconds(waited))} for ${count(batches, "batch", "batches")}`];
  if (ideal !== null && report.goodput !== null) parts.push(`with an ideal loader: goodput ${percent(ideal, 1)}`);
  const stages = Object.entries(loader.stages).map(([name, one]) => loaderRow(name, one, waited, batches));
  const workers = loader.workers.slice(0, WORKERS_SHOWN).map((one) => {
    const sums = { exposed_s: 0, hidden_s: 0 };
    for (const stage of Object.values(one.stages)) for (const name of Object.keys(sums)) sums[name] += stage[name];
    return loaderRow(workerName(report, one), sums, waited, one.batches);
  });
  return fillCard(
    "loader",
    head("Data loader", parts.join(", ")),
    slowText(report, loader),
    loaderLegend(),
    make("div", { class: "scroll short" }, table("Stages of batches", LOADER_COLUMNS, stages, { id: "loader-stages" })),
    workers.length > 1 ? make("h3", { text: "Workers" }) : null,
    workers.length > 1
      ? make("div", { class: "scroll short" }, table("Workers", LOADER_COLUMNS, workers, { id: "loader-workers" }))
      : null,
    loader.merged ? make("p", { class: "soft", text: "Transforms that are plain functions are part of fetch." }) : null,
  );
}

function workerName(report, { rank, worker }) {
  const name = worker === null ? "without workers" : `worker ${worker}`;
  return report.ranks ? `rank ${rank}, ${name}` : name;
}

function slowText(report, loader) {
  if (loader.slow_worker === null) return null;
  const which = workerName(report, { rank: loader.slow_rank, worker: loader.slow_worker });
  const [own, others] = [loader.slow_batch_s, loader.usual_batch_s].map((one) => duration(nanoseconds(one)));
  return make("p", { text: `Training waits in ${loader.waits_in} on ${which}: it takes ${own} a batch, others ${others}.` });
}

const exposedFill = () => cssFill(categoryStyle("data_loading"));
const hiddenFill = () => shade(inkOf("data_loading"), 0.45);

function loaderLegend() {
  const items = [
    [exposedFill(), "exposed: training waited"],
    [hiddenFill(), "hidden behind steps"],
  ];
  const legends = items.map(([background, name]) => make("span", { class: "legend" }, swatch(background), name));
  return make("div", { class: "legends" }, ...legends);
}

function loaderRow(name, { exposed_s: exposed, hidden_s: hidden }, waited, batches) {
  const each = batches ? duration(nanoseconds((exposed + hidden) / batches)) : "–";
  const times = [duration(nanoseconds(exposed)), waited ? percent(exposed, waited) : "–", duration(nanoseconds(hidden)), each];
  return [name, ...times];
}
