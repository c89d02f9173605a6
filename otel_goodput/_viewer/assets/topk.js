// What took the most time, and what happened most often: phases, custom names, parts, compiled functions.
import { cssFill, phaseStyle } from "./colors.js";
import { button, choice, goTo, head, make, swatch, table, tableRow, watch } from "./elements.js";
import { fillCard } from "./mount.js";
import { count, duration, percent } from "./format.js";
import { isDetailed, rowsIn, scopeOf, scopeTitle, stepRowsIn } from "./scope.js";
import { whose } from "./subject.js";

const TOP_COLUMNS = [
  ["Name", "text"],
  ["Count", "number"],
  ["Total, gross", "number"],
  ["Mean", "number"],
  ["Longest", "number"],
  ["Failed", "number"],
];
export const NONBLOCKING = 1;
const FAILED = 2;
const ranking = { by: "time", most: 10 };

export function startTopK(model, state) {
  const draw = () => drawTopK(model, state, draw);
  watch(state, ["document", "range", "attempt", "theme"], draw);
}

/** What a group is called: the user's name of it, else the phase. */
export function groupTitle(model, group) {
  return phaseTitle(model.phase_names[group.phase], group.name, group.background);
}

export function phaseTitle(phase, name, background) {
  return `${name || phase.replaceAll("_", " ")}${background ? " in the background" : ""}`;
}

/** Groups of a scope: the document's for the run, else counted from the phases that start in it; null: not known. */
export function groupsOf(model, scope) {
  if (scope.kind === "run") return model.groups;
  if (!isDetailed(model, scope)) return null;
  const groups = new Map();
  const addOne = (phase, name, wall, flags) => {
    const failed = flags & FAILED;
    const background = Boolean(flags & NONBLOCKING);
    const key = (phase * model.names.length + name) * 2 + Number(background);
    let group = groups.get(key);
    if (!group) {
      const none = { count: 0, sum_ns: 0, min_ns: Infinity, max_ns: 0, failed: 0 };
      group = { phase, name: model.names[name], background, ...none };
      groups.set(key, group);
    }
    group.count += 1;
    group.failed += failed ? 1 : 0;
    if (wall < 0) return;
    group.sum_ns += wall;
    group.min_ns = Math.min(group.min_ns, wall);
    group.max_ns = Math.max(group.max_ns, wall);
  };
  const { steps, phases } = model;
  const stepPhase = model.phase_names.indexOf("step");
  for (const row of stepRowsIn(steps, scope)) addOne(stepPhase, 0, steps.wall[row], steps.flags[row] & FAILED);
  for (const row of rowsIn(phases, scope)) {
    addOne(phases.phase[row], phases.name[row], phases.wall[row], phases.flags[row]);
  }
  return [...groups.values()];
}

function drawTopK(model, state, draw) {
  if (!model.groups.length) return fillCard("top-k");
  const scope = scopeOf(model, state);
  const own = groupsOf(model, scope);
  // The job holds all the others.
  const job = model.phase_names.indexOf("job");
  const groups = (own || model.groups).filter((group) => group.phase !== job);
  const measure = (group) => (ranking.by === "time" ? group.sum_ns : group.count);
  const sorted = [...groups].sort((one, other) => measure(other) - measure(one));
  const rows = () =>
    sorted.slice(0, ranking.most).map((group) => groupRow(model, state, group, measure(sorted[0]), measure(group)));
  const where = own ? scopeTitle(scope) : "whole run (no single phases are available for this time)";
  const input = make("input", {
    id: "top-k-count",
    type: "number",
    min: "1",
    max: "1000",
    value: String(ranking.most),
    "aria-label": "How many to list",
  });
  input.addEventListener("change", () => {
    ranking.most = Math.max(1, Math.min(1000, Math.round(Number(input.value)) || 10));
    input.value = String(ranking.most);
    // Only the rows: who leaves the field by a click on a button still finds that button there.
    document.querySelector("#top-k tbody")?.replaceChildren(...rows());
  });
  const change = (by) => {
    ranking.by = by;
    draw();
  };
  fillCard(
    "top-k",
    head(
      "What took the most",
      `${whose(model)}${where}, ${count(groups.length, "name")}`,
      make("label", {}, "Top ", input),
      choice(
        "Order",
        [
          ["time", "By time"],
          ["count", "By count"],
        ],
        ranking.by,
        change,
      ),
    ),
    groups.length
      ? make(
          "div",
          { class: "scroll" },
          table("Phases by time or count", TOP_COLUMNS, rows()),
        )
      : make("p", { class: "soft", text: "No phase begins in this time." }),
    make("p", {
      class: "soft",
      text:
        "Gross: the full length of each phase, including the phases inside it and those that run in the background. " +
        "The table of categories above is net: each moment counts once.",
    }),
    links(model),
  );
}

function groupRow(model, state, group, most, value) {
  const phase = model.phase_names[group.phase];
  const title = groupTitle(model, group);
  const query = phaseTitle(phase, group.name, false);
  const find = button(title, () => (state.set({ query }), goTo("timeline-card")), {
    class: "link clamp",
    title: `Search for ${query}`,
  });
  const chart = button("+ chart", () => addChart(model, state, group), {
    class: "quiet small",
    "aria-label": `Add a chart of ${title}`,
  });
  const name = make(
    "div",
    {},
    make(
      "div",
      { class: "name-line" },
      swatch(cssFill(phaseStyle(phase, group.name))),
      find,
      group.name ? make("span", { class: "soft", text: phase.replaceAll("_", " ") }) : null,
      chart,
    ),
    make("div", {
      class: "meter",
      style: { width: percent(value, most).replace(" ", ""), background: phaseStyle(phase, group.name).color },
    }),
  );
  const cells = [
    name,
    group.count.toLocaleString("en"),
    duration(group.sum_ns),
    group.count ? duration(group.sum_ns / group.count) : "–",
    duration(group.max_ns),
    group.failed ? String(group.failed) : "",
  ];
  return tableRow(TOP_COLUMNS, cells, {
    data: {
      name: group.name || phase,
      phase,
      background: String(group.background),
      count: String(group.count),
      ns: String(group.sum_ns),
    },
  });
}

/** Add a chart of a group to the reader's own ones (see charts.js). */
export function addChart(model, state, group) {
  const phase = model.phase_names[group.phase];
  const spec = { of: phase, name: group.name, background: group.background, form: "time" };
  if (state.charts.length >= 20 || state.charts.some((one) => draws(model, one, group))) return;
  state.set({ charts: [...state.charts, spec] });
}

/** Whether a chart of the reader's own is one of this group. */
export function draws(model, spec, group) {
  const phase = model.phase_names[group.phase];
  return spec.of === phase && spec.name === group.name && Boolean(spec.background) === group.background;
}

/** Where what ran on the device is looked at in detail. */
function links(model) {
  const folder = model.traces && model.traces.xprof;
  return folder ? make("p", { class: "soft", text: `Profiles of the device: xprof ${folder}` }) : null;
}
