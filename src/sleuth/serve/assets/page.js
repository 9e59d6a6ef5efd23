const ENDS = {
  turns: "It ended without an answer: no searches or attempts were left.",
  length: "It ended without an answer: the token limit was reached.",
};
const CLAIM_TAGS = /<\/?(?:snippet|cite)\b[^<>]*>/gi;
const TOOL_OUTPUT = /<tool_output\b[^<>]*>[^]*?<\/tool_output>/gi;
const COPIED_MS = 1500;
const HIDE_MS = 150; // time for a pointer to travel from a citation to its card

const part = (text, begin, stop) => [...text].slice(begin, stop).join(""); // characters as Python counts them

/** The nodes of a passage's text, of which the cited sentence is marked or, if there is none, each occurrence of `words`.
 *  A sentence is counted in characters, strings in units of UTF-16. */
function marked(text, words, sentence) {
  const { begin, stop } = sentence ?? {};
  if (sentence) return [part(text, 0, begin), element("mark", {}, part(text, begin, stop)), part(text, stop)];
  const sought = words.trim().toLowerCase();
  const pieces = [];
  let from = 0;
  for (let at; sought && (at = text.toLowerCase().indexOf(sought, from)) >= 0; from = at + sought.length) {
    pieces.push(text.slice(from, at), element("mark", {}, text.slice(at, at + sought.length)));
  }
  return [...pieces, text.slice(from)];
}

let documents = null; // the files that the passages are from, if they are of a folder

