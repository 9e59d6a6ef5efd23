/** A whole trajectory: what the model saw, run by run, coloured by author. */
function transcript(segments) {
  return element("div", { class: "transcript" }, segments.map(run));
}

function run(segment) {
  const cut = segment.cut ? element("span", { class: "cut" }, segment.cut + " tokens cut") : null;
  return [element("span", { class: "by " + segment.author }, data.texts[segment.text]), cut];
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
