"use strict";
// Keeps a page up to date: times in the viewer's zone, durations that grow, and what the server says has changed.
(() => {
  const root = document.documentElement;
  const AGAIN_MS = 2000; // until the next attempt to connect
  const SILENCE_MS = 20000; // the server sends something every 5 s: after this, it or the network is gone
  let ahead = Number(root.dataset.now) - Date.now(); // the server's clock, relative to ours
  let asOf = Number(root.dataset.asOf); // by the server's clock
  let number = root.dataset.number; // of the publication on the page; -1 after a break: the server may be another one
  let stream = null;
  let heard = 0; // by our clock
  const later = new Map(); // parts that wait until the viewer has finished selecting text in them

  let clock, precise, day, exact; // formats of times
  function prepare() {
    const made = (options) => new Intl.DateTimeFormat(undefined, options);
    clock = made({ timeStyle: "medium" });
    precise = made({ hour: "numeric", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });
    day = made({ dateStyle: "short" });
    exact = made({ year: "numeric", month: "short", day: "numeric", hour: "numeric", minute: "2-digit",
      second: "2-digit", fractionalSecondDigits: 3, timeZoneName: "long" });
  }

  function duration(ms) {
    let seconds = Math.floor(Math.max(0, ms) / 1000);
    const parts = [];
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
      const many = Math.floor(seconds / size);
      seconds %= size;
      if (many || parts.length) parts.push(many ? `${many} ${unit}` : "");
      if (parts.length === 2) break;
    }
    return parts.filter(Boolean).join(" ") || "0 s";
  }
  function localTimes(within) {
    const today = day.format(new Date(Date.now() + ahead));
    for (const each of within.querySelectorAll("time[datetime]")) {
      const at = new Date(each.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const written = (each.dataset.exact ? precise : clock).format(at);
      const text = each.dataset.clock || day.format(at) === today ? written : `${day.format(at)} ${written}`;
      if (each.textContent !== text) each.textContent = text;
      each.title = exact.format(at);
    }
  }
  function grow() {
    const now = Date.now() + ahead;
    for (const each of document.querySelectorAll("[data-since]")) {
      const text = duration(now - Number(each.dataset.since));
      if (each.textContent !== text) each.textContent = text;
    }
  }
  function parsed(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    localTimes(template.content);
    return template.content;
  }
  function isSelected(element) {
    const selection = getSelection();
    return selection && !selection.isCollapsed && selection.containsNode(element, true);
  }
  // The new element keeps what the viewer did to the old one: opened details, scrolled boxes, the focus.
  function replace(before, after) {
    const open = new Map([...before.querySelectorAll("details[data-key]")].map((each) => [each.dataset.key, each.open]));
    for (const each of after.querySelectorAll("details[data-key]")) {
      if (open.has(each.dataset.key)) each.open = open.get(each.dataset.key);
    }
    const scrolled = [...before.querySelectorAll(".scroll, .stack, pre")].map((each) => [each.scrollLeft, each.scrollTop]);
    const focused = before.contains(document.activeElement) ? document.activeElement : null;
    const places = "a, button, input, select, summary, [tabindex]";
    const place = focused ? [...before.querySelectorAll(places)].indexOf(focused) : -1;
    before.replaceWith(after);
    [...after.querySelectorAll(".scroll, .stack, pre")].forEach((each, at) => {
      if (scrolled[at]) [each.scrollLeft, each.scrollTop] = scrolled[at];
    });
    if (place >= 0) after.querySelectorAll(places)[place]?.focus({ preventScroll: true });
  }
  function showPart(id, html) {
    const before = document.getElementById(id);
    if (!before) return;
    if (isSelected(before) || (before.contains(document.activeElement) && document.activeElement.matches("input, select"))) {
      later.set(id, html);
      return;
    }
    later.delete(id);
    const after = parsed(html).firstElementChild;
    if (after) replace(before, after);
  }
  function showRows(rows) {
    const body = document.getElementById("rows");
    if (!body) return;
    const known = new Map([...body.children].map((row) => [row.dataset.key, row]));
    for (const [key, html] of Object.entries(rows.html)) {
      const after = parsed(html).firstElementChild;
      if (known.has(key)) replace(known.get(key), after);
      known.set(key, after);
    }
    let place = body.firstElementChild;
    for (const key of rows.order) {
      const row = known.get(key);
      if (!row) continue;
      if (row === place) place = place.nextElementSibling;
      else body.insertBefore(row, place);
    }
    while (place) {
      const next = place.nextElementSibling;
      place.remove();
      place = next;
    }
  }
  function say(text, isOn) {
    const said = document.getElementById("live");
    if (said) said.textContent = text;
    document.getElementById("light")?.classList.toggle("on", isOn);
  }
  // In place of the server's notice, which comes again with its first news.
  function lose(what, whatNext) {
    end();
    setTimeout(begin, AGAIN_MS);
    say("not connected", false);
    root.classList.add("stale");
    const notice = document.getElementById("part-notice");
    if (!notice || notice.dataset.lost === what) return;
    const alert = document.createElement("p"), time = document.createElement("time"), since = document.createElement("span");
    time.dateTime = new Date(asOf).toISOString();
    since.dataset.since = asOf;
    since.setAttribute("aria-live", "off"); // it grows every second
    alert.className = "alert";
    alert.append(`${what} This page shows the state as of `, time, ", ", since, ` ago. ${whatNext}`);
    notice.replaceChildren(alert);
    notice.dataset.lost = what;
    localTimes(notice);
    grow();
  }
  function begin() {
    if (stream || document.hidden || !root.dataset.follow) return;
    const address = new URL(location.href);
    address.hash = "";
    address.searchParams.set("live", number);
    heard = Date.now();
    const opened = stream = new EventSource(address);
    stream.addEventListener("error", () => {
      if (opened.readyState !== EventSource.CLOSED) return unanswered();
      lose("This page gets no updates: too many pages are open, or you are no longer logged in.",
        "It tries again every few seconds; reload it to log in.");
    });
    stream.addEventListener("page", (event) => {
      const news = JSON.parse(event.data);
      if (news.gone) {
        return lose("The daemon no longer has what this page shows.", "Reload the page to see what it says.");
      }
      heard = Date.now();
      ahead = news.now - heard;
      asOf = news.as_of;
      root.classList.remove("stale");
      say("live", true);
      for (const [id, html] of Object.entries(news.parts || {})) showPart(id, html);
      if (news.rows) showRows(news.rows);
      for (const each of document.querySelectorAll("footer time")) each.dateTime = new Date(asOf).toISOString();
      localTimes(document.querySelector("footer"));
      grow();
    });
  }
  function unanswered() {
    lose("The daemon does not answer.", "The page continues by itself as soon as it does.");
  }
  function end() {
    stream?.close();
    stream = null;
    number = "-1";
  }
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    const search = document.getElementById("q");
    if (!search || document.activeElement.matches("input, select, textarea")) return;
    event.preventDefault();
    search.focus();
    search.select();
  });
  // The page is whole without us, so it is painted first: the formats alone take as long as drawing it.
  requestAnimationFrame(() => setTimeout(() => {
    prepare();
    localTimes(document);
    grow();
    begin();
    document.addEventListener("visibilitychange", () => (document.hidden ? end() : begin()));
    addEventListener("pagehide", end);
    addEventListener("pageshow", (event) => event.persisted && begin());
    setInterval(() => {
      grow();
      if (stream && Date.now() - heard > SILENCE_MS) unanswered();
      for (const [id, html] of [...later]) showPart(id, html);
    }, 1000);
  }));
})();
