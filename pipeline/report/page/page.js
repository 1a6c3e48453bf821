"use strict";

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
  const value = (row) => {
    const cell = row.cells[head.cellIndex];
    return cell.dataset.value ?? cell.textContent;
  };
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort((one, other) => compare(value(one), value(other))));
  for (const cell of head.parentElement.cells) cell.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
}
document.addEventListener("click", (event) => {
  const head = event.target.closest("th");
  if (head) sortBy(head);
});

// Browsers show the title of a mark late, and not at all on a touch screen.
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);
function textOf(mark, event) {
  const title = mark.querySelector(":scope > title");
  if (title) {
    mark.dataset.about = title.textContent;
    title.remove();
  }
  if (!mark.dataset.cells) return mark.dataset.about;
  const box = mark.getBoundingClientRect(), cells = mark.dataset.cells.split(" ");
  const share = Math.min(Math.max((event.clientX - box.x) / box.width, 0), 0.999);
  const here = cells[Math.floor(share * cells.length)];
  return `${here === "-" ? "unknown" : here + " %"} here\n${mark.dataset.about}`;
}
document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest(".chart rect, .chart circle, .chart line, .graph g");
  const text = mark && (mark.dataset.about || mark.querySelector(":scope > title")) && textOf(mark, event);
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const beside = event.clientX + 14 + tip.offsetWidth > innerWidth ? event.clientX - tip.offsetWidth - 10 : event.clientX + 14;
  tip.style.left = `${Math.max(beside, 4)}px`;
  tip.style.top = `${event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18}px`;
});
for (const name of ["pointerleave", "scroll", "keydown"])
  document.addEventListener(name, () => { tip.hidden = true; }, { passive: true });
