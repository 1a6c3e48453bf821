// What the built site's search lists first: for each query on standard input, a line with the page of the first result.
//   node tests/site_search.js FOLDER < queries
const fs = require("fs");
const vm = require("vm");

const folder = process.argv[2];
const scripts = fs.readFileSync(`${folder}/search.html`, "utf-8").matchAll(/<script src="([^"?]+)/g);
const wanted = /(stemmer|language_data|searchtools|searchindex)\.js$/;
const texts = [...scripts].filter(([, path]) => wanted.test(path)).map(([, path]) => fs.readFileSync(`${folder}/${path}`, "utf-8"));
const code = new vm.Script([...texts, "Search"].join(";\n"));

for (const query of fs.readFileSync(0, "utf-8").split("\n").filter(Boolean)) {
  const page = {
    URLSearchParams,
    location: { search: `?q=${encodeURIComponent(query)}` },
    document: { getElementById: () => null },
    localStorage: { setItem: () => {} },
    _: (text) => text,
    _ready: () => {},
    SPHINX_HIGHLIGHT_ENABLED: false,
  };
  page.window = page;
  const search = code.runInContext(vm.createContext(page));
  const results = search._performSearch(...search._parseQuery(query));
  console.log(results.length ? results.at(-1)[0] : "nothing");
}
