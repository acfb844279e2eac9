"use strict";
// What the page is written with. Rule: text reaches the page through `el` and `write` alone, as text nodes, and with
// every character that could reorder or hide other text made visible.

const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;

/** `text` with control characters and those that change the direction of text shown as ⟨U+202E⟩. */
function visible(text) {
  return String(text ?? "")
    .replace(/\r\n?/g, "\n")
    .replace(UNSEEN, (character) => `⟨U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

function byId(id) {
  return document.getElementById(id);
}

/** Replace what `node` holds by `text`. */
function write(node, text) {
  node.textContent = visible(text);
  return node;
}

/** An element. `settings`: class, text, and any attribute; `on` is a listener of click. Children that are null are left out. */
function el(tag, settings = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(settings)) {
    if (name === "text") write(node, value);
    else if (name === "on") node.addEventListener("click", value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, visible(value));
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** Told to those who listen instead of looking. */
function announce(text) {
  write(byId("announcer"), text);
}

/** Focus `node` without scrolling away from it, and bring it into view. */
function goTo(node) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  node.focus({ preventScroll: true });
  node.scrollIntoView({ block: "center", behavior: calm ? "auto" : "smooth" });
}

function milliseconds(value) {
  return value >= 1000 ? `${(value / 1000).toFixed(1)} 秒` : `${value < 10 ? value.toFixed(1) : Math.round(value)} 毫秒`;
}
