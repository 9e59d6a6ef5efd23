/** Step, group and sibling: choose, and read what the policy saw and wrote. `load` brings the groups of a step that the
 *  page does not hold, and returns why there are none, or nothing. `signal` ends it. */
function browseRollouts(load = undefined, signal = undefined) {
  const state = { step: data.opened[0], group: data.opened[1], sibling: 0 };
  const slider = byId("rollout-step");

  function restore() {
    const place = remembered("rollout");
    if (place === null) return false;
    const [step, group, sibling] = place.split(",").map(Number);
    Object.assign(state, { step: Math.max(0, data.rollouts.findIndex((one) => one.step === step)), group, sibling });
    return true;
  }

  /** Shows a step, group and sibling; a step that the page does not hold whole, once its file has come. */
  async function choose(change, byHand = true) {
    Object.assign(state, change);
    state.step = Math.max(0, Math.min(state.step, data.rollouts.length - 1));
    const step = data.rollouts[state.step];
    slider.value = state.step;
    byId("rollout-step-name").textContent = step.step;
    byId("rollout-count").textContent = "loading";
    const lacking = step.file && (await load(step));
    if (step !== data.rollouts[state.step]) return; // another was chosen meanwhile
    if (!step.groups.length) return lack(lacking);
    if (state.group === null) state.group = telling(step);
    state.group = Math.max(0, Math.min(state.group, step.groups.length - 1));
    state.sibling = Math.max(0, Math.min(state.sibling, step.groups[state.group].siblings.length - 1));
    if (byHand) remember("rollout", [step.step, state.group, state.sibling].join(","));
    draw(step);
  }

  function lack(why) {
    byId("rollout-count").textContent = why;
    for (const part of ["rollout-groups", "rollout-detail"]) byId(part).replaceChildren();
  }

  function draw(step) {
    const group = step.groups[state.group];
    byId("rollout-count").textContent = step.groups.length + " of " + step.of + " groups";
    byId("rollout-groups").replaceChildren(...step.groups.map(groupButton));
    byId("rollout-detail").replaceChildren(
      ...questionFacts(group),
      element("div", { class: "siblings", role: "tablist" }, group.siblings.map(siblingButton)),
      ...sibling(group.siblings[state.sibling]),
    );
  }

  function groupButton(group, index) {
    const dots = group.siblings.map((one) => scoreDot(one.score));
    return listButton(group.question, dots, () => choose({ group: index, sibling: 0 }), index === state.group);
  }

  function siblingButton(one, index) {
    return element(
      "button",
      {
        type: "button",
        role: "tab",
        "aria-selected": String(index === state.sibling),
        onclick: () => choose({ sibling: index }),
      },
      scoreDot(one.score),
      " " + one.label + " ",
      element("span", { class: "muted" }, readable(one.score)),
    );
  }

  slider.addEventListener("input", () => choose({ step: Number(slider.value), sibling: 0 }));
  walkWithArrows(byId("rollout-groups"));
  addEventListener("hashchange", () => restore() && choose({}), { signal });
  const asked = restore();
  if (data.rollouts.length) choose({}, false);
  if (asked) byId("rollouts").scrollIntoView();
  return { choose, state };
}

/** The first group whose scores differ, as an index; the first one if there is none. */
function telling(step) {
  const scores = (group) => new Set(group.siblings.map((one) => one.score).filter((score) => score !== null));
  return Math.max(0, step.groups.findIndex((group) => scores(group).size > 1));
}

/** Adds the groups of a step that the page did not hold; their texts follow those of the page. */
function addStep({ step, groups, texts, of = groups.length }) {
  const first = data.texts.length;
  for (const text of texts) data.texts.push(text);
  for (const one of groups.flatMap((group) => group.siblings)) {
    for (const segment of one.segments) segment.text += first;
    for (const passage of one.actions.flatMap((action) => action.passages)) passage.text += first;
  }
  const held = data.rollouts.find((one) => one.step === step);
  Object.assign(held, { groups, of, file: null });
}

function sibling(one) {
  const parts = Object.entries(one.parts).map(([name, value]) => name + " " + readable(value));
  return [
    factRow([
      ["Score", readable(one.score)],
      ["Parts", parts.join(", ") || "none"],
      ["Note", one.note || "none"],
      ["Advantage", one.advantage === null ? "none" : signed(one.advantage)],
      ["Stopped by", one.stop],
      ["Policy version", one.version === null ? "none" : String(one.version)],
    ]),
    transcript(one.segments),
    element("h4", {}, "Actions and passages"),
    actions(one.actions),
  ];
}
