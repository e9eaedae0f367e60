// Elements, words and numbers. Text always goes in as text: nothing of a table's name, query or error is ever read as HTML.

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// Change a text only if it is another one, so that screen readers and selections are left alone.
export function put(node, text) {
  const wanted = text === null || text === undefined ? "" : String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function number(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) if (value >= size) return `${(value / size).toFixed(1)} ${unit}`;
  return `${Math.round(value)} B`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return seconds === 0 ? "0 s" : `${Math.round(seconds * 1000)} ms`;
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
  return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
}

export function ago(moment) {
  if (!moment) return "never";
  const seconds = Date.now() / 1000 - moment;
  return seconds < 1 ? "just now" : `${span(seconds < 10 ? Math.round(seconds * 10) / 10 : seconds)} ago`;
}

// A moment as the time that has passed, which goes on passing.
export function when(moment) {
  return el("time", { "data-at": moment, datetime: moment ? new Date(moment * 1000).toISOString() : null, title: moment ? new Date(moment * 1000).toLocaleString() : null }, ago(moment));
}

export function tick() {
  for (const each of document.querySelectorAll("time[data-at]")) put(each, ago(Number(each.dataset.at)));
}

export function state(word) {
  return el("span", { class: `state ${word}` }, word);
}

export function changes(inserted, deleted) {
  if (inserted === null || inserted === undefined) return ["–"];
  return [el("span", { class: inserted ? "plus" : "dim" }, `+${number(inserted)}`), " ", el("span", { class: deleted ? "minus" : "dim" }, `−${number(deleted)}`)];
}

// How much of a schedule has passed: good within it, a warning beyond, bad far beyond.
export function freshness(table) {
  if (table.status === "ERROR" || table.errors > 0) return { share: 1, kind: "bad" };
  if (table.status !== "ACTIVE") return { share: 1, kind: "warn" };
  if (table.period === null || table.staleness === null) return { share: 0, kind: "good" };
  const share = table.staleness / table.period;
  return { share: Math.min(1, share), kind: table.staleness > 3 * table.period + 5 ? "bad" : table.staleness > table.period + 5 ? "warn" : "good" };
}

export function figures(pairs) {
  return el("dl", { class: "figures" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

export function link(name) {
  return el("a", { href: `#/table/${encodeURIComponent(name)}` }, name);
}
