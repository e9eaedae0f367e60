// A lake that is watched by stream tables over its own catalog (runnel lake watch).
import { bytes, el, number, span, when } from "/page/dom.js";

const full = (each) => (each.schema_name === "main" ? each.table_name : `${each.schema_name}.${each.table_name}`);
const percent = (value) => (value === null ? "–" : `${value} %`);

const PARTS = [
  ["files", "Files per table", ["Table", "Files", "Bytes", "Rows", "Small"], (each) =>
    [full(each), number(each.files), bytes(each.bytes), number(each.rows), percent(each.small_percent)]],
  ["deletes", "Deletes that wait for compaction", ["Table", "Files", "Rows"], (each) =>
    [full(each), number(each.delete_files), number(each.deleted_rows)]],
  ["lag", "Refresh to snapshot", ["Stream table", "Snapshots", "Average", "Longest"], (each) =>
    [each.stream_table, number(each.snapshots), each.average_ms === null ? "–" : span(each.average_ms / 1000), each.longest_ms === null ? "–" : span(each.longest_ms / 1000)]],
  ["writers", "Who wrote what", ["Writer", "Did", "Table", "Snapshots", "Last in"], (each) =>
    [each.writer, each.did.replaceAll("_", " "), full(each), number(each.snapshots), `snapshot ${each.last_snapshot}`]],
];

export function watched(found) {
  return found.map((lake) => el("section", { class: "card", "aria-label": `Lake ${lake.name}` },
    el("h2", {}, `Watched: ${lake.name}`),
    el("ul", { class: "notes" }, lake.alerts.map((each) => el("li", { class: "warn" }, `${full(each)} has ${number(each.small_files)} small files, of ${bytes(each.average_bytes)} on average.`,
      el("small", {}, `Merge them: runnel lake maintain ${lake.name}`)))),
    minutes(lake.minutes),
    el("div", { class: "two" }, PARTS.filter(([key]) => lake[key].length).map(([key, title, heads, cells]) => el("div", { class: "scroll" }, el("h3", {}, title),
      el("table", {}, el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
        el("tbody", {}, lake[key].map((each) => el("tr", {}, cells(each).map((cell) => el("td", {}, cell)))))))))));
}

function minutes(found) {
  const [last] = found;
  if (!last) return null;
  const most = Math.max(...found.map((each) => each.snapshots));
  return el("p", {}, `${number(last.snapshots)} ${last.snapshots === 1 ? "snapshot" : "snapshots"} in the last busy minute, ${number(last.published)} of them by stream tables, `, when(last.minute),
    `; at most ${number(most)} in one of the last ${number(found.length)} busy minutes.`);
}
