"use strict";

// Everything a model or a corpus wrote enters the page as text nodes, never as markup.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data")?.textContent ?? "null");

/** The text with `\u202e` for each mark that embeds or overrides a direction. A browser takes one that is left open, or an
 *  end that is too many, past the end of its element. */
function visible(text) {
  return text.replace(/[\u202a-\u202e\u2066-\u2069]/g, (mark) => "\\u" + mark.charCodeAt(0).toString(16));
}

/** A new element: `element("b", {class: "wrong"}, "text", child)`; null children are skipped. */
function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, String(value));
  }
  const shown = children.flat(Infinity).filter((child) => child !== null);
  node.append(...shown.map((child) => (child instanceof Node ? child : visible(String(child)))));
  return node;
}

/** A number as the tables have it, with at most three decimals; a missing one says so. */
function readable(value) {
  if (value === null || value === undefined) return "missing";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(+value.toFixed(3));
  return text.replace(/^-/, "\u2212").replace(/e-/, "e\u2212");
}

function signed(value) {
  return value > 0 ? "+" + readable(value) : readable(value);
}

/** The state of a browser lives in the address: `#rollout=100,0,3` or `#question=q7`. */
function remember(name, value) {
  history.replaceState(null, "", "#" + name + "=" + encodeURIComponent(value).replaceAll("%2C", ","));
}

function remembered(name) {
  const prefix = "#" + name + "=";
  return location.hash.startsWith(prefix) ? decodeURIComponent(location.hash.slice(prefix.length)) : null;
}

function listButton(text, scores, onclick, current = false) {
  const attributes = { type: "button", "aria-current": current, onclick };
  return element("button", attributes, text, element("span", { class: "scores" }, scores));
}

/** Arrow keys move through the buttons of a list. */
function walkWithArrows(list) {
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = [...list.querySelectorAll("button")];
    const next = step && buttons[buttons.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.click();
  });
}

/** Full for the best score, hollow for none, crossed for a missing one. */
function scoreDot(score) {
  const name = score === null ? "missing" : score > 0 ? "good" : "bad";
  return element("span", { class: "dot " + name, title: score === null ? "missing" : "score " + readable(score) });
}
