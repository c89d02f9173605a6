// First glance: how much was goodput, what was lost most and where, and what there is to doubt.
import { sourceStyle, sourceTitle, cssFill } from "./colors.js";
import { button, goTo, make, select, swatch, watch } from "./elements.js";
import { count, duration, percent } from "./format.js";
import { rangeText, timeText } from "./clock.js";
import { fillCard } from "./mount.js";
import { nanoseconds, runEnd, scopeOf } from "./scope.js";
import { panelsOf, seen, subjects } from "./subject.js";

const PARTIAL =
  "This run is long: its steps and other processes are still loading and will appear here.";
const MOST_INTERVALS = 6;
const FILLED = 0.5;
const STATES = {
  running: "running",
  ended: "ended",
  failed: "failed",
  died: "died",
  silent: "no sign of life",
};

export function startOverview(model, state) {
  watch(state, ["model", "document", "process", "clock"], () => drawAnswer(seen(model, state)));
  watch(state, ["document", "process"], () => {
    drawSubjects(model, state);
    const of = panelsOf(model, state);
    text("panels-of", of);
    document.getElementById("panels-of").hidden = !of;
  });
  watch(state, ["model", "range", "attempt", "clock"], () => drawScope(model, state));
  watch(state, ["model", "category", "process", "clock", "theme"], () => drawStretches(seen(model, state), state));
  document.getElementById("show-me").addEventListener("click", () => showMe(seen(model, state), state));
  for (const one of document.querySelectorAll("#sections button")) {
    one.addEventListener("click", () => goTo(one.dataset.section));
  }
}

/** Whose figures are shown: the job's, or those of one of its processes. */
function drawSubjects(model, state) {
  const choices = model.processes.length > 1 ? subjects(model) : [];
  const chosen = state.process === null ? "" : String(state.process);
  const change = (value) => state.set({ process: value === "" ? null : Number(value) });
  const mount = document.getElementById("subject");
  const key = JSON.stringify([choices, chosen]);
  if (mount.dataset.shown === key) return; // of a job of many ranks, making them takes long
  mount.dataset.shown = key;
  fillCard("subject", choices.length > 1 ? select("Whose time to show", choices, chosen, change) : null);
}

function drawAnswer(model) {
  const { report, subject } = model;
  const named = subject.kind === "process" ? subject.title : report.job_name || report.run_id || "run";
  document.title = `${percentOf(report)} goodput · ${named}`;
  text("headline", model.headline);
  text("verdict", model.verdict);
  fillCard("of-ranks", ...model.of_ranks.map((line) => make("p", { text: line })));
  document.getElementById("show-me").hidden = sourceIndex(model) < 0;
  const known = report.goodput !== null && report.goodput !== undefined;
  document.getElementById("goodput").replaceChildren(
    make("span", {
      class: "goodput-value",
      text: percentOf(report),
      data: { goodput: known ? report.goodput : "" },
    }),
    make("span", { class: "goodput-word", text: known ? goodputOf(subject) : report.reason || "not known" }),
  );
  document.getElementById("standing").replaceChildren(...standing(model));
  document.getElementById("figures").replaceChildren(...figures(model));
  drawWarnings(model);
  // Before the first job there is nothing to be drawn over time.
  document.getElementById("timeline-card").hidden = !model.attempts.length;
  document.getElementById("panels").hidden = !model.attempts.length;
  for (const id of ["timeline-card", "panels"]) {
    document.querySelector(`#sections [data-section="${id}"]`).hidden = !model.attempts.length;
  }
  const detail = document.getElementById("detail");
  const note = model.partial ? PARTIAL : model.detail.text;
  detail.hidden = !note;
  detail.replaceChildren(make("span", { class: "hatched swatch" }), make("span", { text: note }));
}

function goodputOf({ kind, process }) {
  return { run: "goodput", job: "goodput of the job", process: `goodput of process ${process?.index}` }[kind];
}

function percentOf(report) {
  return report.goodput === null || report.goodput === undefined ? "–" : `${(100 * report.goodput).toFixed(1)} %`;
}

