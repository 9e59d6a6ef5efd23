const LOOK_MS = 2000;
const DRAWING_SHARE = 0.2; // of the time, at most, is spent on drawing again
let pageTag = null;
let shownQuestions = null; // the evaluations whose questions are browsed
let questions = null; // ends the browser of questions
let rollouts = null; // the browser of rollouts: {place, ending, browser}
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
      if (state.tag !== pageTag) take(await asked("page"));
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

function take(page) {
  const fresh = parsed(page.html);
  const chosen = rollouts && data.rollouts[rollouts.browser.state.step];
  Object.assign(data, page.data);
  morphChildren(byId("report"), fresh);
  if (reading) read(reading.stage, reading.step);
  showQuestions(fresh);
  followRollouts(chosen);
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
function showQuestions(fresh) {
  const now = JSON.stringify([data.questions, data.texts]);
  if (now === shownQuestions) return;
  shownQuestions = now;
  questions?.abort();
  questions = null;
  if (!data.questions.rows.length) return;
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

/** Shows the newest step, or leaves the one that was chosen by hand as it is. */
function followRollouts(chosen) {
  if (rollouts && !rollouts.place.isConnected) {
    rollouts.ending.abort();
    rollouts = null;
  }
  if (!data.rollouts.length) return;
  byId("rollout-step").max = data.rollouts.length - 1;
  if (!rollouts) return startRollouts();
  const { browser } = rollouts;
  const at = data.rollouts.findIndex((one) => chosen && one.step === chosen.step);
  browser.state.step = Math.max(0, at);
  byId("rollout-step").value = browser.state.step;
  if (byId("rollout-follow").checked) newest(chosen);
  else if (at < 0) browser.choose({}, false);
}

/** Shows the last step, unless it is the one that is `shown`. */
function newest(shown = undefined) {
  const step = data.rollouts.length - 1;
  if (data.rollouts[step].step !== shown?.step) rollouts.browser.choose({ step, group: null, sibling: 0 }, false);
}

function startRollouts() {
  byId("rollout-follow").checked = remembered("rollout") === null;
  const ending = new AbortController();
  rollouts = { place: byId("rollout-browser"), ending, browser: browseRollouts(load, ending.signal) };
  const byHand = () => (byId("rollout-follow").checked = false);
  for (const part of ["rollout-groups", "rollout-detail", "rollout-step"]) {
    for (const kind of ["pointerdown", "keydown"]) byId(part).addEventListener(kind, byHand);
  }
  byId("rollout-detail").addEventListener("scroll", () => byId("rollout-detail").scrollTop && byHand());
  byId("rollout-follow").addEventListener("change", () => byId("rollout-follow").checked && newest());
}

/** Brings the episodes of a step. */
async function load(step) {
  try {
    addStep(await asked(step.file));
    return "";
  } catch (error) {
    return error.message;
  }
}

readCurves();
document.addEventListener("visibilitychange", () => document.hidden || look());
look();
