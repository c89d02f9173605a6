// The mouse on the timeline: wheel zooms at the pointer, drag pans, shift-drag (or a drag on the scale) selects a
// range, a click selects, a double click zooms to a span, and what is under the pointer is shown.
import { scaleText } from "./axis.js";
import { factsOf } from "./facts.js";
import { moment } from "./format.js";
import { make } from "./elements.js";

const STILL = 4; // pixels that a click may move

export function bindPointer(timeline) {
  const { canvas } = timeline;
  let drag = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const unit = event.deltaMode === 1 ? 24 : event.deltaMode === 2 ? 400 : 1;
      if (event.shiftKey) timeline.scrollTo(timeline.scroll + (event.deltaY || event.deltaX) * unit);
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) timeline.pan((event.deltaX * unit) / timeline.width);
      else
        timeline.zoom(
          Math.exp(Math.max(-0.6, Math.min(0.6, event.deltaY * unit * 0.002))),
          timeline.timeAt(place(event)[0]),
        );
      hideTip(timeline);
    },
    { passive: false },
  );

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [x, y] = place(event);
    const { area } = timeline.at(x, y);
    const ranging = event.shiftKey || area === "axis";
    drag = {
      x,
      y,
      area,
      ranging,
      view: timeline.view(),
      scroll: timeline.scroll,
      time: timeline.timeAt(x),
      moved: false,
    };
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
    if (area === "map") moveMap(timeline, x);
  });

  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (!drag) {
      hover(timeline, x, y, event);
      return;
    }
    if (Math.abs(x - drag.x) + Math.abs(y - drag.y) > STILL) drag.moved = true;
    if (!drag.moved) return;
    hideTip(timeline);
    if (drag.area === "map") {
      moveMap(timeline, x);
    } else if (drag.ranging) {
      const ends = [drag.time, timeline.timeAt(x)].map((time) =>
        Math.round(Math.min(timeline.model.end, Math.max(0, time))),
      );
      ends.sort((one, other) => one - other);
      if (ends[0] < ends[1]) timeline.state.set({ range: ends });
    } else {
      const shift = ((drag.x - x) / timeline.width) * (drag.view[1] - drag.view[0]);
      timeline.setView(drag.view[0] + shift, drag.view[1] + shift);
      timeline.scrollTo(drag.scroll + drag.y - y);
    }
  });

  canvas.addEventListener("pointerup", (event) => {
    const ended = drag;
    drag = null;
    if (!ended || ended.moved || ended.area === "map") return;
    const [x, y] = place(event);
    const hit = timeline.at(x, y);
    if (timeline.measuring()) {
      timeline.measurePoint(hit.time);
      return;
    }
    if (hit.row) timeline.setActive(hit.row);
    if (hit.area !== "axis") timeline.select(hit.item);
  });

  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("dblclick", (event) => {
    const { item } = timeline.at(...place(event));
    if (!item) return;
    const facts = factsOf(timeline.source, item);
    timeline.fit(facts.begin, facts.end);
  });
  canvas.addEventListener("pointerleave", () => hideTip(timeline));
  canvas.addEventListener("focus", () => timeline.ask());
  canvas.addEventListener("blur", () => timeline.ask());
}

function moveMap(timeline, x) {
  const [begin, end] = timeline.view();
  const [low, high] = timeline.whole;
  const middle = low + ((high - low) * x) / timeline.width;
  if (end - begin < high - low) timeline.setView(middle - (end - begin) / 2, middle + (end - begin) / 2);
}

function hideTip(timeline) {
  timeline.tip.hidden = true;
  timeline.cursor.hidden = true;
}

function hover(timeline, x, y, event) {
  const hit = timeline.at(x, y);
  const { tip, cursor, model } = timeline;
  cursor.hidden = false;
  cursor.style.transform = `translateX(${Math.round(x)}px)`;
  timeline.hoverMeasure(hit.time);
  timeline.canvas.style.cursor =
    timeline.measuring() || hit.area === "axis" ? "crosshair" : hit.item ? "pointer" : "default";
  const lines = hit.item ? tipOf(timeline, hit) : [];
  const time = Math.min(model.end, Math.max(0, hit.time));
  lines.push(make("div", { class: "soft", text: `${scaleText(time, 1e6)} · ${moment(model.origin_ms + time / 1e6)}` }));
  tip.replaceChildren(...lines);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - box.width - 12 : event.clientX + 16;
  const top = event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18;
  tip.style.left = `${Math.max(4, left) + scrollX}px`;
  tip.style.top = `${Math.max(4, top) + scrollY}px`;
}

const TIP_ROWS = new Set(["begin", "end", "clock", "parents", "device begin", "device end", "process"]);

function tipOf(timeline, { item, row }) {
  const facts = factsOf(timeline.source, item);
  const where = row ? row.title : "";
  const lines = [
    make(
      "div",
      {},
      make("span", { class: "strong", text: shortened(facts.title) }),
      make("span", { class: "soft", text: shortened(where, 30) }),
    ),
  ];
  const summed = item.kind === "bin" || item.kind === "steps";
  for (const [label, text] of facts.rows.filter(([name]) => !TIP_ROWS.has(name)).slice(0, 7)) {
    lines.push(
      make(
        "div",
        {},
        make("span", { class: "soft", text: shortened(label, 34) }),
        make("span", { text: shortened(text.replace(/ \([^)]*\)$/, "")) }),
      ),
    );
  }
  if (facts.flags.length) lines.push(make("div", { text: facts.flags.join(", ") }));
  if (summed) lines.push(make("div", { class: "soft", text: "summed up: this page does not hold the single spans" }));
  return lines;
}

function shortened(text, most = 64) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