/** The state, and where a run that died or fell silent stood. */
function standing(model) {
  const { report, subject } = model;
  const name = report.state || (report.ended ? "ended" : "running");
  const parts = [make("span", { class: `state state-${name}`, text: STATES[name] || name })];
  const since = report.last_sign_of_life;
  if ((name === "died" || name === "silent") && since) {
    let where = report.last_step === null ? "" : `, between steps; the last one was step ${report.last_step}`;
    if (report.last_step_open_s !== null && report.last_step_open_s !== undefined) {
      where = `, ${duration(nanoseconds(report.last_step_open_s))} into step ${report.last_step}`;
    }
    const at = since * 1e9 - Number(BigInt(model.origin_ns));
    const what = name === "died" ? "the process died at" : "no sign of life since";
    parts.push(make("span", { text: `${what} ${timeText(model, at)}${where}` }));
  } else if (subject.process && !subject.process.leader) {
    const { last_step: step, last_sign: sign } = subject.process;
    if (step !== null) parts.push(make("span", { text: `last step ${step}` }));
    if (sign >= 0) parts.push(make("span", { text: `last sign of life at ${timeText(model, sign)}` }));
  } else if (report.in_flight_step !== null && report.in_flight_step !== undefined) {
    const since = report.in_flight_step_s;
    const open = since === null || since === undefined ? "" : ` for ${duration(nanoseconds(since))}`;
    parts.push(make("span", { text: `step ${report.in_flight_step} in flight${open}` }));
  }
  if (subject.kind === "job" && name === "running")
    parts.push(make("span", { text: `as of ${timeText(model, model.figures_at, 1e9)}`, title: "the latest moment of which it is known what all ranks did" }));
  return parts;
}

function figures(model) {
  const { report } = model;
  const figures = [];
  const add = (value, words, title) =>
    figures.push(make("div", { class: "figure", title }, make("b", { text: value }), make("span", { text: words })));
  if (report.elapsed_s)
    add(duration(nanoseconds(report.elapsed_s)), "elapsed", "from the start of the first job to its end, or until now");
  for (const one of recentOf(report)) {
    const which = `goodput of the last ${windowLength(one.window)}${report.state === "running" ? "" : " of the run"}`;
    const known = one.goodput !== null;
    add(known ? percentOf(one) : "–", which, known ? lostTo(one) : one.reason);
  }
  if (report.steps && report.started_steps) {
    const byRank = report.kept_by_rank;
    const kept = report.steps.kept.toLocaleString("en");
    if (byRank && byRank.fewest < byRank.most)
      add(`${byRank.fewest.toLocaleString("en")} to ${byRank.most.toLocaleString("en")}`, "steps kept, by rank");
    else add(kept, "steps kept");
    if (report.steps.lost)
      add(report.steps.lost.toLocaleString("en"), "steps lost", "steps whose work a restart or rollback threw away");
  }
  if (report.step_time)
    add(duration(nanoseconds(report.step_time.median_s)), "median step", "net step time: without other phases inside the step; the latest kept steps");
  if (report.disruptions) add(String(report.disruptions), report.disruptions === 1 ? "disruption" : "disruptions");
  if (report.at_risk_s)
    add(duration(nanoseconds(report.at_risk_s)), "at risk", "progress since the last durable checkpoint");
  for (const [name, words] of [
    ["scheduling_goodput", "scheduling goodput"],
    ["program_goodput", "program goodput (MFU)"],
    ["productivity_goodput", "ML productivity"],
  ]) {
    if (report[name] !== null && report[name] !== undefined) add(`${(100 * report[name]).toFixed(1)} %`, words);
  }
  if (report.error_budget_used !== null && report.error_budget_used !== undefined)
    add(`${(100 * report.error_budget_used).toFixed(0)} %`, "of the error budget used", `the objective is a goodput of ${+(100 * report.objective).toFixed(3)} %`);
  if (report.excluded_s) add(duration(nanoseconds(report.excluded_s)), "excluded");
  if (report.suspended_s) add(duration(nanoseconds(report.suspended_s)), "suspended");
  return figures;
}

/** The rolling windows that are shorter than the run, the shortest first. */
function recentOf(report) {
  const some = (report.rolling || []).filter((one) => report.started_at !== null && one.start > report.started_at);
  return some.sort((one, other) => one.end - one.start - (other.end - other.start));
}

/** "1 h" for the window "1h". */
function windowLength(name) {
  const unit = name.at(-1);
  return `${name.slice(0, -1)} ${unit === "m" ? "min" : unit}`;
}

/** What a window lost most to, in words. */
function lostTo(window) {
  const { custom = {}, productive, ...seconds } = window.seconds;
  const named = Object.entries(custom).map(([name, held]) => [`custom ${name}`, held]);
  const losses = [...Object.entries(seconds), ...named].filter(([, held]) => held > 0);
  if (!losses.length) return "all time was productive";
  const [name, held] = losses.reduce((most, one) => (one[1] > most[1] ? one : most));
  return `most was lost to ${name} (${percent(held, window.elapsed_s)})`;
}