/** What people call a passage: its file and page, or its title. */
function nameOf({ title, id }) {
  const place = documents && id.match(/^(.+)#(?:p(\d+)\.)?\d+$/);
  return place ? place[1] + (place[2] ? `, page ${place[2]}` : "") : title || id;
}

/** A refiner's answer without its tags; what they cite is listed below it. */
const claims = (answer) => answer.replace(CLAIM_TAGS, "");

/** One question, its steps and its answer. */
class Exchange {
  constructor(question) {
    this.passages = []; // what was shown: each passage and its nodes on the page
    this.steps = element("ol", { class: "steps" });
    this.answer = element("div", { class: "answer", "aria-live": "polite" });
    this.node = element("article", {}, element("h2", {}, question.replace(TOOL_OUTPUT, "").trim()), this.steps, this.answer);
    this.words = "";
  }

  /** Shows a chunk of the stream. */
  receive(chunk) {
    const delta = chunk.choices[0]?.delta ?? {};
    if (delta.reasoning_content) this.think(delta.reasoning_content);
    if (delta.content) this.conclude(delta.content);
    const event = chunk.sleuth ?? {};
    if (event.kind === "given") this.show(this.open("given"), event.passages);
    if (event.kind === "query") this.open("search").query.append(visible(event.text));
    if (event.kind === "search") this.showSearch(event);
    if (event.kind === "draft") this.draft(event.text);
    if (event.kind === "misunderstood") this.discard();
    if (event.kind === "end") this.end(event);
  }

  think(text) {
    if (this.step?.kind !== "thought" && !text.trim()) return;
    const step = this.open("thought");
    step.words += text;
    for (const place of [step.text, step.glimpse]) place.textContent = visible(step.words.trim());
  }

  showSearch({ query, passages }) {
    const step = this.open("search");
    step.query.textContent = visible(query);
    step.verb.textContent = "Searched";
    this.show(step, passages);
  }

  /** Shows passages, folded, under a step and closes it. */
  show(step, passages) {
    if (!passages.length) step.list.append(element("li", { class: "nothing" }, "no passages"));
    for (const passage of passages) {
      const text = element("p", {}, passage.text);
      const beside = { "data-text": visible(passage.text) }; // while it is folded, since titles may be the same
      const place = element("details", {}, element("summary", beside, nameOf(passage)), text);
      step.list.append(element("li", { title: `passage ${passage.id}` }, place));
      this.passages.push({ passage, text, place });
    }
    this.close();
  }

  draft(text) {
    this.answer.classList.add("draft");
    this.words += text;
    this.answer.replaceChildren(element("p", { class: "words" }, claims(this.words).trim()));
  }

  /** Turns a query or draft that the environment did not accept into a thought. */
  discard() {
    const words = this.words || (this.step?.kind === "search" ? this.step.query.textContent : "");
    if (this.step?.kind === "search") this.step.node.remove();
    this.close();
    this.answer.replaceChildren();
    this.words = "";
    if (words.trim()) this.think(words);
    this.close();
  }

  conclude(text) {
    this.words = claims(text);
    this.answer.classList.remove("draft");
    this.answer.replaceChildren(element("p", { class: "words" }, this.words));
  }

  end({ stop, citations, certainty, withheld }) {
    this.close();
    if (stop !== "answered") {
      this.answer.replaceChildren();
      return this.note(ENDS[stop] ?? "It ended without an answer.", "missed");
    }
    const chips = citations.map((cited) => this.cite(cited));
    if (chips.length) this.answer.append(element("p", { class: "cites" }, "from ", ...chips));
    else if (!withheld) this.note("No passage is cited for these words.", "missed");
    if (certainty && !withheld) {
      const [value, low, high] = [certainty.value, certainty.low, certainty.high].map((share) => share.toFixed(2));
      this.answer.append(element("p", { class: "sure" }, `${value} (${low} to ${high}) of such answers are right.`));
    }
    const titles = citations.map(nameOf);
    this.answer.append(copyButton([this.words, ...titles.map((title) => `- ${title}`)].join("\n")));
  }

  /** A citation button that shows its passage on hover or focus, and opens it among the results on a click. */
  cite({ id, sentence, text: cited }) {
    const same = this.passages.filter(({ passage }) => passage.id === id); // several, if results are sentences of it
    const isIt = ({ passage }) => part(passage.text, sentence?.begin, sentence?.stop) === cited;
    const { passage, text, place } = same.find(isIt) ?? same[0];
    text.replaceChildren(...element("p", {}, ...marked(passage.text, this.words, sentence)).childNodes);
    place.closest("li").classList.add("cited");
    const chip = element("button", { type: "button", class: "cite", "aria-describedby": "card" }, nameOf(passage));
    const show = () => card.show(chip, passage, this.words, sentence);
    chip.addEventListener("pointerenter", ({ pointerType }) => pointerType === "mouse" && show());
    chip.addEventListener("pointerleave", ({ pointerType }) => pointerType === "mouse" && card.leave());
    chip.addEventListener("focus", () => chip.matches(":focus-visible") && show());
    chip.addEventListener("blur", () => card.hide());
    chip.addEventListener("click", () => {
      card.hide();
      place.open = true;
      for (const seen of [place, text.querySelector("mark")]) seen?.scrollIntoView({ block: "nearest" });
    });
    return chip;
  }

  /** The current step if it is of this kind, else a new one. */
  open(kind) {
    if (this.step?.kind === kind) return this.step;
    this.close();
    this.step = kind === "thought" ? thoughtStep() : searchStep(kind);
    this.steps.append(this.step.node);
    return this.step;
  }

  /** Ends the current step. */
  close() {
    this.step?.node.classList.remove("open");
    this.step = null;
  }

  note(line, kind) {
    this.close();
    const said = element("p", { class: kind }, line);
    this.answer.append(said);
    said.scrollIntoView({ block: "nearest" });
  }
}

function thoughtStep() {
  const glimpse = element("span", { class: "glimpse" });
  const text = element("p", {});
  const node = element("li", { class: "thought open" });
  node.append(element("details", {}, element("summary", {}, "Thought ", glimpse), text));
  return { kind: "thought", node, glimpse, text, words: "" };
}

/** A search, or the passages given instead of one. */
function searchStep(kind) {
  const verb = element("span", { class: "verb" }, kind === "given" ? "Given" : "Searching");
  const query = element("q", {});
  const list = element("ul", { class: "passages" });
  const title = kind === "given" ? [verb] : [verb, " ", query];
  const node = element("li", { class: "search open" }, element("p", {}, ...title), list);
  return { kind, node, verb, query, list };
}

/** A button that copies a text, and says whether it did. */
function copyButton(text) {
  const button = element("button", { type: "button", class: "copy small" }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text)) ? "Copied" : "Not copied: the browser refused";
    setTimeout(() => (button.textContent = "Copy"), COPIED_MS);
  });
  return button;
}

