"use strict";

const settings = { responsive: true, displaylogo: false, displayModeBar: false };
const drawn = [];
for (const source of document.querySelectorAll("script.drawing")) {
  const figure = JSON.parse(source.textContent);
  drawn.push(Plotly.newPlot(source.previousElementSibling, figure.data, figure.layout, settings));
}
// Nothing waits for the plots but who wants to look at the whole page.
Promise.all(drawn).then(() => { document.documentElement.dataset.drawn = drawn.length; });

// A print has another width than the window: the plots are drawn anew for it, and back afterwards.
const plots = () => document.querySelectorAll(".js-plotly-plot");
window.addEventListener("beforeprint", () => plots().forEach((plot) => Plotly.relayout(plot, { width: 960 })));
window.addEventListener("afterprint", () =>
  plots().forEach((plot) => Plotly.relayout(plot, { width: null, autosize: true })));

const words = new Intl.Collator(undefined, { numeric: true });
function sortBy(head) {
  const table = head.closest("table");
  const isNumber = head.classList.contains("number");
  // The greatest numbers first, words from A; a second time the other way round.
  const before = head.getAttribute("aria-sort");
  const isDown = before ? before === "ascending" : isNumber;
  const compare = (one, other) => {
    // What is not known goes last, whichever way.
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
