"use strict";

// Everything a person, a model or a corpus wrote enters the page as text nodes, never as markup.

const byId = (id) => document.getElementById(id);
const ENDS = {
  turns: "It ended without an answer: no searches or attempts were left.",
  length: "It ended without an answer: there was no room to write more.",
};
const CLAIM_TAGS = /<\/?(?:snippet|cite)\b[^<>]*>/gi;
const TOOL_OUTPUT = /<tool_output\b[^<>]*>[^]*?<\/tool_output>/gi;
const HIDE_MS = 150; // time for a pointer to travel from a citation to its card

/** A new element: `element("b", { class: "wrong" }, "text", child)`. */
function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** A text in pieces, with every place where `words` stand marked. */
function marked(text, words) {
  const sought = words.trim().toLowerCase();
  const pieces = [];
  let from = 0;
  for (let at; sought && (at = text.toLowerCase().indexOf(sought, from)) >= 0; from = at + sought.length) {
    pieces.push(text.slice(from, at), element("mark", {}, text.slice(at, at + sought.length)));
  }
  return [...pieces, text.slice(from)];
}

/** A refiner's answer without its tags: what they name stands below it. */
const claims = (answer) => answer.replace(CLAIM_TAGS, "");

/** One question and all that comes of it. */
class Exchange {
  constructor(question) {
    this.passages = new Map(); // by id: a passage and where it stands on the page
    this.steps = element("ol", { class: "steps" });
    this.answer = element("div", { class: "answer", "aria-live": "polite" });
    this.node = element("article", {}, element("h2", {}, question.replace(TOOL_OUTPUT, "").trim()), this.steps, this.answer);
    this.words = "";
  }

  /** A chunk of the stream. */
  hear(chunk) {
    const delta = chunk.choices[0]?.delta ?? {};
    if (delta.reasoning_content) this.think(delta.reasoning_content);
    if (delta.content) this.conclude(delta.content);
    const told = chunk.sleuth ?? {};
    if (told.kind === "given") this.show(this.open("given"), told.passages);
    if (told.kind === "query") this.open("search").query.append(told.text);
    if (told.kind === "search") this.find(told);
    if (told.kind === "draft") this.draft(told.text);
    if (told.kind === "misunderstood") this.void();
    if (told.kind === "end") this.end(told);
  }

  think(text) {
    if (this.step?.kind !== "thought" && !text.trim()) return;
    const step = this.open("thought");
    step.words += text;
    for (const place of [step.text, step.glimpse]) place.textContent = step.words.trim();
  }

  find({ query, passages }) {
    const step = this.open("search");
    step.query.textContent = query;
    step.verb.textContent = "Searched";
    this.show(step, passages);
  }

  /** Passages, folded under a step that ends with them. */
  show(step, passages) {
    if (!passages.length) step.list.append(element("li", { class: "nothing" }, "nothing was shown"));
    for (const passage of passages) {
      const text = element("p", {}, passage.text);
      const place = element("details", {}, element("summary", {}, passage.title || passage.id), text);
      step.list.append(element("li", { title: `passage ${passage.id}` }, place));
      if (!this.passages.has(passage.id)) this.passages.set(passage.id, { passage, text, place });
    }
    this.rest();
  }

  draft(text) {
    this.answer.classList.add("draft");
    this.words += text;
    this.answer.replaceChildren(element("p", { class: "words" }, claims(this.words).trim()));
  }

  /** What was being written came to nothing: the words stay, as a thought that led nowhere. */
  void() {
    const words = this.words || (this.step?.kind === "search" ? this.step.query.textContent : "");
    if (this.step?.kind === "search") this.step.node.remove();
    this.rest();
    this.answer.replaceChildren();
    this.words = "";
    if (words.trim()) this.think(words);
    this.rest();
  }

  conclude(text) {
    this.words = claims(text);
    this.answer.classList.remove("draft");
    this.answer.replaceChildren(element("p", { class: "words" }, this.words));
  }

  end({ stop, citations }) {
    this.rest();
    if (stop !== "answered") {
      this.answer.replaceChildren();
      return this.tell(ENDS[stop] ?? "It ended without an answer.", "missed");
    }
    const chips = citations.map(({ id }) => this.cite(this.passages.get(id)));
    if (chips.length) this.answer.append(element("p", { class: "cites" }, "from ", ...chips));
    else this.tell("No passage that was shown holds these words.", "missed");
  }

