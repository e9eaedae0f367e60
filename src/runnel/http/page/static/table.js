// One stream table: what it is, what its refreshes did and where their time went, and buttons.
import { api, say } from "/page/app.js";
import { ago, bytes, changes, el, figures, freshness, link, number, put, span, state, svg, when } from "/page/dom.js";
import { progress } from "/page/overview.js";

// The steps that the engine tells, in the six that people think in.
const STEPS = { changes: "read", read: "read", plan: "plan", load: "spark", spark: "spark", merge: "merge", apply: "apply", publish: "publish", upload: "publish", commit: "rest" };
const KINDS = ["read", "plan", "spark", "merge", "apply", "publish", "rest"];
const ACTIONS = [["refresh", "Refresh"], ["verify", "Verify"], ["suspend", "Suspend"], ["resume", "Resume"], ["cancel", "Cancel"]];

export function table(name) {
  const part = (words) => el("section", { class: "card", "aria-label": words }, el("h2", {}, words), el("div"));
  const parts = {
    now: el("div"), progress: el("div"), query: part("Query"), plan: part("Plan"), timeline: part("Refreshes"), chosen: el("div", { "aria-live": "polite" }),
    delta: part("Rows of the last change"), history: part("History"), sources: part("Sources and readers"), lake: part("Lake"),
  };
  const badge = el("span", { class: "state" });
  const buttons = ACTIONS.map(([action, words]) => el("button", { type: "button", onclick: (event) => press(event.currentTarget, action) }, words));
  let older = [];
  let picked = null;
  let newest = null;
  let id = null;
  let looked = 0;

  const content = (key) => parts[key].lastElementChild;
  content("plan").append(el("p", { class: "dim" }, "The engine is being asked …"));

  async function press(button, action) {
    button.disabled = true;
    try {
      const answer = await api.post("act", { action, name });
      if (answer) say(`${name}: ${answer.words}`, answer.ok);
      await update();
    } catch (error) {
      say(error.message, false);
    }
    button.disabled = false;
  }

  async function update() {
    const found = await api.get("table", { name });
    id = found.pgt_id;
    badge.className = `state ${found.status}`;
    put(badge, found.status);
    buttons[2].hidden = found.status !== "ACTIVE";
    buttons[3].hidden = found.status === "ACTIVE";
    parts.now.replaceChildren(
      ...(found.error ? [el("p", { class: "error" }, found.error)] : []),
      figures([
        ["Freshness", found.staleness ? `${span(found.staleness)} behind` : "fresh"], ["Schedule", found.schedule], ["Last refresh", ago(found.refreshed)],
        ["Pending", number(found.pending)], ["Rows", number(found.rows)], ["Size", bytes(found.bytes)], ["State", bytes(found.state_bytes)],
        ["Mode", found.refresh_mode === found.mode ? found.mode : `${found.refresh_mode} (${found.mode})`], ["Owner", found.owner]]));
    parts.progress.replaceChildren(...(found.progress ? [el("div", { class: "card" }, progress(found.progress))] : []));
    put(query, found.query);
    const top = found.history[0]?.id ?? 0;
    // Rows are kept for those who look, so they look again now and then.
    if (top === newest && Date.now() - looked > 60000) delta();
    if (top !== newest) {
      newest = top;
      timeline(found.history);
      history([...found.history, ...older]);
      sources(found);
      lake(found);
      delta();
      plan();
    }
  }

  const query = el("pre", { tabindex: "0", class: "text" });
  content("query").append(query);

  async function plan() {
    try {
      const { lines, why } = await api.get("explain", { name });
      content("plan").replaceChildren(why ? el("p", { class: "dim" }, why) : el("pre", { tabindex: "0" }, lines.join("\n")));
    } catch (error) {
      content("plan").replaceChildren(el("p", { class: "dim" }, error.message));
    }
  }

  function timeline(refreshes) {
    const shown = refreshes.slice(0, 60).reverse();
    // Nearly all fit: one long build does not flatten the rest.
    const times = shown.map((r) => r.ms ?? 0).sort((a, b) => a - b);
    const longest = Math.max(1, times[Math.floor((times.length - 1) * 0.9)] ?? 1);
    const most = Math.max(1, ...shown.map((r) => Math.max(r.inserted ?? 0, r.deleted ?? 0)));
    content("timeline").replaceChildren(
      el("div", { class: "chart" },
        el("div", { class: "axis", "aria-hidden": "true" }, [longest, longest / 2, 0].map((ms) => el("span", {}, span(ms / 1000)))),
        el("div", { class: "timeline", role: "list" }, shown.map((r) => el("div", { role: "listitem", class: "slot" }, bar(r, longest, most)))),
        el("div", { class: "axis rows", "aria-hidden": "true" }, el("span", {}, `+${number(most)}`), el("span", {}, `−${number(most)}`))),
      el("p", { class: "dim" }, "The newest on the right, split into its steps; below, the rows that it added and removed. Press one for its figures."),
      el("ul", { class: "key" }, KINDS.map((kind) => el("li", {}, el("i", { class: `s-${kind}` }), kind === "rest" ? "other" : kind))), parts.chosen);
  }

  function bar(refresh, longest, most) {
    const words = `${refresh.action} ${refresh.status}, ${span((refresh.ms ?? 0) / 1000)}, plus ${refresh.inserted ?? 0}, minus ${refresh.deleted ?? 0} rows`;
    const height = Math.min(100, Math.max(3, (100 * (refresh.ms ?? 0)) / longest));
    const split = refresh.status === "FAILED" ? [["failed", 1]] : shares(refresh.timings);
    let y = 100;
    const pieces = split.map(([kind, share]) => {
      y -= share * height;
      return svg("rect", { class: `s-${kind}`, x: 0, y, width: 10, height: share * height });
    });
    // One that took longer than fits is cut open at its top.
    if ((refresh.ms ?? 0) > longest) pieces.push(svg("rect", { class: "s-cut", x: 0, y: 5, width: 10, height: 2 }));
    const [up, down] = [refresh.inserted ?? 0, refresh.deleted ?? 0].map((rows) => (rows ? Math.max(2, (20 * Math.log1p(rows)) / Math.log1p(most)) : 0));
    return el("button", { type: "button", "aria-label": words, title: words, onclick: () => pick(refresh) },
      svg("svg", { class: "steps", viewBox: "0 0 10 100", preserveAspectRatio: "none", "aria-hidden": "true" }, pieces),
      svg("svg", { class: "rows", viewBox: "0 0 10 42", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { class: "s-plus", x: 0, y: 20 - up, width: 10, height: up }), svg("rect", { class: "s-line", x: 0, y: 20.5, width: 10, height: 0.7 }), svg("rect", { class: "s-minus", x: 0, y: 22, width: 10, height: down })));
  }

  function shares(timings) {
    const sums = Object.fromEntries(KINDS.map((kind) => [kind, 0]));
    for (const [step, ms] of Object.entries(timings ?? {})) sums[STEPS[step] ?? "rest"] += ms;
    const total = Object.values(sums).reduce((a, b) => a + b, 0) || 1;
    return KINDS.filter((kind) => sums[kind] > 0).map((kind) => [kind, sums[kind] / total]);
  }

  function pick(refresh) {
    picked = refresh;
    parts.chosen.replaceChildren(el("p", {}, el("strong", {}, `Refresh ${refresh.id}: `), `${refresh.action}, `, when(refresh.at), `, ${span((refresh.ms ?? 0) / 1000)}. `,
      Object.entries(refresh.timings ?? {}).map(([step, ms]) => `${step} ${ms.toFixed(1)} ms`).join(", "), refresh.reason ? `. ${refresh.reason}` : ""));
  }

  function history(refreshes) {
    const rows = refreshes.map((r) => el("tr", {},
      el("td", { class: "n wide" }, String(r.id)), el("td", {}, when(r.at)), el("td", {}, state(r.status)), el("td", { class: "wide" }, r.action), el("td", { class: "n" }, span((r.ms ?? 0) / 1000)),
      el("td", { class: "n wide" }, number(r.read)), el("td", { class: "n" }, changes(r.inserted, r.deleted)), el("td", { class: "wide" }, r.error ? el("span", { class: "error" }, r.error) : r.reason ?? "")));
    const more = el("button", { type: "button", onclick: async () => {
      older = older.concat(await api.get("history", { name, before: refreshes[refreshes.length - 1].id }));
      history([...refreshes.slice(0, 60), ...older]);
    } }, "Older");
    const heads = [["Refresh", "n wide"], ["When", ""], ["End", ""], ["Action", "wide"], ["Took", "n"], ["Read", "n wide"], ["Rows", "n"], ["Why, or error", "wide"]];
    content("history").replaceChildren(el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map(([h, c]) => el("th", { scope: "col", class: c }, h)))), el("tbody", {}, rows))),
      refreshes.length >= 60 ? more : "");
  }

  async function delta() {
    looked = Date.now();
    const found = await api.get("delta", { name }).catch((error) => ({ rows: [], why: error.message }));
    content("delta").replaceChildren(found.rows.length ? el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "±"), found.columns.map((c) => el("th", { scope: "col" }, c)))),
      el("tbody", {}, found.rows.map(([weight, ...values]) => el("tr", { class: weight > 0 ? "plus" : "minus" }, el("td", {}, weight > 0 ? `+${weight}` : `−${-weight}`), values.map((v) => el("td", {}, v ?? "NULL")))))))
      : el("p", { class: "dim" }, found.why));
  }

  function sources(found) {
    content("sources").replaceChildren(el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ["Source", "Kind", "Changes by", "Pending", "Buffer"].map((h) => el("th", { scope: "col" }, h)))),
      el("tbody", {}, found.sources.map((s) => el("tr", {}, el("td", { class: "name" }, s.kind === "stream_table" ? link(s.name) : s.name), el("td", {}, s.kind.replace("_", " ")), el("td", {}, s.capture ?? "–"), el("td", { class: "n" }, number(s.pending)), el("td", { class: "n" }, bytes(s.bytes))))))),
      el("p", {}, "Read by: ", found.readers.length ? found.readers.map((r, i) => [i ? ", " : "", link(r)]) : el("span", { class: "dim" }, "no other stream table")));
  }

  function lake(found) {
    parts.lake.hidden = !found.sink?.lake;
    if (!found.sink?.lake) return;
    content("lake").replaceChildren(
      el("p", {}, `Published as ${found.sink.lake}: ${found.sink.lake_schema}.${found.sink.view_name}, mode ${found.sink.mode}.`),
      el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["Snapshot", "Refresh", "Rows", "When"].map((h) => el("th", { scope: "col" }, h)))),
        el("tbody", {}, found.snapshots.map((s) => el("tr", {}, el("td", {}, el("a", { href: `#/lineage/${encodeURIComponent(s.lake)}/${s.snapshot}` }, String(s.snapshot))), el("td", {}, String(s.refresh_id)), el("td", { class: "n" }, number(s.rows)), el("td", {}, when(s.at))))))));
  }

  const node = el("div", {},
    el("div", { class: "row" }, el("h1", {}, name), badge), el("div", { class: "row", role: "group", "aria-label": "Actions" }, buttons), el("br"),
    parts.progress, el("div", { class: "card" }, parts.now), parts.timeline,
    el("div", { class: "two" }, parts.query, parts.plan, parts.delta, parts.sources, parts.lake), el("br"), parts.history);
  const failed = (error) => { if (error.status === 404) parts.now.replaceChildren(el("p", {}, `There is no stream table ${name}.`)); };
  return { node, title: name, update, failed };
}
