// What is known of the place where the run went on, how it was configured, and how this page shows it.
import { chosenTheme, chooseTheme } from "./theme.js";
import { CLOCK_KINDS, chooseClock, clockKind, timeText } from "./clock.js";
import { choice, head, make, select, table, watch } from "./elements.js";
import { fillCard } from "./mount.js";
import { duration, moment } from "./format.js";

const FACT_COLUMNS = [
  ["Name", "text"],
  ["Value", "text"],
];
const SETTING_COLUMNS = [
  ["Setting", "text"],
  ["Value", "text"],
  ["Set by", "text"],
];
const infoShown = { process: null, attempt: "" };

export function startInfo(model, state) {
  const draw = () => drawInfo(model, state, draw);
  watch(state, ["document", "process", "clock"], () => {
    infoShown.process = null;
    draw();
  });
  const settings = () => drawSettings(model, state, settings);
  watch(state, ["document", "theme", "clock"], settings);
}

function drawInfo(model, state, draw) {
  const known = model.processes.filter((one) => one.facts);
  const wanted = infoShown.process ?? state.process ?? 0;
  const process = known.find((one) => one.index === wanted) || known[0];
  const change = (changes) => {
    Object.assign(infoShown, changes);
    draw();
  };
  const tools = [];
  if (known.length > 1) {
    const choices = known.map((one) => [String(one.index), `Process ${one.index}${one.host ? ` (${one.host})` : ""}`]);
    tools.push(select("Process", choices, String(process.index), (value) => change({ process: Number(value) })));
  }
  // An attempt's own facts are the leader's; without a choice, those of the process as it was last.
  const attempts = process && process.leader ? (model.leader ?? model).attempts.filter((one) => one.facts) : [];
  if (attempts.length) {
    const choices = [["", "Latest attempt"], ...attempts.map((one) => [String(one.number), `Attempt ${one.number}`])];
    tools.push(select("Attempt", choices, infoShown.attempt, (value) => change({ attempt: value })));
  }
  const attempt = attempts.find((one) => String(one.number) === infoShown.attempt);
  const facts = (attempt && attempt.facts) || (process && process.facts) || null;
  const note = process ? `process ${process.index}${attempt ? `, attempt ${attempt.number}` : ""}` : "";
  fillCard("info", head("This run", note, ...tools), make("div", { class: "fact-grid" }, ...factTables(model, facts)));
}

function factTables(model, facts) {
  const made = [["Run", table("The run", FACT_COLUMNS, runFacts(model))]];
  if (!facts)
    made.push([
      "Process",
      make("p", { class: "soft", text: "No facts about the machine and the settings were recorded for this run." }),
    ]);
  else {
    const add = (title, values) => {
      if (values && Object.keys(values).length)
        made.push([
          title,
          table(
            title,
            FACT_COLUMNS,
            Object.entries(values).map(([name, value]) => [name, worded(value)]),
          ),
        ]);
    };
    add("Hyperparameters", facts.hyperparameters);
    add("Resource", facts.resource);
    add("Versions", facts.versions);
    const waits = Object.entries(facts.scheduling || {}).map(([stage, seconds]) => [stage, duration(seconds * 1e9)]);
    add("Scheduling", Object.fromEntries(waits));
    add("Compilation cache", cacheFacts(facts.compile_cache));
    if (facts.settings && Object.keys(facts.settings).length) {
      made.push([
        "Configuration in force",
        table("Configuration in force", SETTING_COLUMNS, Object.entries(facts.settings).map(settingRow)),
      ]);
    }
  }
  return made.map(([title, content]) => make("div", { class: "facts" }, make("h3", { text: title }), content));
}

function cacheFacts(cache) {
  if (!cache || !("hits" in cache)) return null;
  return { hits: cache.hits, misses: cache.misses, "compile time saved": duration(cache.saved_s * 1e9) };
}

/** A setting is {value, source}, or a bare value where its source is not known. */
function settingRow([name, setting]) {
  const sourced = setting !== null && typeof setting === "object" && "value" in setting;
  return sourced ? [name, worded(setting.value), setting.source || ""] : [name, worded(setting), ""];
}

function worded(value) {
  if (value === null || value === undefined) return "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function runFacts(model) {
  const { report } = model;
  const rows = [];
  const add = (name, value) =>
    value !== null && value !== undefined && value !== "" && rows.push([name, String(value)]);
  add("run id", report.run_id);
  add("job", report.job_name);
  add("state", report.state);
  if (report.started_at) add("started", moment(report.started_at * 1e3));
  if (model.end) add("account until", timeText(model, model.end));
  add("attempts", model.attempts.length);
  add("processes", model.processes.length);
  if (report.scheduling) add("rescheduled", report.scheduling.reschedules);
  add("clock of the steps", report.clock);
  for (const one of model.attempts) if (one.trace_id) add(`trace of attempt ${one.number}`, one.trace_id);
  add("page written", model.made_at ? moment(model.made_at * 1e3) : null);
  add("written by", `otel-goodput ${model.version}`);
  return rows;
}

function drawSettings(model, state, draw) {
  const themes = [
    ["", "As the system"],
    ["light", "Light"],
    ["dark", "Dark"],
  ];
  const line = (name, control) => make("div", { class: "setting" }, make("span", { text: name }), control);
  const lines = [
    line(
      "Colors",
      choice("Colors", themes, chosenTheme(), (name) => (chooseTheme(name, state), draw())),
    ),
    line(
      "Times",
      choice("Times", CLOCK_KINDS, clockKind(), (kind) => chooseClock(kind, state)),
    ),
  ];
  const server = model.server;
  if (server) {
    if (server.port) lines.push(line("Served on port", make("span", { text: String(server.port) })));
    lines.push(
      line(
        "Stops when idle",
        make("span", {
          text: server.idle_s ? `after ${duration(server.idle_s * 1e9)} without a request (--idle)` : "no (see --idle)",
        }),
      ),
    );
  }
  fillCard("settings", head("Settings"), make("div", { class: "settings-grid" }, ...lines));
}