  /** A citation: its passage is shown while the pointer or the focus is on it, and after a tap. */
  cite({ passage, text, place }) {
    text.replaceChildren(...marked(passage.text, this.words));
    place.closest("li").classList.add("cited");
    const chip = element("button", { type: "button", class: "cite", "aria-describedby": "card" }, passage.title || passage.id);
    const show = () => card.show(chip, passage, this.words);
    chip.addEventListener("pointerenter", ({ pointerType }) => pointerType === "mouse" && show());
    chip.addEventListener("pointerleave", ({ pointerType }) => pointerType === "mouse" && card.leave());
    chip.addEventListener("focus", show);
    chip.addEventListener("blur", () => card.hide());
    chip.addEventListener("click", show);
    return chip;
  }

  /** The step of this kind that is being written, or a new one. */
  open(kind) {
    if (this.step?.kind === kind) return this.step;
    this.rest();
    this.step = kind === "thought" ? thoughtStep() : searchStep(kind);
    this.steps.append(this.step.node);
    return this.step;
  }

  /** Nothing is being written any more. */
  rest() {
    this.step?.node.classList.remove("open");
    this.step = null;
  }

  tell(line, kind) {
    this.rest();
    this.answer.append(element("p", { class: kind }, line));
  }
}

function thoughtStep() {
  const glimpse = element("span", { class: "glimpse" });
  const text = element("p", {});
  const node = element("li", { class: "thought open" });
  node.append(element("details", {}, element("summary", {}, "Thought ", glimpse), text));
  return { kind: "thought", node, glimpse, text, words: "" };
}

/** A search, or what was given instead of one. */
function searchStep(kind) {
  const verb = element("span", { class: "verb" }, kind === "given" ? "Given" : "Searching");
  const query = element("q", {});
  const list = element("ul", { class: "passages" });
  const told = kind === "given" ? [verb] : [verb, " ", query];
  const node = element("li", { class: "search open" }, element("p", {}, ...told), list);
  return { kind, node, verb, query, list };
}

/** The one card that shows a cited passage. */
const card = {
  node: byId("card"),
  show(chip, passage, words) {
    clearTimeout(this.timer);
    this.node.replaceChildren(
      element("h3", {}, passage.title || passage.id),
      element("p", {}, ...marked(passage.text, words)),
      element("p", { class: "id" }, `passage ${passage.id}`),
    );
    this.node.hidden = false;
    const at = chip.getBoundingClientRect();
    const size = this.node.getBoundingClientRect();
    const below = at.bottom + 6 + size.height < innerHeight;
    this.node.style.left = `${Math.max(8, Math.min(at.left, innerWidth - size.width - 8))}px`;
    this.node.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - 6 - size.height)}px`;
  },
  leave() {
    this.timer = setTimeout(() => this.hide(), HIDE_MS);
  },
  hide() {
    this.node.hidden = true;
  },
};
card.node.addEventListener("mouseenter", () => clearTimeout(card.timer));
card.node.addEventListener("mouseleave", () => card.leave());
addEventListener("keydown", (event) => event.key === "Escape" && card.hide());
addEventListener("pointerdown", (event) => event.target.closest("#card, .cite") || card.hide());

let leaving = null; // stops the question that is being answered

async function answer(question) {
  const exchange = new Exchange(question);
  byId("hint")?.remove();
  byId("exchanges").append(exchange.node);
  leaving = new AbortController();
  byId("send").textContent = "Stop";
  exchange.node.scrollIntoView({ block: "start" });
  try {
    for await (const chunk of ask(question, leaving.signal)) {
      const follows = innerHeight + scrollY >= document.body.scrollHeight - 80;
      exchange.hear(chunk);
      if (follows) scrollTo(0, document.body.scrollHeight);
    }
  } catch (error) {
    exchange.tell(error.name === "AbortError" ? "Stopped." : error.message, "problem");
  }
  leaving = null;
  byId("send").textContent = "Ask";
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (leaving) return leaving.abort();
  const question = byId("question").value.trim();
  if (!question) return;
  byId("question").value = "";
  fit();
  answer(question);
});

byId("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!leaving) byId("form").requestSubmit();
});

/** The question's box is as high as the question. */
function fit() {
  const box = byId("question");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}
byId("question").addEventListener("input", fit);

servedModel().then(({ id, sleuth }) => {
  const facts = [id, `${sleuth.dialect} dialect`, `${sleuth.context.toLocaleString("en")} tokens of context`];
  if (sleuth.passages !== undefined) facts.push(`${sleuth.passages.toLocaleString("en")} passages`);
  byId("model").textContent = facts.join(" · ");
});
