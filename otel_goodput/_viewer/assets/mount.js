// Filling a panel anew without the reader losing the place: focus, scrolling and what was unfolded stay.

/** Show a card with this content, or hide it where there is none. */
export function fillCard(id, ...content) {
  const mount = document.getElementById(id);
  const place = placeIn(mount);
  mount.replaceChildren(...content.filter((one) => one));
  const card = document.getElementById(`${id}-card`);
  if (card) card.hidden = !mount.childNodes.length;
  putBack(mount, place);
  return mount;
}

/** What the reader has in hand in a mount. */
function placeIn(mount) {
  const active =
    mount.contains(document.activeElement) && document.activeElement !== mount ? document.activeElement : null;
  return {
    active: active && { key: keyOf(active), number: alike(mount, active).indexOf(active) },
    scrolled: [...mount.querySelectorAll(".scroll")].map((one) => one.scrollTop),
    open: [...mount.querySelectorAll("details")].map((one) => one.open),
  };
}

function putBack(mount, { active, scrolled, open }) {
  mount.querySelectorAll("details").forEach((one, at) => {
    if (at in open) one.open = open[at];
  });
  mount.querySelectorAll(".scroll").forEach((one, at) => {
    if (scrolled[at]) one.scrollTop = scrolled[at];
  });
  if (!active) return;
  const same = [...mount.querySelectorAll("button, input, select, summary, canvas, a")].filter(
    (one) => keyOf(one) === active.key,
  );
  (same[active.number] || same[0])?.focus({ preventScroll: true });
}

/** What makes a control the same one after it was made anew. */
function keyOf(control) {
  const words = control.matches("input, select, canvas") ? "" : control.textContent;
  const { bin = "", category = "", name = "" } = control.dataset;
  return [control.tagName, control.id, bin, category, name, words || control.getAttribute("aria-label")].join("\n");
}

function alike(mount, control) {
  return [...mount.querySelectorAll(control.tagName)].filter((one) => keyOf(one) === keyOf(control));
}
