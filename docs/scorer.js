// How Sphinx's search orders its results: first a page whose title, or whose own name, is what the reader asked for.
// Sphinx's own order puts classes and functions of that name above it.
const asked = (new URLSearchParams(window.location.search).get("q") ?? "").toLowerCase().trim();

var Scorer = {
  score: ([docname, title, anchor, description, score, filename, kind]) => {
    if (anchor !== "") return score; // a section, a class or a function
    if (title.toLowerCase() === asked) return score + 3000;
    if (docname.split("/").pop() === asked) return score + 2000;
    return kind === "title" ? score + 1000 : score; // most of the title
  },
  // Sphinx's own figures.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
