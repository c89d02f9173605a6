// The tree at the left of the timeline: names of the lanes in sight, to open, close and pin them.
import { make, select } from "./elements.js";
import { PROCESS_ORDERS } from "./lanetree.js";

/** Draws the rows that the timeline shows, and no others: 512 processes are as fast as one. */
export class TreeView {
  constructor(box, timeline) {
    this.timeline = timeline;
    this.box = box;
    this.drawn = "";
    this.head = make("div", { class: "tree-head" });
    this.body = make("div", {
      class: "tree-rows",
      role: "tree",
      "aria-label": "Lanes of the timeline",
      tabindex: "0",
    });
    box.replaceChildren(this.head, this.body);
    this.body.addEventListener("click", (event) => this.clicked(event));
    this.body.addEventListener("dblclick", (event) => this.rowOf(event) && this.toggle(this.rowOf(event)));
    this.body.addEventListener("focus", () => timeline.ask());
    this.body.addEventListener("blur", () => timeline.ask());
    box.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        timeline.scrollTo(timeline.scroll + event.deltaY * (event.deltaMode === 1 ? 24 : 1));
      },
      { passive: false },
    );
    this.drawHead();
  }

  drawHead() {
    const { timeline } = this;
    const order = select(
      "Order of the processes",
      PROCESS_ORDERS.map(([name, words]) => [name, `processes ${words}`]),
      timeline.tree.order,
      (chosen) => {
        timeline.tree.order = chosen;
        timeline.tree.layOut();
        timeline.tell("lanes");
      },
    );
    order.id = "process-order";
    this.head.replaceChildren(order);
  }

  rowOf(event) {
    const element = event.target.closest("[data-row]");
    if (!element) return null;
    const { tree } = this.timeline;
    return (
      tree.rows.find((row) => row.id === element.dataset.row) ||
      tree.pinned.find((row) => row.id === element.dataset.row)
    );
  }

  toggle(row) {
    this.timeline.tree.toggle(row);
    this.timeline.tell("lanes");
  }

  clicked(event) {
    const row = this.rowOf(event);
    if (!row) return;
    this.timeline.setActive(row);
    if (event.target.closest(".tree-pin")) this.timeline.pin(row);
    else if (event.target.closest(".tree-caret") && row.expandable) this.toggle(row);
  }

  /** Called with each frame; touches the page only if other rows are in sight. */
  draw() {
    const { timeline } = this;
    this.head.hidden = false;
    this.box.style.height = `${timeline.height}px`;
    this.head.style.height = `${timeline.head}px`;
    const placed = timeline.placedRows();
    const what = placed.map(
      ({ row, top }) => `${row.id} ${top} ${row.expanded} ${row.isPinned} ${row.tag} ${row.level} ${row.problem}`,
    );
    const key = `${what.join("\n")} ${timeline.active} ${timeline.height} ${timeline.head}`;
    if (key === this.drawn) return;
    this.drawn = key;
    this.body.style.height = `${Math.max(0, timeline.height - timeline.head)}px`;
    const under = placed.filter(({ row }) => !row.pinned).map((one) => this.element(one, timeline.bodyTop));
    const scrolled = make("div", { class: "tree-scrolled", role: "presentation" }, ...under);
    scrolled.style.top = `${timeline.tree.pinnedHeight}px`;
    const pinned = placed.filter(({ row }) => row.pinned).map((one) => this.element(one, timeline.head));
    this.body.replaceChildren(scrolled, ...pinned);
    const active = this.body.querySelector(".tree-row.active");
    if (active) this.body.setAttribute("aria-activedescendant", active.id);
    else this.body.removeAttribute("aria-activedescendant");
  }

  element({ row, top }, from) {
    const open = row.expandable ? String(row.expanded) : null;
    const active = row.id === this.timeline.active && !row.pinned;
    const pinned = row.isPinned || row.pinned;
    const title = [row.title, row.hint].filter(Boolean).join(": ");
    const element = make(
      "div",
      {
        class: `tree-row${active ? " active" : ""}${row.lane ? "" : " group"}${row.pinned ? " pinned" : ""}`,
        role: "treeitem",
        id: `row-${row.pinned ? "pinned-" : ""}${row.id}`,
        "aria-level": row.level,
        "aria-expanded": open,
        "aria-selected": String(active),
        title,
        data: { row: row.id },
      },
      make("span", {
        class: "tree-caret",
        "aria-hidden": "true",
        text: row.expandable ? (row.expanded ? "▾" : "▸") : "",
      }),
      make("span", { class: "tree-title", text: row.title }),
      make("span", { class: `tree-tag${row.problem ? " problem" : ""}`, text: row.tag }),
      row.lane
        ? make("button", {
            type: "button",
            class: "tree-pin",
            tabindex: "-1",
            "aria-pressed": String(Boolean(pinned)),
            "aria-label": pinned ? "Unpin" : "Pin to the top",
            text: "⤒",
          })
        : null,
    );
    element.style.top = `${top - from}px`;
    element.style.height = `${row.height}px`;
    element.style.paddingLeft = `${6 + (row.level - 1) * 12}px`;
    return element;
  }
}
