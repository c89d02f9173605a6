// The keys of the timeline: one table, which binds them and which the list of shortcuts is made of.
import { button, make } from "./elements.js";
import { factsOf } from "./facts.js";

const PAN = 0.15; // of the view, a key
const ZOOM = 1.3;

// keys, what they do, what is done, whether they work wherever the focus is
const KEYS = [
  [["w", "+", "="], "zoom in", (timeline) => timeline.zoom(1 / ZOOM)],
  [["s", "-"], "zoom out", (timeline) => timeline.zoom(ZOOM)],
  [["a", "ArrowLeft"], "go left", (timeline) => timeline.pan(-PAN)],
  [["d", "ArrowRight"], "go right", (timeline) => timeline.pan(PAN)],
  [["ArrowUp"], "lane above", (timeline) => moveLane(timeline, -1)],
  [["ArrowDown"], "lane below", (timeline) => moveLane(timeline, 1)],
  [["PageUp"], "scroll one page up", (timeline) => moveLane(timeline, -20)],
  [["PageDown"], "scroll one page down", (timeline) => moveLane(timeline, 20)],
  [["Home"], "go to the start of the run", (timeline) => goToEdge(timeline, 0)],
  [["End"], "go to the end of the run", (timeline) => goToEdge(timeline, 1)],
  [
    ["Enter", " "],
    "open or close a group; on a lane, select the span nearest the middle",
    (timeline) => enterLane(timeline),
  ],
  [["["], "previous span of the same kind", (timeline) => neighbour(timeline, -1)],
  [["]"], "next span of the same kind", (timeline) => neighbour(timeline, 1)],
  [["f"], "zoom to the selection, or else the range", (timeline) => fitSelection(timeline)],
  [["0"], "show the whole run", (timeline) => timeline.state.set({ view: null })],
  [["r"], "use the selection, or else the view, as the range for all panels", (timeline) => rangeFrom(timeline)],
  [["m"], "measure the selection or range, or between two clicks", (timeline) => timeline.startMeasure()],
  [["p"], "pin the lane to the top, or unpin it", (timeline) => timeline.pin(timeline.activeRow())],
  [["Escape"], "clear selection, range and measure", (timeline) => timeline.clear()],
  [["/"], "search the whole run", () => document.getElementById("search").focus(), true],
  [["?"], "this list", () => showShortcuts(), true],
];

const MOUSE = [
  ["wheel", "zoom at the pointer; with Shift, scroll the lanes"],
  ["drag", "move the view"],
  ["Shift + drag, drag on the scale", "select a time range for all panels"],
  ["click", "select"],
  ["double click", "zoom to a span"],
];

const KEY_NAMES = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc", " ": "Space" };

export function bindKeys(timeline) {
  const bound = new Map(KEYS.flatMap(([names, , run, everywhere]) => names.map((name) => [name, { run, everywhere }])));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const key = bound.get(event.key.length === 1 ? event.key.toLowerCase() : event.key);
    const { target } = event;
    if (!key || target.closest("input, textarea, select, dialog[open]")) return;
    const card = document.getElementById("timeline-card");
    const inside = card && card.contains(target) && !target.closest("button, a");
    if (!inside && !key.everywhere && target !== document.body) return;
    // Without focus on the timeline the keys that scroll a page go on doing so.
    if (
      target === document.body &&
      ["ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End", " ", "Enter"].includes(event.key)
    )
      return;
    event.preventDefault();
    key.run(timeline);
  });
  const opener = document.getElementById("shortcuts-open");
  if (opener) opener.addEventListener("click", showShortcuts);
}

function showShortcuts() {
  const dialog = document.getElementById("shortcuts");
  const line = (names, words) =>
    make(
      "tr",
      {},
      make("td", {}, ...names.flatMap((name, at) => [at ? " " : null, make("kbd", { text: name })])),
      make("td", { text: words }),
    );
  const shown = KEYS.map(([names, words]) =>
    line(
      names.map((name) => KEY_NAMES[name] || name),
      words,
    ),
  );
  dialog.replaceChildren(
    make("h2", { text: "Keys of the timeline" }),
    make("p", {
      class: "soft",
      text: "These keys work while the timeline or nothing has the focus; / and ? always work.",
    }),
    make("table", {}, make("tbody", {}, ...shown)),
    make("h2", { text: "Mouse" }),
    make("table", {}, make("tbody", {}, ...MOUSE.map(([what, words]) => line([what], words)))),
    button("Close", () => dialog.close()),
  );
  if (!dialog.open) dialog.showModal();
}

function moveLane(timeline, by) {
  const { rows } = timeline.tree;
  const now = rows.indexOf(timeline.activeRow());
  const row = rows[Math.min(rows.length - 1, Math.max(0, now + by))];
  timeline.setActive(row);
  timeline.say(
    `${row.title}${row.tag ? `, ${row.tag}` : ""}${row.expandable ? (row.expanded ? ", open" : ", closed") : ""}`,
  );
}

function goToEdge(timeline, edge) {
  const [begin, end] = timeline.view();
  const at = timeline.whole[edge];
  timeline.setView(edge ? at - (end - begin) : at, edge ? at : at + (end - begin));
}

function enterLane(timeline) {
  const row = timeline.activeRow();
  if (row.expandable) {
    timeline.tree.toggle(row);
    timeline.tell("lanes");
    return;
  }
  const [begin, end] = timeline.view();
  const item = row.lane && timeline.nearestOn(row.lane, (begin + end) / 2, end - begin);
  if (item) timeline.select(item);
}

/** Go to the span before or behind the selected one, on its lane. */
function neighbour(timeline, by) {
  const selected = timeline.selected();
  if (!selected) {
    enterLane(timeline);
    return;
  }
  const next = timeline.neighbor(selected, by);
  if (!next) {
    timeline.say("There is no other");
    return;
  }
  timeline.select(next);
  const facts = factsOf(timeline.source, next);
  const [begin, end] = timeline.view();
  if (facts.begin < begin || facts.end > end)
    timeline.setView((facts.begin + facts.end - end + begin) / 2, (facts.begin + facts.end + end - begin) / 2);
}

function fitSelection(timeline) {
  const selected = timeline.selected();
  const facts = selected && factsOf(timeline.source, selected);
  const [begin, end] = facts ? [facts.begin, facts.end] : timeline.state.range || [null, null];
  if (begin !== null) timeline.fit(begin, end);
}

function rangeFrom(timeline) {
  const selected = timeline.selected();
  const facts = selected && factsOf(timeline.source, selected);
  const [begin, end] = facts && facts.end > facts.begin ? [facts.begin, facts.end] : timeline.view();
  const range = [Math.max(0, Math.round(begin)), Math.min(timeline.model.end, Math.round(end))];
  if (range[0] < range[1]) timeline.state.set({ range });
}
