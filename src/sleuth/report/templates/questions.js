/** The same question, base and trained side by side, with filters. */
function browseQuestions() {
  const pairs = data.questions.pairs;
  const kind = byId("question-kind");
  const change = byId("question-change");
  const search = byId("question-search");
  let shown = [];
  let current = named(remembered("question")) || pairs[0];

  const kinds = [...new Set(pairs.map((pair) => pair.kind).filter(Boolean))].sort();
  kind.append(...kinds.map((name) => element("option", { value: name }, name.replaceAll("_", " "))));

  function filter() {
    const words = search.value.trim().toLowerCase();
    shown = pairs.filter(
      (pair) =>
        (!kind.value || pair.kind === kind.value) &&
        (!change.value || changeOf(pair) === change.value) &&
        (!words || searchable(pair).includes(words)),
    );
    byId("question-list").replaceChildren(...shown.map(pairButton));
    choose(shown.includes(current) ? current : shown[0], false);
  }

  function named(id) {
    return pairs.find((pair) => pair.id === id);
  }

  function choose(pair, byHand = true) {
    const index = shown.indexOf(pair);
    const buttons = [...byId("question-list").children];
    byId("question-previous").disabled = index <= 0;
    byId("question-next").disabled = index < 0 || index === shown.length - 1;
    byId("question-count").textContent = shown.length ? index + 1 + " of " + shown.length : "no question matches";
    for (const button of buttons) button.removeAttribute("aria-current");
    if (index < 0) return byId("question-detail").replaceChildren();
    current = pair;
    if (byHand) remember("question", pair.id);
    buttons[index].setAttribute("aria-current", "true");
    keepInSight(byId("question-list"), buttons[index]);
    drawPair(pair);
  }

  function step(by) {
    const next = shown[shown.indexOf(current) + by];
    if (next) choose(next);
  }

  function pairButton(pair) {
    return element(
      "button",
      { type: "button", onclick: () => choose(pair) },
      pair.question,
      element("span", { class: "scores" }, scoreDot(pair.base.em), " → ", scoreDot(pair.trained.em)),
    );
  }

  for (const control of [kind, change, search]) control.addEventListener("input", filter);
  byId("question-previous").addEventListener("click", () => step(-1));
  byId("question-next").addEventListener("click", () => step(1));
  walkWithArrows(byId("question-list"));
  addEventListener("hashchange", () => remembered("question") && choose(named(remembered("question")), false));
  filter();
  if (remembered("question")) byId("questions").scrollIntoView();
}

function drawPair(pair) {
  byId("question-detail").replaceChildren(
    element("h3", {}, pair.question),
    factRow([["Golden answers", pair.answers.join(" · ")], ["Kind", pair.kind || "none"], ["Id", pair.id]]),
    element("div", { class: "sides" }, side("base", pair.base), side("trained", pair.trained)),
  );
}

function side(name, record) {
  return element(
    "div",
    {},
    element("h4", { class: "arm-" + name }, scoreDot(record.em), " " + name),
    factRow([
      ["Answer", record.answer || "none"],
      ["Outcome", (record.note || "none").replaceAll("_", " ")],
      ["Searches", readable(record.searches)],
      ["Stopped by", record.stop || "none"],
    ]),
    transcript(record.segments),
    actions(record.actions),
  );
}

function changeOf(pair) {
  if (pair.base.em === null || pair.trained.em === null) return "missing";
  return [pair.base, pair.trained].map((record) => (record.em > 0 ? "right" : "wrong")).join("-");
}

function searchable(pair) {
  const { base, trained } = pair;
  return [pair.id, pair.question, ...pair.answers, base.answer, trained.answer, base.note, trained.note]
    .join("\n")
    .replaceAll("_", " ")
    .toLowerCase();
}

function keepInSight(list, item) {
  const over = item.offsetTop + item.offsetHeight - (list.scrollTop + list.clientHeight);
  if (over > 0) list.scrollTop += over;
  if (item.offsetTop < list.scrollTop) list.scrollTop = item.offsetTop;
}
