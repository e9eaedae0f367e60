// What reads what: sources on the left, what is made of them to the right. Laid out once, and then only told what changed.
import { api } from "/page/app.js";
import { el, freshness, number, put, span, svg } from "/page/dom.js";

const WIDTH = 224, HEIGHT = 46, ACROSS = 120, DOWN = 18;

export function graph() {
  const place = el("div", { class: "card graph", tabindex: "0", "aria-label": "Graph of sources, stream tables and lake tables" });
  const list = el("tbody");
  let known = "";
  let parts = null;

  async function update() {
    const found = await api.get("graph");
    const structure = JSON.stringify([found.nodes.map((n) => n.name).sort(), found.edges.map((e) => [e.source, e.target])]);
    if (structure !== known) {
      known = structure;
      parts = draw(found);
      place.replaceChildren(found.nodes.length ? parts.picture : el("p", { class: "dim" }, "There is no stream table yet."));
    }
    const moving = new Set(found.edges.filter((e) => e.rate > 0).flatMap((e) => [e.source, e.target]));
    for (const node of found.nodes) tell(parts.nodes.get(node.name), node, moving.has(node.name));
    for (const edge of found.edges) {
      const { path, rate } = parts.edges.get(`${edge.source}\n${edge.target}`);
      path.setAttribute("class", edge.rate > 0 ? "edge flows" : "edge");
      // Ten times as many rows make a stroke one step thicker.
      path.style.strokeWidth = edge.rate > 0 ? `${Math.min(6, 2 + Math.max(0, Math.log10(edge.rate)))}px` : "";
      put(rate, edge.rate > 0 ? speed(edge.rate) : "");
    }
    list.replaceChildren(...found.edges.map((e) => el("tr", {}, el("td", {}, e.source), el("td", {}, e.target), el("td", { class: "n" }, speed(e.rate)))));
  }

  const node = el("div", {}, el("h1", {}, "Graph"),
    el("p", { class: "dim" }, "Edges show the rows per second of the last minute, dots how fresh a stream table is. Press one for its page."), place,
    el("details", { class: "card" }, el("summary", {}, "The same as a list"),
      el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["From", "To", "Rows per second"].map((h) => el("th", { scope: "col" }, h)))), list))));
  return { node, title: "Graph", update };
}

function speed(rate) {
  return rate === 0 ? "0/s" : rate < 0.1 ? `${number(rate * 60)}/min` : `${rate < 10 ? rate.toFixed(1) : number(rate)}/s`;
}

function tell(part, node, moves) {
  part.group.classList.toggle("moves", moves);
  if (node.kind !== "stream table") return;
  for (const kind of ["good", "warn", "bad"]) part.group.classList.toggle(kind, kind === freshness(node).kind);
  put(part.sub, node.status !== "ACTIVE" ? node.status.toLowerCase() : node.staleness ? `${span(node.staleness)} behind` : "fresh");
  part.title.textContent = `${node.name}: ${part.sub.textContent}, ${number(node.pending)} changes pending, every ${node.schedule}`;
}

// Each node stands to the right of all it reads; within a column it stands near those.
export function layers(nodes, edges) {
  const reads = new Map(nodes.map((n) => [n.name, []]));
  for (const edge of edges) reads.get(edge.target)?.push(edge.source);
  const depth = new Map();
  const deep = (name, path) => {
    if (!depth.has(name) && !path.has(name)) depth.set(name, Math.max(-1, ...(reads.get(name) ?? []).map((s) => deep(s, new Set(path).add(name)))) + 1);
    return depth.get(name) ?? 0;
  };
  nodes.forEach((n) => deep(n.name, new Set()));
  const columns = [];
  for (const node of [...nodes].sort((a, b) => a.name.localeCompare(b.name))) (columns[depth.get(node.name)] ??= []).push(node);
  const row = new Map();
  for (const column of columns) {
    const middle = (node) => {
      const above = (reads.get(node.name) ?? []).map((s) => row.get(s)).filter((y) => y !== undefined);
      return above.length ? above.reduce((a, b) => a + b, 0) / above.length : Infinity;
    };
    const placed = column.map((node) => [middle(node), node]).sort((a, b) => (a[0] === b[0] ? 0 : a[0] - b[0]));
    placed.forEach(([, node], i) => row.set(node.name, i));
    column.splice(0, column.length, ...placed.map(([, node]) => node));
  }
  return columns;
}

function draw({ nodes, edges }) {
  const columns = layers(nodes, edges);
  const at = new Map();
  const tallest = Math.max(1, ...columns.map((c) => c.length));
  // Short columns stand in the middle of what they are read by.
  const above = (column) => ((tallest - column.length) * (HEIGHT + DOWN)) / 2;
  columns.forEach((column, x) => column.forEach((node, y) => at.set(node.name, { x: 12 + x * (WIDTH + ACROSS), y: 12 + above(column) + y * (HEIGHT + DOWN) })));
  const width = columns.length * (WIDTH + ACROSS) - ACROSS + 24;
  const height = tallest * (HEIGHT + DOWN) + 12;
  const parts = { nodes: new Map(), edges: new Map() };
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group" });
  const rates = [];
  for (const edge of edges) {
    const from = at.get(edge.source), to = at.get(edge.target);
    const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
    const path = svg("path", { class: "edge", d: `M${x1},${y1} C${x1 + ACROSS / 2},${y1} ${x2 - ACROSS / 2},${y2} ${x2},${y2}` });
    const rate = svg("text", { class: "rate", x: x1 + 0.62 * (x2 - x1), y: y1 + 0.72 * (y2 - y1) + 4, "text-anchor": "middle" });
    picture.append(path);
    rates.push(rate);
    parts.edges.set(`${edge.source}\n${edge.target}`, { path, rate });
  }
  // Numbers lie on all strokes.
  picture.append(...rates);
  for (const node of nodes) {
    const { x, y } = at.get(node.name);
    const stream = node.kind === "stream table";
    const title = svg("title", {}, `${node.name}: ${node.kind}`);
    // A lake's own tables are named `lake: schema.table`.
    const [lake, inside] = node.kind === "lake table" && node.name.includes(": ") ? node.name.split(": ", 2) : ["", node.name];
    const sub = svg("text", { class: "sub", x: x + 26, y: y + 36 }, lake ? `lake table in ${lake}` : node.kind);
    const short = inside.length > 26 ? `…${inside.slice(-25)}` : inside;
    const content = [title, svg("rect", { x, y, width: WIDTH, height: HEIGHT }), svg("circle", { class: "dot", cx: x + 14, cy: y + 17, r: 5 }), svg("text", { x: x + 26, y: y + 20 }, short), sub];
    const group = svg("g", { class: stream ? "node" : node.kind === "table" ? "node table" : "node lake" },
      stream ? svg("a", { href: `#/table/${encodeURIComponent(node.name)}`, "aria-label": `${node.name}, stream table` }, content) : content);
    picture.append(group);
    parts.nodes.set(node.name, { group, sub, title });
  }
  return { ...parts, picture };
}
