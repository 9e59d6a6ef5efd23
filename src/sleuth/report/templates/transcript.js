/** A whole trajectory: what the model saw, run by run, coloured by author. */
function transcript(segments) {
  return element("div", { class: "transcript" }, segments.map(run));
}

function run(segment) {
  const text = data.texts[segment.text];
  const parts = segment.ends ? tokens(text, segment) : [text];
  const cut = segment.cut ? element("span", { class: "cut" }, segment.cut + " tokens cut") : null;
  return [element("span", { class: "by " + segment.author }, parts), cut];
}

/** One span a token, so that the pointer can read its log-probability. */
function tokens(text, segment) {
  let start = 0;
  return segment.ends.map((end, index) => {
    const logprob = segment.logprobs[index];
    const surprise = logprob === null ? 1 : Math.min(1, -logprob / 4);
    const span = element(
      "span",
      { class: "token", "data-logprob": logprob, style: "--surprise-share:" + surprise.toFixed(2) },
      text.slice(start, end),
    );
    start = end;
    return span;
  });
}

/** What the environment understood: searches with their passages in order, then the answer. */
function actions(list) {
  if (!list.length) return element("p", { class: "muted" }, "No search and no answer could be read.");
  const names = { search: "search", answer: "answer", invalid: "neither search nor answer" };
  return element(
    "ol",
    { class: "actions" },
    list.map((action) =>
      element(
        "li",
        {},
        element("span", { class: "action " + action.kind }, names[action.kind] || action.kind),
        element("q", {}, action.text),
        action.kind === "search" && !action.passages.length ? element("p", { class: "muted" }, "No passage found.") : null,
        action.passages.map(passage),
      ),
    ),
  );
}

function passage(shown, index) {
  return element(
    "details",
    { class: "passage" },
    element(
      "summary",
      {},
      index + 1 + ". ",
      element("bdi", {}, shown.title),
      " ",
      shown.gold ? element("span", { class: "gold" }, "gold") : null,
      element("span", { class: "muted" }, " " + shown.id),
    ),
    element("p", {}, data.texts[shown.text]),
  );
}

/** Name and value pairs in a row. */
function factRow(facts) {
  return element(
    "dl",
    { class: "facts" },
    facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
  );
}

function questionFacts({ question, answers, kind, id }) {
  const facts = [["Golden answers", answers.join(" · ")], ["Kind", kind || "none"], ["Id", id]];
  return [element("h3", {}, question), factRow(facts)];
}

function showTokenTips() {
  const tip = byId("tip");
  document.addEventListener("pointermove", (event) => {
    const token = event.target.closest && event.target.closest(".token[data-logprob]");
    tip.hidden = !token;
    if (!token) return;
    const logprob = Number(token.dataset.logprob);
    tip.textContent = "log p " + readable(logprob) + ", p " + readable(Math.exp(logprob));
    tip.style.left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = event.clientY + 18 + "px";
  });
}
