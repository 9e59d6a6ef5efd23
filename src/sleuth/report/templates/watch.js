const LOOK_MS = 2000;
const DRAWING_SHARE = 0.2; // of the time, at most, is spent on drawing again
let pageTag = null;
let questionsTag = null;
let keptTexts = 0; // texts of the questions, before those of the step that is shown
let rollouts = null; // the browsers of rollouts and of questions: {browse, ending}
let questions = null;
let asOf = "";
let timer = 0;
let looking = false;

/** Asks whether files have changed, and draws the report again. What is open, chosen and read stays as it is. */
async function look() {
  if (looking) return;
  clearTimeout(timer);
  looking = true;
  let refused = false;
  let wait = LOOK_MS;
  if (!document.hidden) {
    try {
      const state = await asked("state");
      document.title = state.title;
      morphChildren(byId("live"), parsed(state.html));
      const begun = performance.now();
      if (state.tag !== pageTag) await take(await asked("page"));
      wait = Math.max(wait, (performance.now() - begun) / DRAWING_SHARE);
      asOf = new Date().toLocaleTimeString();
      say("as of " + asOf);
    } catch (error) {
      say(error.message + (asOf ? " This is as of " + asOf + "." : ""), true);
      refused = error.refused; // without a key there is nothing to ask
    }
  }
  looking = false;
  if (!refused) timer = setTimeout(look, wait);
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

async function take(page) {
  const fresh = parsed(page.html);
  const others = page.questions === questionsTag ? null : await asked("questions");
  data.charts = page.charts;
  morphChildren(byId("report"), fresh);
  if (reading) read(reading.stage, reading.step);
  if (others) showQuestions(others, fresh);
  followRollouts(page.steps);
  pageTag = page.tag;
}

// -- replacing what changed -------------------------------------------------------------------------------------------

function parsed(html) {
  return new DOMParser().parseFromString(html, "text/html").body;
}

/** Makes the children of a node like those of another, and changes nothing that is alike. Those with an id stay where
 *  others come or go beside them. */
function morphChildren(node, fresh) {
  const wanted = [...fresh.childNodes];
  const ids = new Set(wanted.map((child) => child.id).filter(Boolean));
  const named = new Map([...node.children].filter((child) => child.id).map((child) => [child.id, child]));
  for (const [id, child] of named) if (!ids.has(id)) child.remove();
  let at = node.firstChild;
  for (const child of wanted) {
    const alike = child.id ? named.get(child.id) : at && !at.id ? at : null;
    if (!alike) {
      node.insertBefore(document.adoptNode(child), at);
      continue;
    }
    if (alike !== at) node.insertBefore(alike, at);
    at = alike.nextSibling;
    morph(alike, child);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** A browser of rollouts or questions fills itself, so only its place is compared. */
function morph(node, fresh) {
  if (node.nodeName !== fresh.nodeName) return node.replaceWith(document.adoptNode(fresh));
  if (node.nodeType !== Node.ELEMENT_NODE) {
    if (node.data !== fresh.data) node.data = fresh.data;
    return;
  }
  if (node.classList.contains("browser")) return;
  for (const { name, value } of fresh.attributes) if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  for (const { name } of [...node.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) node.removeAttribute(name);
  morphChildren(node, fresh);
}

// -- questions --------------------------------------------------------------------------------------------------------

/** Other evaluations: the browser begins anew, with the choices that were made. */
function showQuestions(others, fresh) {
  Object.assign(data, { questions: others.questions, texts: others.texts });
  questionsTag = others.tag;
  keptTexts = data.texts.length;
  data.rollouts = data.rollouts.map(({ step }) => stored(step)); // their texts went with the others
  questions?.abort();
  questions = null;
  if (!others.questions?.rows.length) return;
  const chosen = [...byId("question-browser").querySelectorAll("input, select")].map(({ id, value }) => [id, value]);
  const renewed = fresh.querySelector("#question-browser"); // absent if it was taken over just now
  if (renewed) byId("question-browser").replaceChildren(...renewed.childNodes);
  questions = new AbortController();
  browseQuestions(questions.signal);
  for (const [id, value] of renewed ? chosen : []) {
    byId(id).value = value;
    if (!byId(id).value) byId(id).selectedIndex = 0;
    byId(id).dispatchEvent(new Event("input"));
  }
}

// -- rollouts ---------------------------------------------------------------------------------------------------------

/** Shows the newest step, or the one that was chosen by hand. */
function followRollouts(steps) {
  const held = new Map(data.rollouts.map((one) => [one.step, one]));
  const shown = rollouts && data.rollouts[rollouts.browser.state.step];
  data.rollouts = steps.map((step) => held.get(step) || stored(step));
  if (rollouts && !rollouts.place.isConnected) {
    rollouts.ending.abort();
    rollouts = null;
  }
  if (!steps.length) return;
  byId("rollout-step").max = steps.length - 1;
  if (!rollouts) return startRollouts();
  const { browser } = rollouts;
  if (byId("rollout-follow").checked) return newest();
  const at = data.rollouts.findIndex((one) => shown && one.step === shown.step);
  if (at < 0) return browser.choose({}, false);
  browser.state.step = at;
  byId("rollout-step").value = at;
}

function stored(step) {
  return { step, of: null, groups: [], file: "rollouts/" + step };
}

function newest() {
  const last = data.rollouts.length - 1;
  const { browser } = rollouts;
  if (browser.state.step !== last || !data.rollouts[last].groups.length) {
    browser.choose({ step: last, group: null, sibling: 0 }, false);
  }
}

function startRollouts() {
  byId("rollout-follow").checked = remembered("rollout") === null;
  data.opened = [data.rollouts.length - 1, null];
  const ending = new AbortController();
  rollouts = { place: byId("rollout-browser"), ending, browser: browseRollouts(load, ending.signal) };
  const byHand = () => (byId("rollout-follow").checked = false);
  for (const part of ["rollout-groups", "rollout-detail", "rollout-step"]) {
    for (const kind of ["pointerdown", "keydown"]) byId(part).addEventListener(kind, byHand);
  }
  byId("rollout-detail").addEventListener("scroll", () => byId("rollout-detail").scrollTop && byHand());
  byId("rollout-follow").addEventListener("change", () => byId("rollout-follow").checked && newest());
}

/** Brings the episodes of a step, and lets go of those of the others. */
async function load(step) {
  try {
    const found = await asked(step.file);
    if (rollouts && data.rollouts[rollouts.browser.state.step] !== step) return ""; // another was chosen meanwhile
    data.texts.length = keptTexts;
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
