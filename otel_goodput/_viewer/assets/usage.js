// Processor and memory over time, where the job sampled them; of one process at a time.
import { axisStyle, drawPlot, inkColor, timeAxis } from "./plot.js";
import { bytes, percent } from "./format.js";
import { categoryStyle, cssFill, inkOf } from "./colors.js";
import { fillCard } from "./mount.js";
import { head, make, select, swatch, watch } from "./elements.js";
import { rangeText } from "./clock.js";
import { scopeOf, scopeTitle } from "./scope.js";

const watched = { process: null };
const PROCESSOR_PARTS = {
  "this process": () => cssFill(categoryStyle("productive")),
  "other processes": () => cssFill(categoryStyle("data_loading")),
  idle: () => cssFill(categoryStyle("other")),
};
// Title, column of the samples, what it is held against, colour.
const MEMORY_SERIES = [
  ["this process", "process_memory", "memory", () => inkOf("productive")],
  ["machine", "machine_memory", "memory", () => inkColor("--soft")],
  ["accelerators", "accelerator_memory", "accelerator_memory", () => inkOf("checkpoint_save")],
];

const COLUMNS = [
  ...["process_cpu", "machine_cpu", "process_memory", "machine_memory", "accelerator_memory"],
  ...["accelerator_time", "accelerator_busy", "throttled_time", "accelerator_energy", "throttled"],
];

export function startUsage(model, state) {
  const draw = () => drawUsage(model, state, draw);
  watch(state, ["document", "range", "attempt", "theme", "clock"], draw);
}

function drawUsage(model, state, draw) {
  const { usage } = model;
  if (!usage || !usage.rows) return fillCard("usage");
  const scope = scopeOf(model, state);
  const processes = [...new Set(model.machines.map((one) => one.process))];
  const process = processes.includes(watched.process) ? watched.process : processes[0];
  const samples = usageIn(model, scope, process);
  const choose = (value) => {
    watched.process = Number(value);
    draw();
  };
  const choices = processes.map((one) => [String(one), `process ${one}`]);
  const tools = processes.length > 1 ? [select("Process", choices, String(process), choose)] : [];
  const title = head("Processor and memory", `${scopeTitle(scope)}, process ${process}`, ...tools);
  if (!samples.length) {
    fillCard("usage", title, make("p", { class: "soft", text: "No sample was taken in this time." }));
    return;
  }
  const [processor, memory] = ["Processor, share of all cores", "Memory"].map((title) =>
    make("div", {}, make("h3", { text: title })),
  );
  const known = samples.some((one) => one.accelerator_time);
  const accelerators = known && make("div", {}, make("h3", { text: "Accelerators, share of the time" }));
  fillCard(
    "usage",
    title,
    processorBar(samples),
    make("div", { class: "pair" }, processor, memory),
    accelerators,
  );
  drawProcessor(processor, model, state, scope, samples);
  drawMemory(memory, model, state, scope, samples);
  memory.append(memoryLegend(samples));
  if (accelerators) {
    drawAccelerators(accelerators, model, state, scope, samples);
    accelerators.append(acceleratorLegend(model, samples));
  }
}

/** The samples of a process that end in a scope: [{begin, end, length, ..., machine}], by time. */
function usageIn(model, scope, process) {
  const { usage } = model;
  const machines = new Map(model.machines.map((one) => [`${one.process} ${one.attempt}`, one]));
  const samples = [];
  for (let row = 0; row < usage.rows; row++) {
    const [end, length, attempt] = [usage.end[row], usage.length[row], usage.attempt[row]];
    if (usage.process[row] !== process || end <= scope.begin || end - length >= scope.end) continue;
    if (scope.kind === "attempt" && attempt !== scope.attempt.number) continue;
    const machine = machines.get(`${process} ${attempt}`);
    const sample = { begin: end - length, end, length, attempt, machine };
    for (const name of COLUMNS) sample[name] = usage[name][row];
    samples.push(sample);
  }
  return samples;
}

/** Processor time by who used it, as [name, ns]; they add up to what the machine's cores had. */
function processorParts(samples) {
  const sum = (of) => samples.reduce((total, one) => total + of(one), 0);
  const all = sum((one) => one.length * one.machine.cores);
  const own = Math.min(all, sum((one) => one.process_cpu));
  const others = Math.max(0, Math.min(all, sum((one) => one.machine_cpu)) - own);
  return [
    ["this process", own],
    ["other processes", others],
    ["idle", all - own - others],
  ];
}

function processorBar(samples) {
  const parts = processorParts(samples);
  const all = parts.reduce((total, [, ns]) => total + ns, 0);
  const { cores } = samples[samples.length - 1].machine;
  const pieces = parts.map(([name, ns]) =>
    make("div", {
      class: "piece",
      title: `${name}: ${percent(ns, all)}`,
      data: { usage: name },
      style: { "flex-grow": String(ns / all), background: PROCESSOR_PARTS[name]() },
    }),
  );
  const legend = parts.map(([name, ns]) => {
    const used = `${((ns / all) * cores).toFixed(1)} of ${cores} cores`;
    return make("span", { class: "legend" }, swatch(PROCESSOR_PARTS[name]()), `${name} ${percent(ns, all)}, ${used}`);
  });
  return make(
    "div",
    { class: "bar-row", id: "processor-use" },
    make("span", { class: "bar-title", text: "CPU" }),
    make(
      "div",
      {},
      make("div", { class: "bar thin", role: "img", "aria-label": "Processor in use" }, ...pieces),
      make("div", { class: "legends" }, ...legend),
    ),
  );
}

