// Whose time the page tells about: that of the job, or of one process that the reader chose.
import { ACCOUNT } from "./data.js";
import { count, duration, percent } from "./format.js";

/**
 * Whoever is chosen, the panels and the timeline draw the tables of the model. These are the job's (if there is none,
 * those of process 0) or, if that is chosen, process 0's. Started before what draws them.
 */
export function startSubject(model, state) {
  showSubject(model, state);
  state.on(["process"], () => {
    if (showSubject(model, state)) state.tell(["document"]);
  });
}

/** Take the tables of who is chosen into the model; whether they are others than before. */
export function showSubject(model, state) {
  const shown = model.leader && chosenProcess(model, state)?.leader ? "leader" : "whole";
  if (model.shown === shown) return false;
  for (const name of ACCOUNT) model[name] = model[shown][name];
  model.shown = shown;
  return true;
}

/** Whether the tables of the model are those of the job of all ranks. */
export function showsJob(model) {
  return Boolean(model.leader) && model.shown === "whole";
}

/** In the title of a panel, whose steps and phases it has: "job of 8 ranks, "; empty if there is only one process. */
export function whose(model) {
  if (!model.job) return "";
  return showsJob(model) ? `job of ${count(model.job.ranks, "rank")}, ` : "process 0, ";
}

/** Whose the steps and phases of the page are; empty if there is nothing to choose from. */
export function panelsOf(model, state) {
  if (!model.job) return "";
  const job = `job of ${count(model.job.ranks, "rank")}`;
  if (!model.leader) return `Steps and phases of process 0, which leads the ${job}: its ranks do not step together`;
  if (model.shown === "leader") return `Steps and phases of process 0${model.live ? ", read again every few minutes" : ""}`;
  const chosen = chosenProcess(model, state);
  const more = chosen ? `; of process ${chosen.index} the page has the time by category and the pace` : "";
  return `Steps and phases of the ${job}${more}`;
}

/** The process that was chosen, or null: the page tells about the run. */
export function chosenProcess(model, state) {
  if (state.process === null || model.processes.length < 2) return null;
  return model.processes.find((one) => one.index === state.process && (one.account || hasFigures(model, one))) || null;
}

/** Whether the figures of a process are in the document as a report. */
function hasFigures(model, process) {
  return process.leader && !model.partial;
}

/**
 * The model as the chosen one's: report, headline, verdict, bins and owners are its own, and all else is as it was.
 * `subject` of it is {kind: "run" | "job" | "process", title, process}.
 */
export function seen(model, state) {
  const process = chosenProcess(model, state);
  const title = process ? processTitle(model, process) : model.job ? `job of ${model.job.ranks} ranks` : "";
  const subject = { kind: process ? "process" : model.job ? "job" : "run", title, process };
  const apart = model.job && !model.leader; // its ranks do not step together
  if (!process) return seenFrom(model, apart ? { subject, bins: meanBins(model), ...NO_OWNERS } : { subject });
  if (process.leader) return seenFrom(model, { subject, ...figuresOf(leadersFigures(model)) });
  return seenFrom(model, { subject, ...NO_OWNERS, bins: processBinsOf(process), ...processFigures(process, title) });
}

const NO_OWNERS = { owners: null, window_owners: null };

function seenFrom(model, own) {
  return Object.assign(Object.create(model), own);
}

/** The figures of process 0 alone, which change while it lives. */
export function leadersFigures(model) {
  return model.leader ?? model.job?.leader ?? model;
}

const figuresOf = ({ report, headline, verdict, verdict_source, of_ranks }) => ({ report, headline, verdict, verdict_source, of_ranks });

/** The report of those whose steps and phases the tables of the model are. */
export function reportOf(model) {
  return showsJob(model) ? model.report : leadersFigures(model).report;
}

/** "process 3 of 8 on host n0" */
export function processTitle(model, process) {
  const host = process.host ? ` on host ${process.host}` : "";
  return `process ${process.index} of ${model.processes.length.toLocaleString("en")}${host}`;
}

function processFigures(process, title) {
  const { account, state, last_step: last, index } = process;
  const { elapsed_s: elapsed, goodput } = account;
  const share = goodput === null ? "when steps were over is not known" : percent(goodput * elapsed, elapsed);
  const report = {
    ...account,
    step_time: process.pace,
    reason: goodput === null ? "not known" : null,
    state,
    last_step: last,
    process: index,
  };
  const headline = `${title[0].toUpperCase()}${title.slice(1)}, ${state}: ${share} of ${duration(elapsed * 1e9)}`;
  return { report, headline, verdict: account.verdict, verdict_source: null, of_ranks: [] };
}

/** Time by category in the bins of another process, ns: as exact as its shares. */
function processBinsOf({ bins }) {
  const { begin, width, count: bars, categories, shares } = bins;
  const values = {};
  categories.forEach((category, at) => {
    const column = shares.subarray(at * bars, (at + 1) * bars);
    values[String(category)] = Float64Array.from(column, (share) => Math.round((share * width) / 255));
  });
  return { begin, width, count: bars, categories, values };
}

const means = new WeakMap(); // by the processes of a document

/** Of ranks that do not step together, time by category in bins as wide as the widest: the mean of their shares. */
function meanBins({ processes }) {
  if (means.has(processes)) return means.get(processes);
  const known = processes.filter((one) => one.bins).map((one) => one.bins);
  const width = Math.max(1, ...known.map((one) => one.width));
  const begin = Math.min(...known.map((one) => one.begin));
  const end = Math.max(...known.map((one) => one.begin + one.width * one.count));
  const count = known.length ? Math.ceil((end - begin) / width) : 0;
  const values = {};
  const sums = new Float64Array(count);
  for (const bins of known) {
    bins.categories.forEach((category, row) => {
      const column = (values[String(category)] ||= new Float64Array(count));
      for (let bin = 0; bin < bins.count; bin++) {
        const at = Math.floor((bins.begin + (bin + 0.5) * bins.width - begin) / width);
        const spent = bins.shares[row * bins.count + bin] * bins.width;
        column[at] += spent;
        sums[at] += spent;
      }
    });
  }
  for (const column of Object.values(values))
    column.forEach((spent, at) => (column[at] = sums[at] ? Math.round((spent / sums[at]) * width) : 0));
  const categories = Object.keys(values).map(Number).sort((one, other) => one - other);
  means.set(processes, { begin: known.length ? begin : 0, width, count, categories, values });
  return means.get(processes);
}

/** What can be chosen: [value, text] each. */
export function subjects(model) {
  const whole = model.job ? `Job (${count(model.job.ranks, "rank")})` : "Run (process 0)";
  const own = model.processes
    .filter((one) => one.account || hasFigures(model, one))
    .map((one) => [String(one.index), `Process ${one.index}${one.host ? ` (${one.host})` : ""}`]);
  return [["", whole], ...own];
}
