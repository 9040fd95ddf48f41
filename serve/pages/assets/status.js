// The status page: polls /status.json once per second and plots the last two minutes.
import { headers } from "./api.js";
import { loadSettings } from "./store.js";

const KEEP = 120, RECENT = 5, W = 240, H = 60;
const count = (v) => Math.round(v).toLocaleString("en");
const plots = [
  { title: "New tokens per second", of: (s) => s.tokens.new_per_s, text: (v) => v.toFixed(1) },
  { title: "Prompt tokens per second", of: (s) => s.tokens.prompt_per_s, text: (v) => v.toFixed(1) },
  { title: "Running sequences", of: (s) => s.batch.running, text: count, most: (s) => s.batch.max },
  { title: "Waiting requests", of: (s) => s.queue.waiting + s.queue.preempted, text: count },
  { title: "KV pages in use", of: (s) => s.kv.pages_used, text: count, most: (s) => s.kv.pages_total },
  { title: "Step, ms", of: (s) => s.batch.last_step_ms, text: (v) => v.toFixed(1) },
  { title: "Draft acceptance rate, %", of: acceptance, text: (v) => v.toFixed(0), most: () => 100 },
];
const facts = [
  ["Target", (s) => s.target],
  ["Up", (s) => duration(s.uptime_s)],
  ["Connections", (s) => count(s.connections)],
  ["Requests, active", (s) => count(s.requests.active)],
  ["Requests, done", (s) => count(s.requests.success)],
  ["Requests, failed", (s) => count(s.requests.failure)],
  ["Tokens of prompts", (s) => count(s.tokens.prompt)],
  ["New tokens", (s) => count(s.tokens.new)],
  ["KV pages kept for reuse", (s) => count(s.kv.pages_cached)],
  ["Prefix hits of look-ups, tokens", (s) => `${count(s.prefix_cache.hits)} of ${count(s.prefix_cache.queries)}`],
  ["Draft tokens accepted", (s) => `${count(s.speculation.accepted)} of ${count(s.speculation.drafted)}`],
  ["Preemptions", (s) => count(s.preemptions)],
  ["First token, mean", (s) => s.latency.first_token_mean_s.toFixed(3) + " s"],
  ["Between tokens, mean", (s) => (s.latency.inter_token_mean_s * 1e3).toFixed(1) + " ms"],
];
const history = [];

// Returns the acceptance rate of draft tokens in the last seconds, in percent; null: no drafts.
function acceptance(s, before) {
  const of = s.speculation.drafted - before.speculation.drafted;
  return of > 0 ? 100 * (s.speculation.accepted - before.speculation.accepted) / of : null;
}

function duration(s) {
  const d = Math.floor(s / 86400), h = Math.floor(s / 3600) % 24, m = Math.floor(s / 60) % 60;
  return (d ? d + " d " : "") + (d || h ? h + " h " : "") + m + " min " + (s % 60) + " s";
}

function svg(name, attributes) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
}

function plotIn(p, parent) {
  const box = document.createElement("div"), h = document.createElement("h2");
  box.className = "plot";
  h.textContent = p.title;
  p.now = document.createElement("div");
  p.now.className = "now";
  const pic = svg("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": p.title });
  p.area = svg("path", { class: "area" });
  p.line = svg("path", {});
  pic.append(p.area, p.line);
  box.append(h, p.now, pic);
  document.getElementById(parent).append(box);
}
for (const p of plots) plotIn(p, "plots");

// The server keeps the last hour, so the plots begin before this page was opened.
const hour = [
  { title: "New tokens per second", of: (s) => s.new_per_s },
  { title: "Prompt tokens per second", of: (s) => s.prompt_per_s },
  { title: "Running sequences", of: (s) => s.running, most: (h) => h.max_running },
  { title: "Waiting requests", of: (s) => s.waiting },
  { title: "KV pages in use", of: (s) => s.pages, most: (h) => h.pages_total },
  { title: "Prefix hits, %", of: (s) => (s.prefix_hits === null ? null : 100 * s.prefix_hits), most: () => 100 },
  { title: "Draft acceptance rate, %", of: (s) => (s.guesses_true === null ? null : 100 * s.guesses_true), most: () => 100 },
];
for (const p of hour) plotIn(p, "hour");

// Points are [x, y], x from 0 to 1; a missing value has no point.
function drawLine(p, points, most) {
  const at = points.map(([x, y]) => `${(W * x).toFixed(1)},${(H - 1 - (H - 2) * Math.min(1, y / most)).toFixed(1)}`);
  p.line.setAttribute("d", at.length ? "M" + at.join("L") : "");
  p.area.setAttribute("d", at.length ? "M" + at.join("L") + `L${at.at(-1).split(",")[0]},${H}L${at[0].split(",")[0]},${H}Z` : "");
}

function drawHour(h) {
  for (const p of hour) {
    const some = h.samples.filter((s) => p.of(s) !== null && s.ago <= 3600), top = Math.max(0, ...some.map(p.of));
    drawLine(p, some.map((s) => [1 - s.ago / 3600, p.of(s)]), p.most?.(h) || Math.max(1, top) * 1.1);
    p.now.textContent = some.length ? "most " + (top < 10 ? Number(top.toFixed(1)) : count(top)) : "none yet";
  }
}

async function tickHour() {
  try {
    const r = await fetch("/status/history.json", { headers: headers(loadSettings().key) });
    if (r.ok) drawHour(await r.json());
  } catch { /* the live figures show that the server is unreachable */ }
  setTimeout(tickHour, document.hidden ? 60000 : 10000);
}

function draw(s) {
  history.push(s);
  if (history.length > KEEP) history.shift();
  for (const p of plots) {
    const v = history.map((x, i) => p.of(x, history[Math.max(0, i - RECENT)]));
    const points = v.map((y, i) => [1 - (v.length - 1 - i) / (KEEP - 1), y]).filter(([, y]) => y !== null);
    drawLine(p, points, p.most?.(s) || Math.max(1, ...v) * 1.1);
    p.now.textContent = v.at(-1) === null ? "none now" : p.text(v.at(-1)) + (p.most ? " of " + count(p.most(s)) : "");
  }
  document.querySelector("#facts tbody").replaceChildren(...facts.map(([name, of]) => {
    const tr = document.createElement("tr"), a = document.createElement("td"), b = document.createElement("td");
    a.textContent = name;
    b.textContent = of(s);
    tr.append(a, b);
    return tr;
  }));
  document.getElementById("model").textContent = s.model;
  document.getElementById("state").textContent = s.draining ? "draining: no new requests" : "running";
}

async function tick() {
  try {
    const r = await fetch("/status.json", { headers: headers(loadSettings().key) });
    if (r.status === 401) throw new Error("the server wants an API key: give it in the chat's settings");
    draw(await r.json());
  } catch (e) {
    document.getElementById("state").textContent = e.message || "the server does not answer";
  }
  setTimeout(tick, document.hidden ? 5000 : 1000);
}
tick();
tickHour();
