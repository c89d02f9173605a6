// Light or dark: as the system has it, unless the reader chose; always light on paper.

import { drawWaiting } from "./elements.js";

const THEME_KEY = "otel-goodput-theme";

/** What the reader chose: "light", "dark" or "" (as the system has it). Pages from a disk may not remember it. */
export function chosenTheme() {
  try {
    return localStorage.getItem(THEME_KEY) || "";
  } catch {
    return "";
  }
}

export function chooseTheme(name, state) {
  try {
    if (name) localStorage.setItem(THEME_KEY, name);
    else localStorage.removeItem(THEME_KEY);
  } catch {
    // it holds until the page is closed
  }
  showTheme(name || systemTheme(), state);
}

function systemTheme() {
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Canvases are drawn in colours of the theme, so whoever draws listens to "theme". */
function showTheme(name, state) {
  if (document.documentElement.dataset.theme === name) return;
  document.documentElement.dataset.theme = name;
  state.tell(["theme"]);
}

export function startTheme(state) {
  showTheme(chosenTheme() || systemTheme(), state);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    showTheme(chosenTheme() || systemTheme(), state),
  );
  document.getElementById("theme").addEventListener("click", () => {
    chooseTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark", state);
  });
  // On paper: light colours, and everything as wide as a page, so that charts are drawn in that size.
  let before = "";
  addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    document.documentElement.classList.add("paper");
    showTheme("light", state);
    state.tell(["theme"]);
    drawWaiting();
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("paper");
    showTheme(before, state);
    state.tell(["theme"]);
  });
}
