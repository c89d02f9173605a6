// The interval of time that the timeline shows, and how it is moved. The state holds it, so that an address does too.

const NARROWEST = 100; // ns that a view shows at least
const MARGIN = 0.01; // of the run, shown beyond its ends

/** Needs `model` (its end) and `width` (CSS pixels) of who extends it. */
export class Viewport {
  constructor(state) {
    this.state = state;
  }

  get whole() {
    const margin = Math.max(1000, this.model.end * MARGIN);
    return [-margin, Math.max(1000, this.model.end) + margin];
  }

  /** What is shown. An address may come from anybody, so a view that is not of this run is the whole of it. */
  view() {
    const [low, high] = this.whole;
    const [begin, end] = this.state.view || [low, high];
    const shown = [Math.max(low, begin), Math.min(high, end)];
    return shown[1] - shown[0] >= NARROWEST * 0.99 ? shown : [low, high];
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

  /** Show an interval with some room around it. */
  fit(begin, end) {
    const room = Math.max((end - begin) * 0.25, 500);
    this.setView(begin - room, end + room);
  }

  timeAt(x) {
    const [begin, end] = this.view();
    return begin + ((end - begin) * x) / this.width;
  }
}
