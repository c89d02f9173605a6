// Search over the whole run: step numbers, names, phases, functions, span ids, reasons, hosts. Enter goes there.
import { button, make } from "./elements.js";
import { FATE_NAMES } from "./colors.js";
import { count, duration } from "./format.js";
import { pageTimeline } from "./timeline.js";

const MOST_SHOWN = 200;
const SPAN_ID = /^[0-9a-f]{4,16}$/;

/** What the words of `query` find: {found: [{title, detail, goal}], total}. `goal` is selected by choosing it. */
export function searchRun(source, query) {
  const hits = [];
  let total = 0;
  const add = (title, detail, goal) => {
    total += 1;
    if (hits.length < MOST_SHOWN) hits.push({ title, detail, goal });
  };
  const words = query.trim().toLowerCase();
  if (!words) return { hits, total };
  searchSteps(source, words, add);
  searchLists(source, words, add);
  searchIds(source, words, add);
  searchPhases(source, words, add);
  return { hits, total };
}

function searchSteps(source, words, add) {
  const { steps, step_bins: bins } = source.model;
  const match = /^(?:step\s*)?#?(\d+)$/.exec(words);
  if (!match) {
    const fate = { lost: 1, "in flight": 2 }[words];
    if (fate !== undefined)
      for (let row = 0; row < steps.rows; row++) if (steps.fate[row] === fate) add(...stepResult(source, row));
    for (const [word, bit] of [
      ["outlier", 8],
      ["slow", 8],
      ["failed", 2],
    ]) {
      if (words === word)
        for (let row = 0; row < steps.rows; row++) if (steps.flags[row] & bit) add(...stepResult(source, row));
    }
    return;
  }
  const number = Number(match[1]);
  const before = [];
  for (let row = 0; row < steps.rows; row++) if (steps.number[row] === number) before.push(row);
  for (const row of before) add(...stepResult(source, row));
  if (!before.length && bins) {
    for (let row = 0; row < bins.rows; row++) {
      if (bins.first[row] <= number && number <= bins.last[row])
        add(`step ${number}`, `among steps ${bins.first[row]} to ${bins.last[row]}, summed up`, {
          kind: "steps",
          row,
          process: 0,
        });
    }
  }
}

function stepResult(source, row) {
  const { steps } = source.model;
  const fate = FATE_NAMES[steps.fate[row]] || "";
  return [
    `step ${steps.number[row]}`,
    `attempt ${steps.attempt[row]} · ${fate} · ${duration(source.stepEnd(row) - steps.start[row])}`,
    { kind: "step", row, process: 0 },
  ];
}

function searchLists(source, words, add) {
  const { disruptions, notices, attempts, processes, saves } = source.model;
  disruptions.forEach((one, row) => {
    if (`disruption ${one.reason}`.toLowerCase().includes(words))
      add(`disruption: ${one.reason}`, `at ${duration(one.time)}`, { kind: "disruption", row, process: 0 });
  });
  notices.forEach((one, row) => {
    if (`notice ${one.reason}`.toLowerCase().includes(words))
      add(`notice: ${one.reason}`, `at ${duration(one.time)}`, { kind: "notice", row, process: 0 });
  });
  attempts.forEach((one, row) => {
    if (`attempt ${one.number} ${one.state}`.includes(words))
      add(`attempt ${one.number}`, one.state, { kind: "attempt", row, process: 0 });
  });
  const step = /^(?:checkpoint|save)\s*(\d*)$/.exec(words);
  for (let row = 0; step && row < saves.rows; row++) {
    if (!step[1] || String(saves.step[row]) === step[1])
      add(`checkpoint of step ${saves.step[row]}`, saves.durable_at[row] >= 0 ? "durable" : "not durable", {
        kind: "save",
        row,
        process: 0,
      });
  }
  for (const one of processes) {
    if (`process ${one.index} ${one.host || ""}`.toLowerCase().includes(words) && words.length > 1)
      add(`process ${one.index}`, one.host || "", { lane: one.index });
  }
}

