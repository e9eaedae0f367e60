// Every stream table at a glance; what wants attention stands on top, in words.
import { api } from "/page/app.js";
import { ago, bytes, changes, el, figures, freshness, link, number, put, span, state } from "/page/dom.js";
import { watched } from "/page/watch.js";

const COLUMNS = [
  ["name", "Stream table", ""], ["status", "State", ""], ["staleness", "Freshness", ""], ["refreshed", "Last refresh", "wide"],
  ["ms", "Took", "n wide"], ["inserted", "Rows changed", "n"], ["pending", "Pending", "n"], ["schedule", "Schedule", "wide"], ["mode", "Mode", "wide"],
];

export function overview() {
  const notes = el("ul", { class: "notes", "aria-label": "What wants attention" });
  const cards = ["Engine", "Spark", "Lake"].map((name) => [name, el("div", {})]);
  const body = el("tbody");
  const count = el("span", { class: "dim" });
  const filter = el("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter by name", oninput: () => order() });
  const work = el("div", { class: "card", hidden: true });
  const lakes = el("div", {});
  let sort = { by: "name", down: false };
  let tables = [];
  const lines = new Map();

  const heads = COLUMNS.map(([key, words, kind]) =>
    el("th", { class: kind, scope: "col" }, el("button", { type: "button", onclick: () => { sort = { by: key, down: sort.by === key && !sort.down }; order(); } }, words)));

  function order() {
    const words = filter.value.toLowerCase();
    const value = (each) => each[sort.by] ?? "";
    const wanted = tables.filter((each) => each.name.toLowerCase().includes(words));
    wanted.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (sort.down ? -1 : 1));
    heads.forEach((head, i) => head.setAttribute("aria-sort", COLUMNS[i][0] === sort.by ? (sort.down ? "descending" : "ascending") : "none"));
    const rows = wanted.map((each) => lines.get(each.name).row);
    if (rows.length !== body.children.length || rows.some((row, i) => body.children[i] !== row)) body.replaceChildren(...rows);
    put(count, `${number(wanted.length)} of ${number(tables.length)}`);
  }

  function line(name) {
    const parts = { state: el("span", { class: "state" }), behind: el("span"), bar: el("i"), at: el("span"), ms: el("span"), rows: el("span"), pending: el("span"), schedule: el("span"), mode: el("span") };
    const bar = el("div", { class: "bar", role: "img" }, parts.bar);
    const row = el("tr", {},
      el("td", { class: "name" }, link(name)), el("td", {}, parts.state), el("td", { class: "fresh" }, parts.behind, bar),
      el("td", { class: "wide" }, parts.at), el("td", { class: "n wide" }, parts.ms), el("td", { class: "n" }, parts.rows),
      el("td", { class: "n" }, parts.pending), el("td", { class: "wide" }, parts.schedule), el("td", { class: "wide" }, parts.mode));
    return { row, parts, meter: bar };
  }

  function fillLine({ parts, meter }, each) {
    const { share, kind } = freshness(each);
    put(parts.state, each.status);
    parts.state.className = `state ${each.status}`;
    put(parts.behind, each.staleness === 0 ? "fresh" : each.staleness === null ? "not filled yet" : `${span(each.staleness)} behind`);
    parts.bar.style.width = `${Math.round(share * 100)}%`;
    parts.bar.className = kind;
    meter.setAttribute("aria-label", `${Math.round(share * 100)} percent of its schedule has passed`);
    put(parts.at, ago(each.refreshed));
    put(parts.ms, each.ms === null ? "–" : span(each.ms / 1000));
    const text = each.inserted === null ? "–" : `+${each.inserted} −${each.deleted}`;
    if (parts.rows.dataset.text !== text) {
      parts.rows.dataset.text = text;
      parts.rows.replaceChildren(...changes(each.inserted, each.deleted));
    }
    put(parts.pending, number(each.pending));
    put(parts.schedule, each.schedule);
    put(parts.mode, each.refresh_mode === each.mode ? each.mode : `${each.refresh_mode} (${each.mode})`);
  }

  function attention(found) {
    const text = JSON.stringify(found);
    if (notes.dataset.text === text) return;
    notes.dataset.text = text;
    notes.replaceChildren(...(found.length ? found : [null]).map((note) => note === null
      ? el("li", { class: "good" }, tables.length ? "Everything is well: no stream table is late, failing or growing." : "There is no stream table yet. ", tables.length ? null : el("a", { href: "#/try" }, "Try a query"))
      : el("li", { class: note.severity }, note.name ? [link(note.name), " "] : null, note.words, el("small", {}, note.remedy))));
  }

  async function update() {
    const [found, attached, watches] = await Promise.all([api.get("overview"), api.get("lakes"), api.get("watch")]);
    tables = found.tables;
    const names = new Set(tables.map((each) => each.name));
    for (const name of lines.keys()) if (!names.has(name)) lines.delete(name);
    for (const each of tables) {
      if (!lines.has(each.name)) lines.set(each.name, line(each.name));
      fillLine(lines.get(each.name), each);
    }
    order();
    attention(found.attention);
    const { engine } = found;
    const lake = attached[0];
    cards[0][1].replaceChildren(figures([
      ["State", engine.up ? "running" : "not running"], ["Since", ago(engine.started)], ["Being refreshed", number(engine.pace.running ?? 0)],
      ["Waiting", number(engine.pace.waiting ?? 0)], ["Version", engine.version ?? "–"]]));
    cards[1][1].replaceChildren(figures([
      ["Master", engine.spark ?? "–"], ["Jobs running", number(engine.pace.jobs ?? 0)], ["Workers", number(engine.workers ?? 0)], ["Long work", number(found.progress.length)],
      ["Prepared plans", number(engine.plans.plans ?? 0)]]));
    cards[2][1].replaceChildren(lake ? figures([
      ["Snapshots", number(lake.snapshots)], ["Files", number(lake.files)], ["Bytes", bytes(lake.bytes)], ["Small files", number(lake.small_files)],
      ["Newest", lake.snapshot_timestamp_seconds ? ago(lake.snapshot_timestamp_seconds) : "–"]]) : el("p", { class: "dim" }, "No lake is attached."));
    work.hidden = found.progress.length === 0;
    work.replaceChildren(el("h2", {}, "Under way"), ...found.progress.map(progress));
    const text = JSON.stringify(watches);
    if (lakes.dataset.text !== text) {
      lakes.dataset.text = text;
      lakes.replaceChildren(...watched(watches));
    }
  }

  const node = el("div", {},
    el("h1", {}, "Overview"), notes,
    el("div", { class: "grid" }, cards.map(([name, content]) => el("section", { class: "card", "aria-label": name }, el("h2", {}, name), content))),
    work, lakes,
    el("section", { class: "card", "aria-label": "Stream tables" },
      el("div", { class: "row" }, el("h2", {}, "Stream tables"), filter, count),
      el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, heads)), body))));
  return { node, title: "Overview", update };
}

export function progress(each) {
  const share = each.total ? Math.min(1, each.done / each.total) : 0;
  const bar = el("i");
  bar.style.width = `${share * 100}%`;
  return el("p", {}, each.name ? link(each.name) : null, ` ${each.command}, ${each.phase}, for ${span(each.elapsed)}`,
    each.total ? `, ${number(each.done)} of about ${number(each.total)} rows` : "", each.remaining ? `, about ${span(each.remaining)} to go` : "",
    el("span", { class: "bar", role: "img", "aria-label": `${Math.round(share * 100)} percent` }, bar));
}
