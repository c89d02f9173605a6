// Making elements. Foreign text goes in as text only, so names with markup stay names.

/**
 * Make an element. `options`: `class`, `text`, `title`, `data` (dataset), `style` (properties), `on` (listeners);
 * anything else is an attribute (true: without a value; false, null: none).
 */
export function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "style") for (const [key, content] of Object.entries(value)) element.style.setProperty(key, content);
    else if (name === "on")
      for (const [event, callback] of Object.entries(value)) element.addEventListener(event, callback);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function button(text, callback, options = {}) {
  return make("button", { type: "button", text, ...options, on: { click: callback, ...options.on } });
}

/** Buttons of which one is pressed. `choices`: [value, text] each. */
export function choice(label, choices, chosen, callback) {
  const buttons = choices.map(([value, text]) =>
    button(text, () => callback(value), {
      "aria-pressed": String(value === chosen),
      data: { choice: String(value) },
    }),
  );
  return make("span", { class: "choice", role: "group", "aria-label": label }, ...buttons);
}

/** A list to choose from. `choices`: [value, text] each; values are text. */
export function select(label, choices, chosen, callback) {
  const options = choices.map(([value, text]) => make("option", { value, text, selected: value === chosen }));
  return make("select", { "aria-label": label, on: { change: (event) => callback(event.target.value) } }, ...options);
}

/** Heading of a panel, with tools at its right. */
export function head(title, note, ...tools) {
  return make(
    "div",
    { class: "card-head" },
    make("h2", { text: title }),
    note ? make("span", { class: "soft", text: note }) : null,
    tools.length ? make("span", { class: "tools" }, ...tools) : null,
  );
}

/** A table. `columns`: [title, "number" | "text"] each; `rows` are elements, or lists of cells (text or element). */
export function table(caption, columns, rows, options = {}) {
  const titles = columns.map(([title, kind]) => make("th", { text: title, scope: "col", class: kind }));
  const body = rows.map((row) => (row instanceof Element ? row : tableRow(columns, row)));
  return make(
    "table",
    options,
    make("caption", { class: "unseen", text: caption }),
    make("thead", {}, make("tr", {}, ...titles)),
    make("tbody", {}, ...body),
  );
}

export function tableRow(columns, cells, options = {}) {
  const made = cells.map((cell, at) =>
    cell instanceof Element
      ? make("td", { class: columns[at][1] }, cell)
      : make("td", { class: columns[at][1], text: cell }),
  );
  return make("tr", options, ...made);
}

/** A small square in the colour and hatching of a category. */
export function swatch(background) {
  return make("span", { class: "swatch", "aria-hidden": "true", style: { background } });
}

/** Scroll to an element, in view below the sticky header, and say where we are to who reads by keyboard. */
export function goTo(id) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  // It may be there only when what has just changed is drawn.
  if (!document.getElementById(id)) drawWaiting();
  document.getElementById(id)?.scrollIntoView({ behavior: calm ? "auto" : "smooth", block: "start" });
}

// --- drawing when something has changed ---------------------------------------------------------------------------

const waiting = new Set();
const FRAME_BUDGET_MS = 12; // of drawing in a frame; what is left waits for the next, so that dragging stays smooth
let requested = false;

/** Draw now, and again (in one of the next frames) after one of the fields `names` of the state has changed. */
export function watch(state, names, draw) {
  draw();
  state.on(names, () => {
    waiting.add(draw);
    askForFrame();
  });
}

function askForFrame() {
  if (requested) return;
  requested = true;
  requestAnimationFrame(() => {
    requested = false;
    drawUntil(performance.now() + FRAME_BUDGET_MS);
    if (waiting.size) askForFrame();
  });
}

function drawUntil(end) {
  for (const draw of waiting) {
    waiting.delete(draw);
    draw();
    if (performance.now() > end) return;
  }
}

/** Whether nothing waits to be drawn. */
export function drawn() {
  return !waiting.size;
}

/** Draw all that waits at once, as before printing. */
export function drawWaiting() {
  drawUntil(Infinity);
}
