// The index: all runs of a place, the newest first. Two that are ticked can be compared.
import { button, make } from "./elements.js";
import { complaint, listen } from "./connection.js";
import { duration } from "./format.js";

const NS_A_SECOND = 1e9;
const RUN_STATES = { running: "live", ended: "ended", failed: "failed", died: "died", silent: "no sign of life" };
const RUN_COLUMNS = [
  ["", "tick"],
  ["Run", "text"],
  ["State", "text"],
  ["Goodput", "number"],
  ["Last 1 h", "number"],
  ["At risk", "number"],
  ["Elapsed", "number"],
  ["Attempts", "number"],
  ["Began", "text"],
  ["Last sign of life", "text"],
  ["Incidents", "text"],
];
const OPEN_LISTED = 2; // incidents of a run, the latest

/** Show the index. */
export function startRuns() {
  const source = "./api/runs";
  const index = new RunsIndex(source);
  index.fetch();
  listen(`${source}/events`, { runs: (list) => index.update(list) }, () => index.fetch());
  setInterval(() => document.hidden || index.tick(), 1000);
}

class RunsIndex {
  constructor(source) {
    this.source = source;
    this.revision = null;
    this.runs = new Map();
    this.rows = new Map();
    this.order = [];
    this.ticked = [];
    this.ahead = 0; // ms that this machine's clock is before the server's
    this.mount();
  }

