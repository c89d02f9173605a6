// The timeline: lanes on a canvas, and what is selected, measured and pinned on them.
import { make } from "./elements.js";
import { factsOf, isThere } from "./facts.js";
import { duration } from "./format.js";
import { drawnAt, placeOnCanvas } from "./hits.js";
import { findIdentity, foundAgain, identityOf } from "./identity.js";
import { bindKeys } from "./keys.js";
import { LaneSource } from "./lanes.js";
import { LaneTree } from "./lanetree.js";
import { itemBeside, laneItemAt, spanPlaces } from "./places.js";
import { bindPointer } from "./pointer.js";
import { incidentsOf } from "./incidentspans.js";
import { drawScene, FLAGS_HIGH, INCIDENTS_HIGH, MAP_HIGH, SCALE_HIGH } from "./scene.js";
import { Surface } from "./surface.js";
import { TreeView } from "./tree.js";
import { Viewport } from "./viewport.js";

class Timeline extends Viewport {
  constructor(model, state) {
    super(state);
    this.tree = new LaneTree();
    this.surface = new Surface();
    this.scroll = 0;
    this.active = "run"; // id of the lane that the arrow keys are at
    this.measure = null; // {begin, end | null, done}
    this.listeners = [];
    this.canvas = make("canvas", {
      tabindex: "0",
      role: "application",
      "aria-label": "Timeline of the run. Press question mark for the keys.",
      "aria-describedby": "timeline-announcement",
    });
    this.cursor = make("div", { class: "tl-cursor", hidden: true });
    this.spacer = make("div");
    this.bar = make("div", { class: "tl-bar", tabindex: "-1", "aria-hidden": "true" }, this.spacer);
    this.tip = make("div", { class: "tip tl-tip", hidden: true });
    this.announcement = make("div", { id: "timeline-announcement", class: "unseen", "aria-live": "polite" });
    this.box = document.getElementById("timeline");
    this.box.replaceChildren(this.canvas, this.cursor, this.bar, this.announcement);
    document.body.append(this.tip);
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.treeView = new TreeView(document.getElementById("tree"), this);
    this.take(model);
    this.say();
    bindPointer(this);
    bindKeys(this);
    this.bar.addEventListener("scroll", () => this.scrollTo(this.bar.scrollTop));
    new ResizeObserver(() => this.ask()).observe(this.box);
    addEventListener("resize", () => this.ask()); // its height depends on the window's
    state.on(["view", "range", "category"], () => this.ask());
    state.on(["selected"], () => this.tell("selected"));
    state.on(["document"], () => this.update(this.model));
    state.on(["model"], () => {
      this.tree.layOut();
      this.ask();
    });
    state.on(["process"], () => this.goToProcess(state.process));
    state.on(["attempt", "tail"], () => this.rebuild());
    state.on(["theme"], () => this.recolor());
  }

  take(model) {
    this.model = model;
    this.source = new LaneSource(model);
    this.rebuild();
  }

  rebuild() {
    const { attempt } = this.state;
    this.source.grow();
    this.tree.build(this.source, this.model.attempts.some((one) => one.number === attempt) ? attempt : null);
    this.seek();
    this.tell("lanes");
  }

  /** New data of the same run: view, selection, pins and what is open stay. */
  update(model) {
    const { known } = this;
    this.take(model);
    if (known) {
      this.state.set({ selected: foundAgain(this.source, known.selected, known.identity) });
      this.state.shared ??= known.identity; // what is gone may come back with a window
    }
    this.tell("model");
  }

  /** Select what the address names, once the data has it: perhaps its window is still to be fetched. */
  seek() {
    const { selected, shared } = this.state;
    const identified = !selected && shared && findIdentity(this.source, shared);
    if (identified) this.state.set({ selected: identified });
  }

  recolor() {
    this.source.refresh();
    this.colors = null;
    this.draw(); // at once: before printing there is no next frame
  }

  /** Call `callback(what)` when one of "selected", "lanes", "model" and "measure" has changed. */
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
    const before = this.known;
    this.known = facts && { selected, identity: identityOf(selected, facts) };
    if (before || facts) this.state.shared = facts ? this.known.identity : null;
    const length = facts && (facts.open ? "open" : `${duration(facts.end - facts.begin)} long`);
    this.announcement.textContent =
      text ?? (facts ? `${facts.title}, at ${duration(facts.begin)}, ${length}` : "Nothing is selected");
  }

  /** What is selected, if the document has it. */
  selected() {
    const { selected } = this.state;
    return isThere(this.source, selected) ? selected : null;
  }

  select(selected) {
    this.state.set({ selected });
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
    this.state.shared = null; // also what the address named and nobody has found
    this.state.remember();
    this.tell("measure");
  }

  // --- measuring ---------------------------------------------------------------------------------------------------

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
    else
      this.measure = {
        begin: Math.min(this.measure.begin, at),
        end: Math.max(this.measure.begin, at),
        done: true,
      };
    this.tell("measure");
  }

  /** While the second point is looked for the interval follows the pointer. */
  hoverMeasure(time) {
    if (!this.measuring() || this.measure.begin === null) return;
    this.measure.end = time;
    this.ask();
  }

  endMeasure() {
    this.measure = null;
    this.tell("measure");
  }

  // --- rows --------------------------------------------------------------------------------------------------------

  get head() {
    const flags = this.model.disruptions.length ? FLAGS_HIGH : 0;
    return MAP_HIGH + 2 * SCALE_HIGH + flags + (incidentsOf(this.model).length ? INCIDENTS_HIGH : 0);
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
    if (index === null) return;
    const row = this.tree.openProcess(index);
    if (!row) return;
    this.tell("lanes");
    this.fitBox();
    this.setActive(row);
    this.say(row.title);
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
  neighbor(selected, by) {
    return itemBeside(this.source, this.tree.ownLanes.concat(this.tree.runLanes), selected, by);
  }

  // --- drawing -----------------------------------------------------------------------------------------------------

  ask() {
    if (this.requested) return;
    this.requested = true;
    requestAnimationFrame(() => {
      this.requested = false;
      this.draw();
    });
  }

  fitBox() {
    const wanted = Math.max(
      220,
      Math.min(this.head + this.tree.pinnedHeight + this.tree.height, Math.max(360, innerHeight * 0.7)),
    );
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

  // --- for tests and for the other modules -------------------------------------------------------------------------

  /** Names of the rows in sight, with their place on the canvas in CSS pixels. */
  lanes() {
    return this.placedRows().map(({ row, top }) => ({
      id: row.id,
      name: row.title,
      y: top,
      height: row.height,
      level: row.level,
      pinned: Boolean(row.pinned),
    }));
  }

  /** What is drawn at a point of the canvas: {area, time, row, item: selected | null}. */
  at(x, y) {
    return drawnAt(this, x, y);
  }

  /** Where a span is on the canvas: {x0, x1, y0, y1, lane} (CSS pixels) of the first row that shows it, or null. */
  spanX(kind, row) {
    return placeOnCanvas(this, { kind, row, process: 0 });
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
