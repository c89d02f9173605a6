// The timeline: lanes on a canvas, and what is selected, measured and pinned on them.
import { make } from "./elements.js";
import { factsOf, isThere } from "./facts.js";
import { duration } from "./format.js";
import { bindKeys } from "./keys.js";
import { LaneSource } from "./lanes.js";
import { LaneTree } from "./lanetree.js";
import { itemBeside, laneItemAt, spanPlaces } from "./places.js";
import { bindPointer } from "./pointer.js";
import { drawScene, FLAGS_HIGH, MAP_HIGH, SCALE_HIGH } from "./scene.js";
import { Surface } from "./surface.js";
import { TreeView } from "./tree.js";

const NARROWEST = 100; // ns that a view shows at least
const MARGIN = 0.01; // of the run, shown beyond its ends

class Timeline {
  constructor(model, state) {
    this.state = state;
    this.tree = new LaneTree();
    this.surface = new Surface();
    this.scroll = 0;
    this.active = "run"; // id of the lane that the arrow keys are at
    this.measure = null; // {begin, end | null, done}
    this.listeners = [];
    this.canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": "Timeline of the run. Press question mark for the keys.",
      "aria-describedby": "timeline-said" });
    this.cursor = make("div", { class: "tl-cursor", hidden: true });
    this.spacer = make("div");
    this.bar = make("div", { class: "tl-bar", tabindex: "-1", "aria-hidden": "true" }, this.spacer);
    this.tip = make("div", { class: "tip tl-tip", hidden: true });
    this.said = make("div", { id: "timeline-said", class: "unseen", "aria-live": "polite" });
    this.box = document.getElementById("timeline");
    this.box.replaceChildren(this.canvas, this.cursor, this.bar, this.said);
    document.body.append(this.tip);
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.treeView = new TreeView(document.getElementById("tree"), this);
    this.take(model);
    bindPointer(this);
    bindKeys(this);
    this.bar.addEventListener("scroll", () => this.scrollTo(this.bar.scrollTop));
    new ResizeObserver(() => this.ask()).observe(this.box);
    state.on(["view", "range", "category"], () => this.ask());
    state.on(["selected"], () => this.tell("selected"));
    state.on(["attempt"], () => this.rebuild());
    state.on(["process"], () => this.goToProcess(state.process));
    state.on(["document"], () => this.update(model));
    state.on(["theme"], () => this.recolor());
  }

  take(model) {
    this.model = model;
    this.source = new LaneSource(model);
    this.rebuild();
  }

  rebuild() {
    const { attempt } = this.state;
    this.tree.build(this.source, this.model.attempts.some((one) => one.number === attempt) ? attempt : null);
    this.tell("lanes");
  }

  /** New data of the same run: view, selection, pins and what is open stay. */
  update(model) {
    const selected = this.selected();
    const known = selected && factsOf(this.source, selected);
    this.take(model);
    if (known) this.state.set({ selected: this.foundAgain(selected, known) });
    this.tell("model");
  }

  /** What was selected, in new data: rows may have moved. */
  foundAgain(selected, known) {
    if (isThere(this.source, selected) && factsOf(this.source, selected).begin === known.begin) return selected;
    const { steps, phases, saves, owners } = this.model;
    const begins = { step: steps.start, phase: phases.start, save: saves.begin, owner: owners && owners.begin }[selected.kind];
    const row = begins ? begins.findIndex((begin, at) => begin === known.begin && factsOf(this.source, { ...selected, row: at }).title === known.title) : -1;
    return row >= 0 ? { ...selected, row } : null;
  }

  recolor() {
    this.source.refresh();
    this.colors = null;
    this.draw(); // at once: before printing there is no next frame
  }

  /** Call `callback(what)` when something other than the state has changed: "selected", "lanes", "model", "measure". */
  listen(callback) {
    this.listeners.push(callback);
  }

  tell(what) {
    for (const callback of this.listeners) callback(what);
    if (what === "selected") this.say();
    this.ask();
  }

  say(text = null) {
    const selected = this.selected();
    const facts = selected && factsOf(this.source, selected);
    const length = facts && (facts.open ? "open" : `${duration(facts.end - facts.begin)} long`);
    this.said.textContent = text ?? (facts ? `${facts.title}, at ${duration(facts.begin)}, ${length}` : "Nothing is selected");
  }

  /** What is selected, if the document has it. */
  selected() {
    const { selected } = this.state;
    return isThere(this.source, selected) ? selected : null;
  }

  select(selected) {
    this.state.set({ selected });
  }

  // --- the view -------------------------------------------------------------------------------------------------------

  get whole() {
    const margin = Math.max(1000, this.model.end * MARGIN);
    return [-margin, Math.max(1000, this.model.end) + margin];
  }

  view() {
    return this.state.view ? [...this.state.view] : this.whole;
  }

  setView(begin, end) {
    const [low, high] = this.whole;
    const width = Math.min(high - low, Math.max(NARROWEST, end - begin));
    const middle = (begin + end) / 2;
    const first = Math.min(high - width, Math.max(low, middle - width / 2));
    this.state.set({ view: width >= high - low ? null : [first, first + width] });
  }

  zoom(factor, time = null) {
    const [begin, end] = this.view();
    const about = time ?? (begin + end) / 2;
    // At the limits a zoom must not turn into a pan.
    const width = Math.max(NARROWEST, (end - begin) * factor);
    const used = width / (end - begin);
    this.setView(about - (about - begin) * used, about + (end - about) * used);
  }

  pan(part) {
    const [begin, end] = this.view();
    const shift = (end - begin) * part;
    this.setView(begin + shift, end + shift);
  }

  /** Show a stretch with some room around it. */
  fit(begin, end) {
    const room = Math.max((end - begin) * 0.25, 500);
    this.setView(begin - room, end + room);
  }

  /** Bring something into view: centred, and zoomed in if it would be a sliver. */
  centre(selected, time = null) {
    this.select(selected);
    const facts = factsOf(this.source, selected);
    const [begin, end] = this.view();
    const length = facts.end - facts.begin;
    const width = Math.min(end - begin, Math.max(length * 40, 1e6));
    const middle = time ?? (facts.begin + facts.end) / 2;
    this.setView(middle - Math.max(width, length * 1.5) / 2, middle + Math.max(width, length * 1.5) / 2);
    const row = this.tree.rows.find((one) => one.lane && spanPlaces(this.source, one.lane, selected, facts).length);
    if (row) this.reveal(row);
  }

  clear() {
    this.measure = null;
    this.state.set({ selected: null, range: null });
    this.tell("measure");
  }

  // --- measuring ------------------------------------------------------------------------------------------------------

  /** Of the selection or the range; without either, between the next two clicks. */
  startMeasure() {
    const selected = this.selected();
    const facts = selected && factsOf(this.source, selected);
    const [begin, end] = facts && facts.end > facts.begin ? [facts.begin, facts.end] : this.state.range || [null, null];
    this.measure = { begin, end, done: begin !== null };
    this.tell("measure");
  }

  measuring() {
    return Boolean(this.measure && !this.measure.done);
  }

  measurePoint(time) {
    const at = Math.round(Math.min(this.model.end, Math.max(0, time)));
    if (this.measure.begin === null) this.measure.begin = at;
    else this.measure = { begin: Math.min(this.measure.begin, at), end: Math.max(this.measure.begin, at), done: true };
    this.tell("measure");
  }

  /** While the second point is looked for the stretch follows the pointer. */
  hoverMeasure(time) {
    if (!this.measuring() || this.measure.begin === null) return;
    this.measure.end = time;
    this.ask();
  }

  endMeasure() {
    this.measure = null;
    this.tell("measure");
  }

  // --- rows -----------------------------------------------------------------------------------------------------------

  get head() {
    return MAP_HIGH + 2 * SCALE_HIGH + (this.model.disruptions.length ? FLAGS_HIGH : 0);
  }

  get bodyTop() {
    return this.head + this.tree.pinnedHeight;
  }

  scrollTo(y) {
    const most = Math.max(0, this.tree.height - (this.height - this.bodyTop));
    const next = Math.round(Math.min(most, Math.max(0, y)));
    if (next === this.scroll) return;
    this.scroll = next;
    this.bar.scrollTop = next;
    this.ask();
  }

  reveal(row) {
    const room = this.height - this.bodyTop;
    if (row.y < this.scroll) this.scrollTo(row.y);
    else if (row.y + row.height > this.scroll + room) this.scrollTo(row.y + row.height - room);
  }

  /** Rows in sight with their place on the canvas: pinned ones first. */
  placedRows() {
    const pinned = this.tree.pinned.map((row) => ({ row, top: this.head + row.y }));
    const rows = this.tree.between(this.scroll, this.scroll + this.height - this.bodyTop);
    return [...pinned, ...rows.map((row) => ({ row, top: this.bodyTop + row.y - this.scroll }))];
  }

  rowAt(y) {
    if (y < this.head || y >= this.height) return null;
    const inside = ({ row, top }) => y >= top && y < top + row.height && (row.pinned || y >= this.bodyTop);
    return this.placedRows().find(inside) || null;
  }

  /** Bring the lane of a process into sight. */
  goToProcess(index) {
    const row = this.tree.rows.find((one) => one.level === 4 && one.process === index);
    if (row) this.setActive(row);
    else this.say(`process ${index} is in a group that is closed`);
    this.canvas.focus({ preventScroll: true });
  }

  activeRow() {
    return this.tree.rows.find((row) => row.id === this.active) || this.tree.rows[0];
  }

  setActive(row) {
    this.active = row.id;
    this.reveal(row);
    this.ask();
  }

  pin(row) {
    this.tree.pin(row);
    this.say(`${row.title} is ${this.tree.pins.includes(row.id) ? "pinned" : "no longer pinned"}`);
    this.tell("lanes");
  }

  nearestOn(lane, time, reach) {
    for (const place of [0, 0.99]) {
      const item = laneItemAt(this.source, lane, time, reach, place);
      if (item) return item;
    }
    return null;
  }

  /** The span before (-1) or behind (1) what is selected on its lane. */
  beside(selected, by) {
    return itemBeside(this.source, this.tree.leaderLanes.concat(this.tree.runLanes), selected, by);
  }

  // --- drawing --------------------------------------------------------------------------------------------------------

  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.draw();
    });
  }

  fitBox() {
    const wanted = Math.max(220, Math.min(this.head + this.tree.pinnedHeight + this.tree.height, Math.max(360, innerHeight * 0.7)));
    this.box.style.height = `${Math.round(wanted)}px`;
    this.width = Math.max(50, this.box.clientWidth - 12);
    this.height = Math.round(wanted);
    const ratio = window.devicePixelRatio || 1;
    const [across, down] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (this.canvas.width !== across || this.canvas.height !== down) {
      this.canvas.width = across;
      this.canvas.height = down;
      this.canvas.style.width = `${this.width}px`;
      this.canvas.style.height = `${this.height}px`;
    }
    this.spacer.style.height = `${this.tree.height}px`;
    this.bar.style.top = `${this.bodyTop}px`;
    this.bar.style.height = `${Math.max(0, this.height - this.bodyTop)}px`;
    this.bar.hidden = this.tree.height <= this.height - this.bodyTop;
    const most = Math.max(0, this.tree.height - (this.height - this.bodyTop));
    if (this.scroll > most) this.scrollTo(most);
    return ratio;
  }

  /** Draw now; ms that it took. */
  draw() {
    const started = performance.now();
    const ratio = this.fitBox();
    drawScene(this, ratio);
    this.treeView.draw();
    this.lastDraw = performance.now() - started;
    return this.lastDraw;
  }

  // --- for tests and for the other modules ----------------------------------------------------------------------------

  timeAt(x) {
    const [begin, end] = this.view();
    return begin + ((end - begin) * x) / this.width;
  }

  /** Names of the rows in sight, with their place on the canvas in CSS pixels. */
  lanes() {
    return this.placedRows().map(({ row, top }) => ({ id: row.id, name: row.title, y: top, height: row.height, level: row.level, pinned: Boolean(row.pinned) }));
  }

  /** What is drawn at a point of the canvas: {area, time, row, item: selected | null}. */
  at(x, y) {
    const time = this.timeAt(x);
    if (y < MAP_HIGH) return { area: "map", time: this.whole[0] + ((this.whole[1] - this.whole[0]) * x) / this.width, row: null, item: null };
    if (y < MAP_HIGH + 2 * SCALE_HIGH) return { area: "axis", time, row: null, item: null };
    if (y < this.head) {
      const flag = (this.flags || []).find((one) => x >= one.left && x <= one.right);
      return { area: "flags", time, row: null, item: flag ? { kind: "disruption", row: flag.row, process: 0 } : null };
    }
    const found = this.rowAt(y);
    if (!found) return { area: "empty", time, row: null, item: null };
    const { row, top } = found;
    const reach = ((this.view()[1] - this.view()[0]) / this.width) * 3;
    const place = (y - top) / row.height;
    const inside = !row.cut || (time >= row.cut[0] && time <= row.cut[1]);
    return { area: "lane", time, row, item: row.lane && inside ? laneItemAt(this.source, row.lane, time, reach, place) : null };
  }

  /** Place on the canvas of a span, in CSS pixels: {x0, x1, y0, y1, lane} of the first row in sight that shows it, or null. */
  spanX(kind, row) {
    const selected = { kind, row, process: 0 };
    if (!isThere(this.source, selected)) return null;
    const facts = factsOf(this.source, selected);
    const [begin, end] = this.view();
    const x = (time) => ((time - begin) / (end - begin)) * this.width;
    for (const { row: one, top } of this.placedRows()) {
      const [place] = one.lane ? spanPlaces(this.source, one.lane, selected, facts) : [];
      if (!place) continue;
      const high = (one.height - 4) / place.of;
      return { x0: x(place.begin), x1: x(place.end), y0: top + 2 + high * place.depth, y1: top + 2 + high * (place.depth + 1), lane: one.title };
    }
    return null;
  }
}

let shownTimeline = null;

/** The timeline of the page, once it stands. */
export function pageTimeline() {
  return shownTimeline;
}

export function startTimeline(model, state) {
  shownTimeline = new Timeline(model, state);
  shownTimeline.draw();
  return shownTimeline;
}
