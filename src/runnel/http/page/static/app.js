// The frame: which page is shown, who asks, and what keeps it live.
import { el, put, tick } from "/page/dom.js";
import { overview } from "/page/overview.js";
import { graph } from "/page/graph.js";
import { table } from "/page/table.js";
import { lineage } from "/page/lineage.js";
import { tryQuery } from "/page/tryquery.js";

const EVERY = 2000;
const PAGES = { "": overview, graph, table, lineage, try: tryQuery };
const main = document.getElementById("main");
let shown = null;

export class Refused extends Error {
  constructor(status, answer) {
    super([answer.error?.message ?? answer.error ?? "It did not work.", answer.detail, answer.hint].filter(Boolean).join(" "));
    this.status = status;
  }
}

async function request(path, options = {}) {
  const token = sessionStorage.getItem("token");
  const headers = { ...(token ? { Authorization: `Bearer ${token}` } : {}), ...(options.body ? { "Content-Type": "application/json" } : {}) };
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, found);
  return found;
}

export const api = {
  get: (name, values = {}) => request(`/api/${name}?${new URLSearchParams(values)}`),
  // What changes something asks for a token first, if there is none.
  post: async (name, values) => {
    if (!sessionStorage.getItem("token") && !(await askToken())) return null;
    try {
      return await request(`/api/${name}`, { method: "POST", body: JSON.stringify(values) });
    } catch (error) {
      if (error.status !== 401) throw error;
      sessionStorage.removeItem("token");
      return (await askToken()) ? request(`/api/${name}`, { method: "POST", body: JSON.stringify(values) }) : null;
    }
  },
};

export function say(words, good = true) {
  const note = el("p", { class: good ? "good" : "bad" }, words);
  document.getElementById("said").append(note);
  setTimeout(() => note.remove(), good ? 6000 : 15000);
}

export function askToken() {
  const dialog = document.getElementById("token");
  const text = document.getElementById("token-text");
  text.value = "";
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => {
    if (dialog.returnValue === "ok" && text.value.trim()) sessionStorage.setItem("token", text.value.trim());
    if (dialog.returnValue === "forget") sessionStorage.removeItem("token");
    who();
    done(dialog.returnValue === "ok" && Boolean(text.value.trim()));
  }, { once: true }));
}

async function who() {
  const key = document.getElementById("key");
  try {
    const me = await api.get("me");
    put(key, me.may_act ? `As ${me.role}` : "Token");
  } catch (error) {
    put(key, "Token");
    if (error.status === 401) sessionStorage.removeItem("token");
  }
}

async function look() {
  const page = shown;
  if (!page || document.hidden) return;
  const live = document.getElementById("live");
  try {
    await page.update();
    tick();
    put(live, "live");
    live.classList.remove("off");
  } catch (error) {
    if (page !== shown) return;
    put(live, "not live");
    live.classList.add("off");
    page.failed?.(error);
    if (error.status === 401 && !page.asked) {
      page.asked = true;
      if (await askToken()) page.asked = false;
    }
  }
}

async function rounds() {
  for (;;) {
    await look();
    await new Promise((done) => setTimeout(done, EVERY));
  }
}

function show() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const make = PAGES[name] ?? overview;
  shown = null;
  const page = make(...rest);
  main.replaceChildren(page.node);
  document.title = `${page.title} · Runnel`;
  for (const each of document.querySelectorAll("nav a")) {
    const current = each.getAttribute("href") === `#/${name}` || (name === "table" && each.getAttribute("href") === "#/");
    if (current) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  shown = page;
  window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
  look();
}

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  localStorage.setItem("theme", document.documentElement.dataset.theme);
}

if (localStorage.getItem("theme")) document.documentElement.dataset.theme = localStorage.getItem("theme");
document.getElementById("theme").addEventListener("click", theme);
document.getElementById("key").addEventListener("click", askToken);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
window.addEventListener("hashchange", show);
document.addEventListener("visibilitychange", look);
who();
show();
rounds();
