// From a snapshot of a lake back to what it was made of.
import { api } from "/page/app.js";
import { el, link, number, span, when } from "/page/dom.js";

export function lineage(lake, snapshot) {
  return lake ? one(lake, snapshot) : newest();
}

function newest() {
  const body = el("tbody");
  const none = el("p", { class: "dim", hidden: true }, "No refresh has been published to a lake yet.");
  async function update() {
    const found = await api.get("snapshots");
    none.hidden = found.length > 0;
    body.replaceChildren(...found.map((s) => el("tr", {}, el("td", {}, el("a", { href: `#/lineage/${encodeURIComponent(s.lake)}/${s.snapshot}` }, `${s.lake} ${s.snapshot}`)),
      el("td", { class: "name" }, link(s.name)), el("td", { class: "n" }, number(s.rows)), el("td", {}, when(s.at)))));
  }
  const node = el("div", {}, el("h1", {}, "Lineage"), el("p", { class: "dim" }, "The snapshots that refreshes made last. Press one to see what it was made of."), none,
    el("div", { class: "card scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["Snapshot", "Stream table", "Rows", "When"].map((h) => el("th", { scope: "col" }, h)))), body)));
  return { node, title: "Lineage", update };
}

function one(lake, snapshot) {
  const content = el("div", { class: "card" });
  let drawn = false;
  async function update() {
    if (drawn) return;
    const found = await api.get("lineage", { lake, snapshot });
    drawn = true;
    content.replaceChildren(el("ul", { class: "tree" }, step(found)),
      el("h2", {}, "Transactions behind it"),
      found.transactions.length
        ? el("p", {}, `Between this snapshot and the one before of the same stream table, these transactions of PostgreSQL were committed; those of them that wrote to its sources are in it: ${found.transactions.join(", ")}`)
        : el("p", { class: "dim" }, found.before ? "No transaction was committed between this snapshot and the one before." : "It is the first snapshot of its stream table: all that was committed before."));
  }
  const node = el("div", {}, el("h1", {}, `Snapshot ${snapshot} of ${lake}`), content);
  const failed = (error) => content.replaceChildren(el("p", {}, error.status === 404 ? "No refresh made this snapshot: another writer did, or its record is gone." : error.message));
  return { node, title: `Snapshot ${snapshot}`, update, failed };
}

function step(made) {
  return el("li", {}, el("strong", {}, `Snapshot ${made.snapshot} of ${made.lake}`), ` with ${number(made.rows)} rows added and removed, written `, when(Date.parse(made.written_at.replace(" ", "T")) / 1000),
    el("ul", {}, el("li", {}, `by refresh ${made.refresh_id} of `, link(made.stream_table), made.action ? `: ${made.action}, ${span((made.milliseconds ?? 0) / 1000)}` : "",
      el("ul", {}, made.sources.map((source) => el("li", {}, `from ${source.kind} `, el("strong", {}, source.name), ` at version ${source.version}`, source.made_by ? el("ul", {}, step(source.made_by)) : null))))));
}