/** Copies a text; whether that worked. Pages of other machines without TLS have no `navigator.clipboard`. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const box = element("textarea", { class: "unseen" }, text);
    document.body.append(box);
    box.select();
    const copied = document.execCommand("copy");
    box.remove();
    return copied;
  }
}

/** The one card that shows a cited passage. */
const card = {
  node: byId("card"),
  show(chip, passage, words, sentence) {
    clearTimeout(this.timer);
    this.node.replaceChildren(
      element("h3", {}, nameOf(passage)),
      element("p", {}, ...marked(passage.text, words, sentence)),
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
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing) return;
  if (!card.node.hidden) card.hide();
  else running?.abort();
});
addEventListener("pointerdown", (event) => event.target.closest("#card, .cite") || card.hide());

let running = null; // the AbortController of the question being answered

async function answer(question) {
  const exchange = new Exchange(question);
  const stop = new AbortController();
  byId("hint").hidden = true;
  byId("clear").hidden = false;
  byId("exchanges").append(exchange.node);
  running = stop;
  byId("send").textContent = "Stop";
  byId("send").title = "Escape stops too";
  exchange.node.scrollIntoView({ block: "start" });
  try {
    for await (const chunk of ask(question, stop.signal)) {
      const follows = innerHeight + scrollY >= document.body.scrollHeight - 80;
      exchange.receive(chunk);
      if (follows) scrollTo(0, document.body.scrollHeight);
    }
  } catch (error) {
    const stopped = error.name === "AbortError";
    if (!stopped && !byId("question").value) write(question);
    exchange.note(stopped ? "Stopped." : error.message, "problem");
  }
  if (running !== stop) return; // cleared, and perhaps asked again
  running = null;
  byId("send").textContent = "Ask";
  byId("send").title = "";
}

/** Stops what runs and shows the page as it began. */
function clear() {
  running?.abort();
  for (const exchange of document.querySelectorAll("article")) exchange.remove();
  card.hide();
  byId("clear").hidden = true;
  byId("hint").hidden = false;
  byId("question").focus();
}
byId("clear").addEventListener("click", clear);

/** Puts a text into the question's box. */
function write(text) {
  byId("question").value = text;
  fit();
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) return running.abort();
  const question = byId("question").value.trim();
  if (!question) return;
  write("");
  answer(question);
});

byId("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) byId("form").requestSubmit();
});

/** Fits the height of the question's box to its text, and keeps what is scrolled to above the form. */
function fit() {
  const box = byId("question");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
  document.documentElement.style.scrollPaddingBottom = `${byId("form").offsetHeight + 8}px`;
}
byId("question").addEventListener("input", fit);
fit();

/** Lists questions that are asked by a click. */
function offer(questions) {
  for (const question of questions) {
    const button = element("button", { type: "button", class: "example" }, question.replace(TOOL_OUTPUT, "").trim());
    button.addEventListener("click", () => running || answer(question));
    byId("examples").append(element("li", {}, button));
  }
}

servedModel().then(({ id, sleuth }) => {
  const facts = ["", `${sleuth.dialect} dialect`, `${sleuth.context.toLocaleString("en")} tokens of context`];
  if (sleuth.passages !== undefined) facts.push(`${sleuth.passages.toLocaleString("en")} passages`);
  byId("model").replaceChildren(element("bdi", {}, id), facts.join(" · "));
  offer(sleuth.examples ?? []);
  documents = sleuth.documents;
  const listed = documents ?? sleuth.topics ?? [];
  byId("listed").hidden = !listed.length;
  byId("listed").firstChild.textContent = documents ? `${documents.length} documents` : "Most passages are about";
  byId("listed").lastChild.append(...listed.map((name) => element("li", {}, name)));
}, (error) => {
  byId("model").textContent = error.message;
  byId("model").classList.add("problem");
});
