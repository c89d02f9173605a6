// The one state that all panels share, and its form in the address: who opens a shared link sees the same.

const DEFAULTS = {
  range: null, // [t0, t1] ns that all panels tell about; null: the whole run
  view: null, // [t0, t1] ns that the timeline shows; null: the whole run
  attempt: null, // number; null: all
  process: null, // index of the process that the reader chose; null: none, the page tells about the job
  selected: null, // {kind: one of KINDS, row, process}; in the address as its identity, see `shared`
  category: null, // index of a category that is emphasised
  charts: [], // own charts: [{of: phase, name, background}]
  query: "", // of the search
};

class State {
  constructor() {
    Object.assign(this, structuredClone(DEFAULTS));
    this.listeners = [];
    this.shared = null; // {kind, process, begin, title} of what is selected, or of what the address wants selected
  }

  /** Change some fields and tell who listens to one of them. */
  set(changes) {
    const changed = Object.keys(changes).filter((name) => JSON.stringify(this[name]) !== JSON.stringify(changes[name]));
    if (!changed.length) return;
    for (const name of changed) this[name] = changes[name];
    this.tell(changed);
    this.remember();
  }

  /**
   * Tell who listens to one of `names`. Beside the fields there are "model" (new
   * figures of the report), "document" (new data of everything else), "tail" (spans of the last second, behind those
   * that were there), "theme" (new colours) and "clock".
   */
  tell(names) {
    for (const listener of [...this.listeners]) {
      if (listener.names.some((name) => names.includes(name))) listener.callback(this);
    }
  }

  /** Call `callback(state)` whenever one of the fields `names` has changed. */
  on(names, callback) {
    this.listeners.push({ names, callback });
  }

  toHash() {
    const parts = [];
    for (const [name, usual] of Object.entries(DEFAULTS)) {
      const value = name === "selected" ? this.shared : this[name];
      if (JSON.stringify(value) !== JSON.stringify(usual)) {
        parts.push(`${name}=${encodeURIComponent(JSON.stringify(value))}`);
      }
    }
    return parts.join("&");
  }

  /** Take the fields from an address. Who wrote it may be anybody: what is not of the right form is left out. */
  fromHash(hash) {
    const values = structuredClone(DEFAULTS);
    for (const part of hash.replace(/^#/, "").split("&")) {
      const [name, text] = part.split("=", 2);
      if (!Object.hasOwn(DEFAULTS, name) || text === undefined) continue;
      try {
        const value = JSON.parse(decodeURIComponent(text));
        if (FORMS[name](value)) values[name] = value;
      } catch {
        // not ours
      }
    }
    // Numbers of rows are those of one page: the timeline finds what is named in the data that it has.
    this.shared = values.selected;
    this.set({ ...values, selected: null });
  }

  /** Keep the address up to date, a few times a second at most: browsers refuse more. */
  remember() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      history.replaceState(null, "", `#${this.toHash()}`);
    }, 250);
  }
}

const number = (value) => typeof value === "number" && Number.isFinite(value);
const pair = (value) => Array.isArray(value) && value.length === 2 && value.every(number) && value[0] < value[1];
const span = (value) => value === null || pair(value);
const selection = (value) =>
  typeof value === "object" &&
  KINDS.includes(value.kind) &&
  Number.isInteger(value.process) &&
  number(value.begin) &&
  typeof value.title === "string";
const chart = (value) => Boolean(value) && typeof value.of === "string" && typeof value.name === "string";
const KINDS = ["step", "phase", "disruption", "save", "bin", "steps", "owner", "attempt", "notice", "slice"];
const FORMS = {
  range: span,
  view: span,
  attempt: (value) => value === null || Number.isInteger(value),
  process: (value) => value === null || Number.isInteger(value),
  selected: (value) => value === null || selection(value),
  category: (value) => value === null || Number.isInteger(value),
  charts: (value) => Array.isArray(value) && value.length <= 20 && value.every(chart),
  query: (value) => typeof value === "string" && value.length <= 1000,
};

export const state = new State();
