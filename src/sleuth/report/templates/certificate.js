/** Right or wrong, in the order of the answers: nobody skips one. Kept in the browser, where it lets us. */
const place = "sleuth-certificate-" + data.certificate;
let ratings = [];
try {
  ratings = JSON.parse(localStorage.getItem(place)) ?? [];
} catch {}

function rate(right) {
  if (right === null) ratings.pop();
  else if (ratings.length < data.to_rate.length) ratings.push(right);
  try {
    localStorage.setItem(place, JSON.stringify(ratings));
  } catch {}
  showRating();
}

function save() {
  const rated = Object.fromEntries(ratings.map((right, at) => [data.to_rate[at].key, right]));
  const text = JSON.stringify({ certificate: data.certificate, ratings: rated }, null, 1);
  const href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href, download: "ratings.json" }).click();
}

function showRating() {
  const one = data.to_rate[ratings.length];
  const button = (text, act, disabled) => element("button", { type: "button", onclick: act, disabled }, text);
  const shown = one
    ? [element("h3", {}, one.question), element("p", { class: "verdict" }, one.answer), ...one.passages.map((text) => element("pre", {}, text))]
    : [element("h3", {}, "All are rated.")];
  byId("rating").replaceChildren(
    element("p", { class: "controls" }, `${ratings.length} of ${data.to_rate.length} rated `, button("Right (y)", () => rate(true), !one), button("Wrong (n)", () => rate(false), !one), button("Back (u)", () => rate(null), !ratings.length), button("Save ratings.json", save, ratings.length < data.least)),
    ...shown,
  );
}

document.addEventListener("keydown", (event) => {
  const right = { y: true, n: false, u: null }[event.key];
  if (right !== undefined && !event.ctrlKey && !event.metaKey && !event.altKey && !event.repeat) rate(right);
});
showRating();
