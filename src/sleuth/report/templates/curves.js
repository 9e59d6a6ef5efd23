/** One pointer reads all charts of a stage at the nearest step. Figures may come, go and be drawn again. */
let reading = null; // the stage and the step that are read

function readCurves() {
  const figureAt = (event) => event.target.closest && event.target.closest("[data-chart]");

  document.addEventListener("pointermove", (event) => {
    const svg = event.target.closest && event.target.closest("[data-chart] svg");
    if (!svg) return reading && !(document.activeElement && document.activeElement.dataset.chart) ? leave() : null;
    const chart = chartOf(figureAt(event));
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    read(figureAt(event).dataset.stage, chart.steps[nearest(chart.at, x)]);
  });
  document.addEventListener("focusout", (event) => figureAt(event) && leave());
  document.addEventListener("keydown", (event) => {
    const figure = figureAt(event);
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!figure || !by) return;
    event.preventDefault();
    const { stage } = figure.dataset;
    const { steps } = chartOf(figure);
    const at = nearest(steps, reading && reading.stage === stage ? reading.step : steps[steps.length - 1]);
    read(stage, steps[Math.max(0, Math.min(steps.length - 1, at + by))]);
  });
}

function figures() {
  return [...document.querySelectorAll("[data-chart]")];
}

function chartOf(figure) {
  return data.charts[figure.dataset.chart];
}

function read(stage, step) {
  if (reading && reading.stage !== stage) leave();
  reading = { stage, step };
  for (const figure of figures().filter((one) => one.dataset.stage === stage)) {
    const chart = chartOf(figure);
    mark(figure, chart, nearest(chart.steps, step));
  }
}

function leave() {
  reading = null;
  for (const figure of figures()) {
    figure.querySelector("output").textContent = "";
    for (const part of figure.querySelectorAll(".cursor, .marker")) part.setAttribute("visibility", "hidden");
  }
}

function mark(figure, chart, index) {
  const cursor = figure.querySelector(".cursor");
  cursor.setAttribute("x1", chart.at[index]);
  cursor.setAttribute("x2", chart.at[index]);
  cursor.setAttribute("visibility", "visible");
  figure.querySelectorAll(".marker").forEach((marker, number) => {
    const height = chart.curves[number].heights[index];
    marker.setAttribute("visibility", height === null ? "hidden" : "visible");
    marker.setAttribute("cx", chart.at[index]);
    marker.setAttribute("cy", height === null ? 0 : height);
  });
  const several = chart.curves.length > 1;
  const values = chart.curves.map((curve, number) => [
    number ? ", " : "",
    several ? [element("bdi", {}, curve.label), " "] : "",
    readable(curve.values[index]),
  ]);
  figure.querySelector("output").replaceChildren("step " + chart.steps[index] + ": ", ...values.flat(Infinity));
}

/** Index of the value nearest to `wanted`. */
function nearest(values, wanted) {
  const distances = values.map((value) => Math.abs(value - wanted));
  return distances.lastIndexOf(Math.min(...distances));
}