function searchIds(source, words, add) {
  if (!SPAN_ID.test(words)) return;
  for (const [row, id] of source.model.step_ids)
    if (id.startsWith(words))
      add(`span ${id}`, `step ${source.model.steps.number[row]}`, { kind: "step", row, process: 0 });
  for (const [row, id] of source.model.phase_ids)
    if (id.startsWith(words)) add(`span ${id}`, source.phaseName(row), { kind: "phase", row, process: 0 });
}

function searchPhases(source, words, add) {
  const { phases, phase_names: known, names } = source.model;
  const kinds = known.map((name) => `${name} ${name.replaceAll("_", " ")}`.toLowerCase().includes(words));
  const named = names.map((name) => name !== "" && name.toLowerCase().includes(words));
  for (let row = 0; row < phases.rows; row++) {
    if (!kinds[phases.phase[row]] && !named[phases.name[row]]) continue;
    const length = duration(source.phaseEnd(row) - phases.start[row]);
    const kind = known[phases.phase[row]].replaceAll("_", " ");
    const detail = `${kind} · attempt ${phases.attempt[row]} · ${length}`;
    add(source.phaseLabel(row), detail, { kind: "phase", row, process: 0 });
  }
}

export function startSearch(model, state) {
  const timeline = pageTimeline();
  const input = document.getElementById("search");
  const list = document.getElementById("search-results");
  input.setAttribute("aria-controls", "search-results");
  let results = [];
  let chosen = -1;

  const go = (at) => {
    if (!results[at]) return;
    chosen = at;
    mark();
    const { goal } = results[at];
    if (goal.lane !== undefined) timeline.goToProcess(goal.lane);
    else timeline.centre(goal);
  };
  const mark = () => {
    [...list.querySelectorAll("[role=option]")].forEach((element, at) =>
      element.setAttribute("aria-selected", String(at === chosen)),
    );
    const element = list.querySelector("[aria-selected=true]");
    if (element) element.scrollIntoView({ block: "nearest" });
  };
  const search = () => {
    const { hits, total } = searchRun(timeline.source, state.query);
    results = hits;
    chosen = -1;
    list.hidden = !state.query.trim();
    const more = total > hits.length ? `; the first ${hits.length} are shown` : "";
    const options = hits.map(({ title, detail }, at) =>
      make(
        "div",
        { role: "option", "aria-selected": "false", data: { result: at }, on: { click: () => go(at) } },
        make("span", { class: "name", text: title, title }),
        make("span", { class: "soft", text: detail }),
      ),
    );
    list.replaceChildren(
      make(
        "div",
        { class: "search-head" },
        make("span", { class: "soft", "aria-live": "polite", text: `${count(total, "result")}${more}` }),
        button("Close", close, { class: "quiet" }),
      ),
      make("div", { class: "search-list", role: "listbox", "aria-label": "Results" }, ...options),
    );
  };
  const close = () => {
    list.hidden = true;
    timeline.canvas.focus({ preventScroll: true });
  };
  let timer = null;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => state.set({ query: input.value }), 120);
  });
  input.addEventListener("focus", () => (list.hidden = !state.query.trim()));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      input.value = "";
      state.set({ query: "" });
      close();
    } else if (event.key === "Enter") {
      clearTimeout(timer);
      state.set({ query: input.value });
      go(chosen < 0 ? 0 : chosen);
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      chosen = Math.min(results.length - 1, Math.max(0, chosen + (event.key === "ArrowDown" ? 1 : -1)));
      mark();
    } else {
      return;
    }
    event.preventDefault();
  });
  state.on(["query"], () => {
    if (input.value !== state.query) input.value = state.query;
    search();
  });
  timeline.listen((what) => what === "model" && state.query && search());
  input.value = state.query;
  if (state.query) search();
}
