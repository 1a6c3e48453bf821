"use strict";

const settings = { responsive: true, displaylogo: false, displayModeBar: false };
const drawn = [];
for (const source of document.querySelectorAll("script.drawing")) {
  const figure = JSON.parse(source.textContent);
  drawn.push(Plotly.newPlot(source.previousElementSibling, figure.data, figure.layout, settings));
}
// Marks the page as complete, for programs that take a picture of it.
Promise.all(drawn).then(() => { document.documentElement.dataset.drawn = drawn.length; });

// Paper and window differ in width, so the plots are resized for printing and back.
const plots = () => document.querySelectorAll(".js-plotly-plot");
window.addEventListener("beforeprint", () => plots().forEach((plot) => Plotly.relayout(plot, { width: 960 })));
window.addEventListener("afterprint", () =>
  plots().forEach((plot) => Plotly.relayout(plot, { width: null, autosize: true })));

const words = new Intl.Collator(undefined, { numeric: true });
function sortBy(head) {
  const table = head.closest("table");
  const isNumber = head.classList.contains("number");
  // The first click sorts numbers descending and words ascending, the second the other way round.
  const before = head.getAttribute("aria-sort");
  const isDown = before ? before === "ascending" : isNumber;
  const compare = (one, other) => {
    // Unknown values go last in both directions.
    if (one === "" || other === "") return (one === "") - (other === "");
    const order = isNumber ? Number(one) - Number(other) : words.compare(one, other);
    return isDown ? -order : order;
  };
  const value = (row) => row.cells[head.cellIndex].dataset.value;
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort((one, other) => compare(value(one), value(other))));
  for (const cell of head.parentElement.cells) cell.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
}
document.addEventListener("click", (event) => {
  const head = event.target.closest("th");
  if (head) sortBy(head);
});