function drawWarnings(model) {
  const notes = (model.report.warnings || []).map((note) => note.text);
  const problems = model.processes.filter((one) => one.problem);
  const mount = document.getElementById("warnings");
  mount.hidden = !notes.length && !problems.length;
  const items = notes.map((note) => make("li", { text: note }));
  for (const one of problems.slice(0, 5)) items.push(make("li", { text: `process ${one.index}: ${one.problem}` }));
  if (problems.length > 5)
    items.push(
      make("li", {
        text: `${count(problems.length - 5, "other process", "other processes")} cannot be read either`,
      }),
    );
  const title = make("summary", { text: count(items.length, "note on these figures", "notes on these figures") });
  mount.replaceChildren(
    make(
      "details",
      { open: mount.querySelector("details")?.open ?? items.length <= 3 },
      title,
      make("ul", {}, ...items),
    ),
  );
}

/** In the header: which interval of time the panels tell about, and how to leave it. */
function drawScope(model, state) {
  const scope = scopeOf(model, state);
  const mount = document.getElementById("range-bar");
  if (scope.kind === "run") return mount.replaceChildren();
  const length = duration(scope.end - scope.begin);
  const what = scope.kind === "range" ? "Selected" : `Attempt ${scope.attempt.number}`;
  mount.replaceChildren(
    make("span", { text: `${what}: ${rangeText(model, [scope.begin, scope.end], length)}` }),
    button("Whole run", () => state.set({ range: null, attempt: null, view: null }), { id: "range-clear" }),
  );
}

// --- show me ------------------------------------------------------------------------------------------------------

function sourceIndex(model) {
  const source = model.verdict_source;
  if (!source) return -1;
  return model.categories.findIndex((one) => one.name === source.category && one.custom === (source.name || ""));
}

/** Emphasise the largest loss everywhere, and put all of it into the timeline. */
function showMe(model, state) {
  const category = sourceIndex(model);
  const times = intervals(model, category);
  const changes = { category };
  if (times.list.length) {
    const pad = (times.end - times.begin) * 0.03 + 1e6;
    changes.view = [Math.max(0, times.begin - pad), Math.min(model.end, times.end + pad)];
  }
  state.set(changes);
  goTo(times.list.length > 1 ? "intervals" : "timeline-card");
}

/** Where a category has its time: the longest intervals, and all from first to last. Without owners: of bins. */
export function intervals(model, category) {
  const { owners, bins } = model;
  const list = [];
  const add = (begin, length, held) => {
    const last = list[list.length - 1];
    // What fills most of an interval makes it one, such as lost steps with the loads between them.
    if (last && last.ns + held >= FILLED * (begin + length - last.begin)) {
      last.end = begin + length;
      last.ns += held;
    } else list.push({ begin, end: begin + length, ns: held });
  };
  if (owners) {
    for (let row = 0; row < owners.rows; row++) {
      if (owners.category[row] === category) add(owners.begin[row], owners.length[row], owners.length[row]);
    }
  } else if (bins.categories.includes(category)) {
    const column = bins.values[String(category)];
    for (let bin = 0; bin < bins.count; bin++) {
      if (column[bin])
        add(bins.begin + bin * bins.width, Math.min(bins.width, runEnd(model) - bin * bins.width), column[bin]);
    }
  }
  const [begin, end] = list.length ? [list[0].begin, list[list.length - 1].end] : [0, 0];
  const total = list.reduce((sum, one) => sum + one.ns, 0);
  return {
    begin,
    end,
    total,
    number: list.length,
    list: list.sort((one, other) => other.ns - one.ns).slice(0, MOST_INTERVALS),
  };
}

function drawStretches(model, state) {
  const card = document.getElementById("verdict-card");
  document.getElementById("intervals")?.remove();
  const category = model.categories[state.category ?? -1];
  if (!category) return;
  const times = intervals(model, state.category);
  if (!times.list.length) return;
  const items = times.list.map((one) => {
    const go = () => {
      const pad = Math.max((one.end - one.begin) * 0.5, 1e6);
      state.set({ view: [one.begin - pad, one.end + pad] });
      goTo("timeline-card");
    };
    return make("li", {}, button(`${duration(one.ns)} at ${timeText(model, one.begin, 1e9)}`, go, { class: "link" }));
  });
  const listed = times.list.reduce((sum, one) => sum + one.ns, 0);
  const where = model.owners
    ? count(times.number, "interval", "intervals")
    : `${count(times.number, "interval", "intervals")} of bins`;
  const lead =
    `${where}, ${duration(times.total)} in all` +
    (times.number > items.length ? `; the ${items.length} longest hold ${percent(listed, times.total)}:` : ":");
  card.append(
    make(
      "div",
      { id: "intervals", class: "intervals" },
      make("p", {}, swatch(cssFill(sourceStyle(category))), make("b", { text: sourceTitle(category) }), ` ${lead}`),
      make("ol", {}, ...items),
      button("Clear", () => state.set({ category: null }), { class: "quiet" }),
    ),
  );
}

function text(id, value) {
  document.getElementById(id).textContent = value || "";
}
