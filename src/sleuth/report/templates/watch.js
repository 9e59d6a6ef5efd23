const LOOK_MS = 2000;
const tags = {};
let browser = null;
let watched = []; // the runs with the steps of their stored episodes
let chosenRun = 0;
let asOf = "";
let timer = 0;
let looking = false;

/** Asks what has changed, and draws that again. The rest of the page keeps its scroll positions and what is open. */
async function look() {
  if (looking) return;
  clearTimeout(timer);
  looking = true;
  let refused = false;
  if (!document.hidden) {
    try {
      const state = await asked("state");
      for (const [name, tag] of Object.entries(state.parts)) {
        if (tags[name] !== tag) take(name, await asked("parts/" + name));
      }
      document.title = state.title;
      asOf = new Date().toLocaleTimeString();
      say("as of " + asOf);
    } catch (error) {
      say(error.message + (asOf ? " This is as of " + asOf + "." : ""), true);
      refused = error.refused; // without a key there is nothing to ask
    }
  }
  looking = false;
  if (!refused) timer = setTimeout(look, LOOK_MS);
}

async function asked(path) {
  const response = await fetchWithKey(path, {}, "`sleuth watch` does not answer; it may have been stopped.");
  if (response.ok) return response.json();
  throw Object.assign(new Error(await problem(response)), { refused: response.status === 401 });
}

function say(words, wrong = false) {
  byId("as-of").textContent = words;
  byId("as-of").className = wrong ? "problem" : "";
}

function take(name, part) {
  tags[name] = part.tag;
  if (name === "rollouts") return follow(part.runs);
  if (name === "curves") data.charts = part.charts;
  const shown = document.querySelector(`[data-part="${name}"]`);
  const fresh = new DOMParser().parseFromString(part.html, "text/html").body;
  morphChildren(shown, fresh);
  if (name === "curves" && reading) read(reading.stage, reading.step);
}

/** Makes the children of a node like those of another, and changes nothing that is alike. */
function morphChildren(node, fresh) {
  const wanted = [...fresh.childNodes];
  const present = [...node.childNodes];
  present.slice(wanted.length).forEach((child) => child.remove());
  wanted.forEach((child, index) => (present[index] ? morph(present[index], child) : node.append(document.adoptNode(child))));
}

function morph(node, fresh) {
  if (node.nodeName !== fresh.nodeName) return node.replaceWith(document.adoptNode(fresh));
  if (node.nodeType !== Node.ELEMENT_NODE) {
    if (node.data !== fresh.data) node.data = fresh.data;
    return;
  }
  for (const { name, value } of fresh.attributes) if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  for (const { name } of [...node.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) node.removeAttribute(name);
  morphChildren(node, fresh);
}

// -- rollouts ---------------------------------------------------------------------------------------------------------

/** Shows the newest step of the chosen run, or the one that was chosen by hand. */
function follow(runs) {
  watched = runs;
  const choice = byId("rollout-run");
  if (choice && !choice.length) choice.append(...runs.map(({ name }, at) => element("option", { value: at }, name)));
  const held = new Map(data.rollouts.map((one) => [one.step, one]));
  const shown = browser && data.rollouts[browser.state.step];
  data.rollouts = runs[chosenRun].steps.map((step) => held.get(step) || stored(step));
  byId("rollout-lacking").hidden = data.rollouts.length > 0;
  byId("rollout-shown").hidden = data.rollouts.length === 0;
  if (!data.rollouts.length) return;
  byId("rollout-step").max = data.rollouts.length - 1;
  if (!browser) return (browser = start());
  if (byId("rollout-follow").checked) return newest();
  const at = data.rollouts.findIndex((one) => shown && one.step === shown.step);
  if (at < 0) return browser.choose({}, false);
  browser.state.step = at;
  byId("rollout-step").value = at;
}

function stored(step) {
  return { step, of: null, groups: [], file: "rollouts/" + chosenRun + "/" + step };
}

function newest() {
  const last = data.rollouts.length - 1;
  if (browser.state.step !== last || !data.rollouts[last].groups.length) {
    browser.choose({ step: last, group: null, sibling: 0 }, false);
  }
}

function start() {
  byId("rollout-follow").checked = remembered("rollout") === null;
  data.opened = [data.rollouts.length - 1, null];
  const begun = browseRollouts(load);
  const byHand = () => (byId("rollout-follow").checked = false);
  for (const part of ["rollout-groups", "rollout-detail", "rollout-step"]) {
    for (const kind of ["pointerdown", "keydown"]) byId(part).addEventListener(kind, byHand);
  }
  byId("rollout-detail").addEventListener("scroll", () => byId("rollout-detail").scrollTop && byHand());
  byId("rollout-follow").addEventListener("change", () => byId("rollout-follow").checked && newest());
  if (byId("rollout-run")) byId("rollout-run").addEventListener("change", change);
  return begun;
}

/** Another run, from its newest step on. */
function change() {
  chosenRun = Number(byId("rollout-run").value);
  data.rollouts = [];
  byId("rollout-follow").checked = true;
  browser.state.step = -1;
  follow(watched);
}

/** Brings the episodes of a step, and lets go of those of the others. */
async function load(step) {
  try {
    const found = await asked(step.file);
    if (browser && data.rollouts[browser.state.step] !== step) return ""; // another was chosen meanwhile
    data.texts = [];
    for (const one of data.rollouts) Object.assign(one, stored(one.step));
    addStep(found);
    return "";
  } catch (error) {
    return error.message;
  }
}

readCurves();
showTokenTips();
document.addEventListener("visibilitychange", () => document.hidden || look());
look();
