/** One pointer reads all charts of a stage at the nearest step. */
function readCurves() {
  const figures = [...document.querySelectorAll("[data-chart]")];

  function point(stage, step) {
    for (const figure of figures.filter((one) => one.dataset.stage === stage)) {
      const chart = data.charts[figure.dataset.chart];
      mark(figure, chart, nearest(chart.steps, step));
    }
  }

  function leave() {
    for (const figure of figures) {
      figure.querySelector("output").textContent = "";
      for (const part of figure.querySelectorAll(".cursor, .marker")) part.setAttribute("visibility", "hidden");
    }
  }

  for (const figure of figures) {
    const chart = data.charts[figure.dataset.chart];
    const svg = figure.querySelector("svg");
    let step = chart.steps[chart.steps.length - 1];
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      step = chart.steps[nearest(chart.at, x)];
      point(figure.dataset.stage, step);
    });
    svg.addEventListener("pointerleave", leave);
    figure.addEventListener("blur", leave);
    figure.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      step = chart.steps[Math.max(0, Math.min(chart.steps.length - 1, nearest(chart.steps, step) + by))];
      point(figure.dataset.stage, step);
    });
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
  const values = chart.curves.map((curve) => (several ? curve.label + " " : "") + readable(curve.values[index]));
  figure.querySelector("output").textContent = "step " + chart.steps[index] + ": " + values.join(", ");
}

/** Index of the value nearest to `wanted` in a rising list. */
function nearest(values, wanted) {
  let low = 0;
  let high = values.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - values[low - 1] < values[low] - wanted ? low - 1 : low;
}