/** What a chart is drawn of: a point at each end of each sample, and a gap where there are none. */
function usageLines(samples, columns) {
  const times = [];
  const values = columns.map(() => []);
  const add = (time, sample) => {
    times.push(times.length ? Math.max(time, times[times.length - 1] + 1) : time);
    columns.forEach((of, at) => values[at].push(sample ? of(sample) : null));
  };
  let last = null;
  for (const sample of samples) {
    if (last && (sample.attempt !== last.attempt || sample.begin > last.end + last.length)) add(last.end, null);
    add(sample.begin, sample);
    add(sample.end, sample);
    last = sample;
  }
  return [times, ...values];
}

function drawUsageChart(mount, model, state, scope, samples, lines, axis, inWords) {
  const data = usageLines(samples, lines.map(([, of]) => of));
  drawPlot(
    mount,
    {
      height: 170,
      scales: {
        x: { time: false, range: [scope.begin, Math.max(scope.end, scope.begin + 1)] },
        y: { range: (_, low, high) => [0, axis.most || high * 1.1 || 1] },
      },
      axes: [timeAxis(model), { ...axisStyle(), size: 74, values: (_, splits) => splits.map(axis.text) }],
      series: [{}, ...lines.map(([label, , color]) => ({ label, stroke: color(), width: 1.5, points: { show: false } }))],
      onRange: (range) => state.set({ range, view: range }),
      tip: (at) => {
        const sample = samples.find((one) => one.end >= data[0][at]) || samples[samples.length - 1];
        const when = rangeText(model, [sample.begin, sample.end], "");
        return [[null, when, ""], ...lines.map(([label, of, color]) => [color(), label, inWords(of(sample))])];
      },
    },
    data,
  );
}

function drawProcessor(mount, model, state, scope, samples) {
  const share = (name) => (one) => Math.min(100, (100 * one[name]) / (one.length * one.machine.cores));
  const lines = [
    ["this process", share("process_cpu"), () => inkOf("productive")],
    ["machine", share("machine_cpu"), () => inkColor("--soft")],
  ];
  const text = (value) => `${value} %`;
  const inWords = (value) => `${value.toFixed(1)} % of the cores`;
  drawUsageChart(mount, model, state, scope, samples, lines, { most: 100, text }, inWords);
}

const knownMemory = (samples) => MEMORY_SERIES.filter(([, name]) => samples.some((one) => one[name] >= 0));

function drawMemory(mount, model, state, scope, samples) {
  const lines = knownMemory(samples).map(([label, name, , color]) => [
    label,
    (one) => (one[name] < 0 ? null : one[name] / 2 ** 30),
    color,
  ]);
  const inWords = (value) => (value === null ? "not known" : bytes(value * 2 ** 30));
  drawUsageChart(mount, model, state, scope, samples, lines, { text: (value) => `${value} GiB` }, inWords);
}

/** The most that was in use, of how much there is. */
function memoryLegend(samples) {
  const { machine } = samples[samples.length - 1];
  const items = knownMemory(samples).map(([label, name, total, color]) => {
    const most = samples.reduce((highest, one) => Math.max(highest, one[name]), 0);
    const of = machine[total] > 0 ? ` of ${bytes(machine[total])}` : "";
    return make("span", { class: "legend", data: { memory: label } }, swatch(color()), `${label} at most ${bytes(most)}${of}`);
  });
  return make("div", { class: "legends" }, ...items);
}

const shareOf = (name) => (one) => (one.accelerator_time ? (100 * one[name]) / one.accelerator_time : null);

function drawAccelerators(mount, model, state, scope, samples) {
  const lines = [
    ["computing", shareOf("accelerator_busy"), () => inkOf("productive")],
    ["clocks held down", shareOf("throttled_time"), () => inkOf("wasted_progress")],
  ];
  const text = (value) => `${value} %`;
  const inWords = (value) => (value === null ? "not known" : `${value.toFixed(1)} % of the time`);
  drawUsageChart(mount, model, state, scope, samples, lines, { most: 100, text }, inWords);
}

/** How much they computed, what power one takes, and why clocks were held down. */
function acceleratorLegend(model, samples) {
  const sum = (name) => samples.reduce((total, one) => total + one[name], 0);
  const time = sum("accelerator_time");
  const bits = samples.reduce((all, one) => all | one.throttled, 0);
  const reasons = model.throttle_reasons.filter((_, at) => (bits >> at) & 1);
  const energy = sum("accelerator_energy");
  const watts = energy ? `, ${Math.round(energy / 1e3 / (time / 1e9))} W each` : "";
  const why = reasons.length ? ` (${reasons.join(", ")})` : "";
  const items = [
    ["computing", `${percent(sum("accelerator_busy"), time)}${watts}`, "productive"],
    ["clocks held down", `${percent(sum("throttled_time"), time)}${why}`, "wasted_progress"],
  ].map(([label, words, category]) =>
    make("span", { class: "legend", data: { accelerators: label } }, swatch(inkOf(category)), `${label} ${words}`),
  );
  return make("div", { class: "legends" }, ...items);
}
