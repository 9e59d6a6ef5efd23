/** Step, group and sibling: choose, and read what the policy saw and wrote. */
function browseRollouts() {
  const steps = data.rollouts;
  const state = { step: data.opened[0], group: data.opened[1], sibling: 0 };
  const slider = byId("rollout-step");
  const surprise = byId("rollout-surprise");

  function restore() {
    const place = remembered("rollout");
    if (place === null) return false;
    const [step, group, sibling] = place.split(",").map(Number);
    state.step = Math.max(0, steps.findIndex((one) => one.step === step));
    state.group = steps[state.step].groups[group] ? group : 0;
    state.sibling = steps[state.step].groups[state.group].siblings[sibling] ? sibling : 0;
    return true;
  }

  function choose(change) {
    Object.assign(state, change);
    const groups = steps[state.step].groups;
    state.group = Math.min(state.group, groups.length - 1);
    state.sibling = Math.min(state.sibling, groups[state.group].siblings.length - 1);
    remember("rollout", [steps[state.step].step, state.group, state.sibling].join(","));
    draw();
  }

  function draw() {
    const step = steps[state.step];
    const group = step.groups[state.group];
    slider.value = state.step;
    byId("rollout-step-name").textContent = step.step;
    byId("rollout-count").textContent = step.groups.length + " of " + step.of + " groups";
    byId("rollout-groups").replaceChildren(...step.groups.map(groupButton));
    byId("rollout-detail").replaceChildren(
      element("h3", {}, group.question),
      factRow([["Golden answers", group.answers.join(" · ")], ["Kind", group.kind || "none"], ["Id", group.id]]),
      element("div", { class: "siblings", role: "tablist" }, group.siblings.map(siblingButton)),
      ...sibling(group.siblings[state.sibling]),
    );
  }

  function groupButton(group, index) {
    return element(
      "button",
      { type: "button", "aria-current": index === state.group, onclick: () => choose({ group: index, sibling: 0 }) },
      group.question,
      element("span", { class: "scores" }, group.siblings.map((one) => scoreDot(one.score))),
    );
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
  if (surprise) {
    surprise.addEventListener("change", () => byId("rollout-detail").classList.toggle("surprising", surprise.checked));
  }
  walkWithArrows(byId("rollout-groups"));
  addEventListener("hashchange", () => restore() && draw());
  const asked = restore();
  draw();
  if (asked) byId("rollouts").scrollIntoView();
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