  mount() {
    this.search = make("input", {
      type: "search", id: "runs-search", placeholder: "Search runs ( / )", "aria-label": "Search runs", autocomplete: "off", maxlength: "200",
      on: { input: () => this.filter() },
    });
    this.compare = button("Compare", () => this.open(), { id: "compare-open", disabled: true });
    this.note = make("p", { class: "soft", id: "runs-note" });
    this.place = make("span", { class: "soft", id: "runs-place" });
    this.body = make("tbody");
    const titles = RUN_COLUMNS.map(([title, kind]) => make("th", { scope: "col", class: kind, text: title }));
    titles[0].append(make("span", { class: "unseen", text: "Compare" }));
    const table = make("table", { id: "runs-table" }, make("caption", { class: "unseen", text: "Runs, the newest first" }), make("thead", {}, make("tr", {}, ...titles)), this.body);
    const head = make("div", { class: "card-head" }, make("h2", { text: "Runs" }), this.place, make("span", { class: "tools" }, this.search, this.compare));
    const section = document.getElementById("runs");
    section.replaceChildren(make("div", { class: "card" }, head, this.note, make("div", { class: "scroll" }, table)));
    section.hidden = false;
    document.getElementById("sections").hidden = true;
    document.title = "Runs · otel-goodput";
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target instanceof HTMLInputElement) return;
      event.preventDefault();
      this.search.focus();
    });
  }

  /** Take the whole list. */
  async fetch() {
    if (this.fetching) return;
    this.fetching = true;
    try {
      const answer = await fetch(this.source);
      const list = await answer.json();
      if (!answer.ok) throw new Error(list.error || answer.statusText);
      complaint("");
      this.revision = list.revision;
      this.order = list.runs.map((run) => run.name);
      this.runs = new Map(list.runs.map((run) => [run.name, run]));
      this.place.textContent = list.place;
      this.draw();
      this.say(list);
    } catch (error) {
      complaint(`The list of runs cannot be read: ${error.message}`);
    } finally {
      this.fetching = false;
    }
    document.documentElement.dataset.ready = "yes";
  }

  /** Take what changes each second: the runs that are live. For all else the list is asked for again. */
  update(list) {
    this.say(list);
    if (list.revision !== this.revision) {
      this.fetch();
      return;
    }
    for (const run of list.runs) {
      if (!this.runs.has(run.name)) continue;
      this.runs.set(run.name, run);
      this.fill(run);
    }
  }

  say(list) {
    this.ahead = list.now ? Date.now() - 1000 * list.now : 0;
    this.note.textContent = list.problem;
    this.note.hidden = !list.problem;
  }

  draw() {
    for (const [name, row] of this.rows) {
      if (this.runs.has(name)) continue;
      row.element.remove();
      this.rows.delete(name);
    }
    for (const name of this.order) {
      if (!this.rows.has(name)) this.rows.set(name, this.row(name));
      this.fill(this.runs.get(name));
    }
    // Only rows out of place are moved, so that focus and ticks stay where they are.
    this.order.forEach((name, at) => {
      const { element } = this.rows.get(name);
      if (this.body.children[at] !== element) this.body.insertBefore(element, this.body.children[at] || null);
    });
    this.ticked = this.ticked.filter((name) => this.runs.has(name));
    this.filter();
    this.offer();
  }

  row(name) {
    const box = make("input", { type: "checkbox", on: { change: () => this.choose(name, box.checked) } });
    const link = make("a", { href: `./runs/${encodeURIComponent(name)}` });
    const job = make("span", { class: "soft job" });
    const cells = RUN_COLUMNS.map(([, kind]) => make("td", { class: kind }));
    cells[0].append(box);
    cells[1].append(link, job);
    return { element: make("tr", { data: { run: name } }, ...cells), cells, box, link, job };
  }

  fill(run) {
    const row = this.rows.get(run.name);
    if (!row) return;
    const put = (element, text) => element.textContent === text || (element.textContent = text);
    row.element.dataset.state = run.state;
    put(row.link, run.run_id);
    put(row.job, run.job_name && run.job_name !== run.run_id ? ` ${run.job_name}` : "");
    row.box.setAttribute("aria-label", `Compare ${run.run_id}`);
    row.box.disabled = Boolean(run.error);
    this.fillTimes(run, row);
    const known = run.goodput !== null && run.elapsed_s;
    put(row.cells[3], known ? `${(100 * run.goodput).toFixed(1)} %` : "–");
    const last = run.rolling?.["1h"] ?? null;
    put(row.cells[4], last === null ? "–" : `${(100 * last).toFixed(1)} %`);
    put(row.cells[5], long(run.at_risk_s));
    put(row.cells[6], long(run.elapsed_s));
    put(row.cells[7], run.attempts ? String(run.attempts) : "–");
  }

  /** The cells that change as time goes by. */
  fillTimes(run, row) {
    const put = (element, text) => element.textContent === text || (element.textContent = text);
    const sign = run.last_sign_of_life;
    let state = RUN_STATES[run.state] || run.state;
    if (["died", "ended", "failed"].includes(run.state)) state += sign ? ` ${this.ago(sign)}` : "";
    if (run.damaged) state += " (damaged)";
    if (run.error) state = `cannot be read: ${run.error}`;
    if (row.cells[2].textContent !== state) row.cells[2].replaceChildren(make("span", { class: `state state-${run.state.replace(" ", "-")}`, text: state }));
    put(row.cells[8], run.latest ? this.ago(run.latest) : "–");
    row.cells[8].title = run.latest ? new Date(1000 * run.latest).toISOString() : "";
    put(row.cells[9], run.state === "running" ? "now" : sign ? this.ago(sign) : "–");
    row.cells[9].title = sign ? new Date(1000 * sign).toISOString() : "";
    this.fillIncidents(run, row.cells[10]);
  }

  /** Those that are open, the latest first; else how many there were. */
  fillIncidents({ incidents, open_incidents: open }, cell) {
    const texts = (open || []).slice(-OPEN_LISTED).reverse().map((one) => {
      const rank = one.rank === null ? "" : ` of rank ${one.rank}`;
      return `${one.kind.replaceAll("_", " ")}${rank}, ${this.ago(one.began)}`;
    });
    const rest = texts.length ? incidents - texts.length : 0;
    const note = texts.length ? (rest ? `${incidents} in all` : "") : incidents ? String(incidents) : "–";
    const text = [...texts, note].join("\n");
    if (cell.dataset.shown === text) return;
    cell.dataset.shown = text;
    cell.replaceChildren(...texts.map((one) => make("span", { class: "open-incident", text: one })), note);
    cell.title = (open || []).map((one) => [one.kind, one.cause, one.phase, one.line, new Date(1000 * one.began).toISOString()].filter(Boolean).join(", ")).join("\n");
  }

  ago(moment) {
    const passed = Math.max(0, Math.floor((Date.now() - this.ahead) / 1000 - moment));
    return passed < 1 ? "just now" : `${coarse(passed)} ago`;
  }

  tick() {
    for (const run of this.runs.values()) {
      const row = this.rows.get(run.name);
      if (row && !row.element.hidden) this.fillTimes(run, row);
    }
  }

  choose(name, ticked) {
    this.ticked = this.ticked.filter((one) => one !== name);
    if (ticked) this.ticked.push(name);
    // A third one takes the place of the first: two are compared.
    while (this.ticked.length > 2) this.rows.get(this.ticked.shift()).box.checked = false;
    this.offer();
  }

  offer() {
    this.compare.disabled = this.ticked.length !== 2;
    this.compare.title = this.compare.disabled ? "Select two runs" : "";
  }

  open() {
    // The older one is what the newer one is held against.
    const [a, b] = [...this.ticked].sort((one, other) => this.order.indexOf(other) - this.order.indexOf(one));
    location.assign(`./compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`);
  }

  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter((word) => word);
    let left = 0;
    for (const [name, row] of this.rows) {
      const run = this.runs.get(name);
      const wrong = (run.open_incidents || []).map((one) => one.kind.replaceAll("_", " ")).join(" ");
      const text = `${run.run_id} ${run.job_name} ${RUN_STATES[run.state] || run.state} ${wrong}`.toLowerCase();
      row.element.hidden = !words.every((word) => text.includes(word));
      left += !row.element.hidden;
    }
    this.search.setCustomValidity("");
    this.body.parentElement.dataset.matches = String(left);
  }
}

function long(seconds) {
  return seconds === null || seconds === undefined ? "–" : duration(Math.round(seconds * NS_A_SECOND));
}

/** Seconds as people say them: "12 s", "3 min", "2 h", "5 d". */
function coarse(seconds) {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 2 * 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}
