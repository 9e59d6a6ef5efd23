/** The same question answered by two sides, with filters by kind, by words and by what became of it. `signal` ends it. */
function browseQuestions(signal = undefined) {
  const { names, rows, modes } = data.questions;
  const kind = byId("question-kind");
  const search = byId("question-search");
  const sides = ["left", "right"].map((side) => ({ arm: byId("question-" + side), mode: byId("question-" + side + "-mode") }));
  let shown = [];
  let current = named(remembered("question")) || rows[0];

  const kinds = [...new Set(rows.map((row) => row.kind).filter(Boolean))].sort();
  kind.append(...kinds.map((name) => element("option", { value: name }, name.replaceAll("_", " "))));
  sides.forEach(({ arm, mode }, place) => {
    arm.append(...names.map((name, index) => element("option", { value: index }, name)));
    arm.value = place;
    mode.append(element("option", { value: "" }, "any outcome"), element("option", { value: "wrong" }, "Wrong, however"));
    mode.append(...Object.entries(modes).map(([name, words]) => element("option", { value: name }, words)));
  });

  function filter() {
    const words = search.value.trim().toLowerCase();
    shown = rows.filter(
      (row) =>
        (!kind.value || row.kind === kind.value) &&
        sides.every(({ arm, mode }) => ended(row.sides[arm.value], mode.value)) &&
        (!words || searchable(row).includes(words)),
    );
    byId("question-list").replaceChildren(...shown.map(rowButton));
    choose(shown.includes(current) ? current : shown[0], false);
  }

  function named(id) {
    return rows.find((row) => row.id === id);
  }

  function choose(row, byHand = true) {
    const index = shown.indexOf(row);
    const buttons = [...byId("question-list").children];
    byId("question-previous").disabled = index <= 0;
    byId("question-next").disabled = index < 0 || index === shown.length - 1;
    byId("question-count").textContent = shown.length ? index + 1 + " of " + shown.length : "no question matches";
    for (const button of buttons) button.removeAttribute("aria-current");
    if (index < 0) return byId("question-detail").replaceChildren();
    current = row;
    if (byHand) remember("question", row.id);
    buttons[index].setAttribute("aria-current", "true");
    keepInSight(byId("question-list"), buttons[index]);
    drawQuestion(row, sides.map(({ arm }) => Number(arm.value)));
  }

  function step(by) {
    const next = shown[shown.indexOf(current) + by];
    if (next) choose(next);
  }

  function rowButton(row) {
    const [left, right] = sides.map(({ arm }) => row.sides[arm.value]);
    return listButton(row.question, [scoreDot(left.score), " → ", scoreDot(right.score)], () => choose(row));
  }

  /** A cell of a table of what became of the questions: `left arm, mode, right arm, mode`. */
  function follow(cell) {
    const [left, before, right, after] = cell.dataset.became.split(",");
    [left, right].forEach((arm, place) => (sides[place].arm.value = arm));
    [before, after].forEach((mode, place) => (sides[place].mode.value = mode));
    kind.value = search.value = "";
    filter();
    byId("questions").scrollIntoView();
  }

  for (const control of [kind, search, ...sides.flatMap(({ arm, mode }) => [arm, mode])]) {
    control.addEventListener("input", filter);
  }
  for (const cell of document.querySelectorAll("[data-became]")) cell.addEventListener("click", () => follow(cell));
  byId("question-previous").addEventListener("click", () => step(-1));
  byId("question-next").addEventListener("click", () => step(1));
  walkWithArrows(byId("question-list"));
  const chosen = () => remembered("question") && choose(named(remembered("question")), false);
  addEventListener("hashchange", chosen, { signal });
  filter();
  if (remembered("question")) byId("questions").scrollIntoView();
}

function drawQuestion(row, places) {
  byId("question-detail").replaceChildren(
    ...questionFacts(row),
    element("div", { class: "sides" }, places.map((place) => side(place, row.sides[place]))),
  );
}

function side(place, record) {
  const name = data.questions.names[place];
  return element(
    "div",
    {},
    element("h4", { class: "arm-" + place + " arm-" + name }, scoreDot(record.score), " " + name),
    factRow([
      ["Answer", record.answer || "none"],
      ["Outcome", data.questions.modes[record.mode]],
      ...Object.entries(record.scores).map(([name, value]) => [name, readable(value)]),
      ["Note", record.note || "none"],
      ["Searches", readable(record.searches)],
      ["Stopped by", record.stop || "none"],
    ]),
    element("details", { open: true }, element("summary", {}, "Transcript"), transcript(record.segments)),
    actions(record.actions),
  );
}

function ended(record, mode) {
  if (mode === "wrong") return !["right", "scored", "missing"].includes(record.mode);
  return !mode || record.mode === mode;
}

function searchable(row) {
  return [row.id, row.question, ...row.answers, ...row.sides.flatMap((one) => [one.answer, one.note])]
    .join("\n")
    .replaceAll("_", " ")
    .toLowerCase();
}

function keepInSight(list, item) {
  const over = item.offsetTop + item.offsetHeight - (list.scrollTop + list.clientHeight);
  if (over > 0) list.scrollTop += over;
  if (item.offsetTop < list.scrollTop) list.scrollTop = item.offsetTop;
}
