// A run that goes on: figures once a second, and all the rest again when the server has it.
import { Model } from "./data.js";
import { complaint, listen, liveState } from "./connection.js";

// What an event brings, and what the page shows of it at once.
const TOLD_LIVE = ["report", "headline", "verdict", "verdict_source", "live"];

/** Follow the run on a served page; on a page from a file there is nothing to follow. */
export function startLive(model, state) {
  const source = document.getElementById("document")?.dataset.source;
  if (source) new LiveRun(model, state, source);
}

class LiveRun {
  constructor(model, state, source) {
    this.model = model;
    this.state = state;
    this.source = source;
    this.tag = null;
    this.events = listen(source.replace(/document$/, "events"), "run", (told) => this.heard(told), () => this.renew());
    document.getElementById("sections").querySelector('[data-section="runs"]')?.replaceWith(this.back());
  }

  back() {
    const link = document.createElement("a");
    link.href = new URL("../", document.baseURI).href;
    link.textContent = "Runs";
    link.className = "back";
    return link;
  }

  heard(told) {
    const { model } = this;
    // The paces of all processes come with the document only.
    if (model.report.processes) told.report.processes = model.report.processes;
    for (const name of TOLD_LIVE) if (name in told) model[name] = told[name];
    if (told.end) model.end = Math.max(model.end, told.end);
    this.state.tell(["model"]);
    const { reading } = told;
    if (reading) liveState(`reading ${reading.what}: ${reading.done} of ${reading.total}`, "live");
    else if (this.reading) liveState("live", "live");
    this.reading = Boolean(reading);
    if (told.news > model.made_at) this.renew();
  }

  /** Fetch the document again. What is selected and shown stays: rows are only added behind those that are there. */
  async renew() {
    if (this.renewing) return;
    this.renewing = true;
    try {
      const answer = await fetch(this.source);
      if (!answer.ok) throw new Error(`the server says ${answer.status}`);
      const found = answer.headers.get("etag");
      if (found !== this.tag) {
        Object.assign(this.model, Model.read(new Uint8Array(await answer.arrayBuffer())));
        this.tag = found;
        this.state.tell(["model", "document"]);
      }
      complaint("");
    } catch (error) {
      complaint(`What has happened since cannot be read: ${error.message}. Trying again.`);
    } finally {
      this.renewing = false;
    }
  }
}
