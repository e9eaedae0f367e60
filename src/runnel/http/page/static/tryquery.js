// Paste a query, see whether and how it would be maintained, and make a stream table of it.
import { api, say } from "/page/app.js";
import { el } from "/page/dom.js";

export function tryQuery() {
  const query = el("textarea", { id: "query", spellcheck: "false", placeholder: "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer" });
  const checks = el("div", { "aria-live": "polite" });
  const name = el("input", { id: "new-name", placeholder: "public.totals" });
  const schedule = el("input", { id: "new-schedule", value: "5s" });
  const mode = el("select", { id: "new-mode" }, ["AUTO", "DIFFERENTIAL", "FULL"].map((each) => el("option", {}, each)));
  const check = el("button", { type: "button", class: "main", onclick: validate }, "Check it");
  const make = el("button", { type: "button", onclick: create }, "Create the stream table");

  async function validate() {
    check.disabled = true;
    try {
      const found = await api.post("validate", { query: query.value });
      if (found) checks.replaceChildren(el("ul", { class: "notes" }, found.checks.map((c) =>
        el("li", { class: c.severity === "OK" || c.severity === "INFO" ? "good" : c.severity === "ERROR" ? "bad" : "warn" }, el("strong", {}, c.check_name.replaceAll("_", " ")), ": ", el("span", {}, c.result)))));
    } catch (error) {
      checks.replaceChildren(el("ul", { class: "notes" }, el("li", { class: "bad" }, error.message)));
    }
    check.disabled = false;
  }

  async function create() {
    make.disabled = true;
    try {
      const answer = await api.post("create", { name: name.value, query: query.value, schedule: schedule.value, mode: mode.value });
      if (answer) {
        say(answer.words);
        location.hash = `#/table/${encodeURIComponent(name.value.includes(".") ? name.value : `public.${name.value}`)}`;
      }
    } catch (error) {
      say(error.message, false);
    }
    make.disabled = false;
  }

  const node = el("div", {}, el("h1", {}, "Try a query"),
    el("div", { class: "card" }, el("label", { for: "query" }, "Query"), query, el("p", { class: "row" }, check, el("span", { class: "dim" }, "Nothing is created by checking.")), checks),
    el("div", { class: "card" }, el("h2", {}, "Create it"),
      el("div", { class: "row" }, el("label", {}, "Name", name), el("label", {}, "Schedule", schedule), el("label", {}, "Mode", mode)), el("p", {}, make)));
  return { node, title: "Try a query", update: async () => { await api.get("me"); } };
}
