// A run that goes on: figures once a second, and all the rest again when the server has it.
import { Model, readPart, unzip } from "./data.js";
import { complaint, listen, liveState } from "./connection.js";
import { leadersFigures, showSubject } from "./subject.js";
import { LiveSpans } from "./tail.js";

// What an event brings, and what the page shows of it at once.
const LIVE_MEMBERS = ["report", "headline", "verdict", "verdict_source", "of_ranks", "incident_texts", "own_texts", "own_latest", "live"];

/** New single spans; started before what draws them. */
export function startLiveSpans(model, state) {
  return new LiveSpans(model, state);
}

/** Follow the run on a served page; on a page from a file there is nothing to follow. */
export function startLive(model, state, spans) {
  const source = document.getElementById("document")?.dataset.source;
  if (source) new LiveRun(model, state, source, spans);
}

class LiveRun {
  constructor(model, state, source, spans) {
    Object.assign(this, { model, state, source, spans, tag: null, reached: model.end, queue: Promise.resolve() });
    const callbacks = { run: (news) => this.update(news), tail: (news) => this.addSpans(news) };
    this.events = listen(source.replace(/document$/, "events"), callbacks, () => this.renew());
    document.getElementById("sections").querySelector('[data-section="runs"]')?.replaceWith(this.back());
  }

  back() {
    const link = document.createElement("a");
    link.href = new URL("../", document.baseURI).href;
    link.textContent = "Runs";
    link.className = "back";
    return link;
  }

  update(news) {
    const { model } = this;
    // The paces of all processes come with the document only.
    if (news.report && model.report.processes) news.report.processes = model.report.processes;
    if (news.leader) Object.assign(leadersFigures(model), news.leader);
    for (const name of LIVE_MEMBERS) if (name in news) model[name] = news[name];
    if (news.end) {
      model.figures_at = news.end;
      this.goOn(news.end);
    }
    this.state.tell(["model"]);
    const { reading } = news;
    if (reading) liveState(`reading ${reading.what}: ${reading.done} of ${reading.total}`, "live");
    else if (this.reading) liveState("live", "live");
    this.reading = Boolean(reading);
    if (news.news > model.made_at) this.renew();
  }

  /** A view that stands at the end of the run stays there; one that was moved away stays where it is. */
  goOn(end) {
    const { model, state, reached } = this;
    const { view } = state;
    model.end = Math.max(model.end, end);
    const by = model.end - reached;
    this.reached = model.end;
    if (view && by > 0 && view[1] >= reached) state.set({ view: [view[0] + by, view[1] + by] });
  }

  /** One after the other, for they are unpacked beside. */
  addSpans(news) {
    const packed = Uint8Array.from(atob(news), (letter) => letter.charCodeAt(0));
    const take = (bytes) => {
      const changed = this.spans.take(readPart(bytes));
      if (changed) this.state.tell([changed]);
    };
    this.queue = this.queue
      .then(() => unzip(packed))
      .then(take)
      .catch((error) => console.error(error)); // the next document has them
  }

  /** Fetch the document again. What is selected and shown stays: rows are only added behind those that are there. */
  async renew() {
    if (this.renewing) return;
    this.renewing = true;
    try {
      const answer = await fetch(this.source);
      if (!answer.ok) throw new Error(`the server says ${answer.status}`);
      const tag = answer.headers.get("etag");
      if (tag !== this.tag) {
        Object.assign(this.model, Model.read(new Uint8Array(await answer.arrayBuffer())));
        showSubject(this.model, this.state);
        this.tag = tag;
        this.state.tell(["model", "document"]);
      }
      complaint("");
    } catch (error) {
      complaint(`New data cannot be read: ${error.message}. Retrying.`);
    } finally {
      this.renewing = false;
    }
  }
}
