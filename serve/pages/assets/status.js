// The status page: the last two minutes from /status.json, once per second, or the last hour from
// /status/history.json.
import { headers } from "./api.js";
import { createPlot } from "./plot.js";
import { loadSettings } from "./store.js";

const LIVE = 120, HOUR = 3600;
const count = (v) => Math.round(v).toLocaleString("en");
const percent = (v) => (v === null ? null : 100 * v);
const one = (of) => [{ name: "", of }];

// live() and past() convert both sources to samples of this form.
const plots = [
  { title: "Decode throughput", unit: "tok/s", series: one((s) => s.decode) },
  { title: "Prefill throughput", unit: "tok/s", series: one((s) => s.prefill) },
  { title: "Running / waiting", unit: "sequences", least: 4, series: [{ name: "running", of: (s) => s.running }, { name: "waiting", of: (s) => s.waiting }] },
  { title: "KV cache use", unit: "%", most: () => 100, series: one((s) => s.kv) },
  { title: "Step time p50 / p99", unit: "ms", none: "no step", series: [{ name: "p50", of: (s) => s.p50 }, { name: "p99", of: (s) => s.p99 }] },
  { title: "Prefix cache hits", unit: "% of prompt tokens", most: () => 100, none: "no prompt", series: one((s) => s.hits) },
  { title: "Draft acceptance", unit: "% of draft tokens", most: () => 100, none: "no drafts", series: one((s) => s.acceptance) },
].map((spec) => createPlot(spec, document.getElementById("plots")));

const facts = [
  ["Target", (s) => s.target],
  ["Uptime", (s) => duration(s.uptime_s)],
  ["Connections", (s) => count(s.connections)],
  ["Active requests", (s) => count(s.requests.active)],
  ["Completed requests", (s) => count(s.requests.success)],
  ["Failed requests", (s) => count(s.requests.failure)],
  ["Prompt tokens", (s) => count(s.tokens.prompt)],
  ["Generated tokens", (s) => count(s.tokens.new)],
  ["KV pages in use", (s) => `${count(s.kv.pages_used)} of ${count(s.kv.pages_total)}`],
  ["KV pages kept for reuse", (s) => count(s.kv.pages_cached)],
  ["Prompt tokens found in the prefix cache", (s) => `${count(s.prefix_cache.hits)} of ${count(s.prefix_cache.queries)}`],
  ["Draft tokens accepted", (s) => `${count(s.speculation.accepted)} of ${count(s.speculation.drafted)}`],
  ["Preemptions", (s) => count(s.preemptions)],
  ["Time to first token, mean", (s) => s.latency.first_token_mean_s.toFixed(3) + " s"],
  ["Time between tokens, mean", (s) => (s.latency.inter_token_mean_s * 1e3).toFixed(1) + " ms"],
];

const polled = []; // [{ at, s }] with s from /status.json
let range = LIVE, hour = null;

function duration(s) {
  const d = Math.floor(s / 86400), h = Math.floor(s / 3600) % 24, m = Math.floor(s / 60) % 60;
  return (d ? d + " d " : "") + (d || h ? h + " h " : "") + (d || h || m ? m + " min " : "") + (s % 60) + " s";
}

const share = (some, all) => (all > 0 ? 100 * some / all : null);

function live() {
  const now = performance.now() / 1000;
  return polled.map(({ at, s }, i) => {
    const before = polled[Math.max(0, i - 5)].s;
    return {
      ago: now - at,
      decode: s.tokens.decode_tokens_per_s,
      prefill: s.tokens.prefill_tokens_per_s,
      running: s.batch.running,
      waiting: s.queue.waiting + s.queue.preempted,
      kv: share(s.kv.pages_used, s.kv.pages_total),
      p50: s.batch.step_p50_ms,
      p99: s.batch.step_p99_ms,
      hits: share(s.prefix_cache.hits - before.prefix_cache.hits, s.prefix_cache.queries - before.prefix_cache.queries),
      acceptance: share(s.speculation.accepted - before.speculation.accepted, s.speculation.drafted - before.speculation.drafted),
    };
  });
}

function past(h) {
  return h.samples.map((s) => ({
    ago: s.ago,
    decode: s.decode_tokens_per_s,
    prefill: s.prefill_tokens_per_s,
    running: s.running,
    waiting: s.waiting,
    kv: share(s.pages, h.pages_total),
    p50: s.step_p50_ms,
    p99: s.step_p99_ms,
    hits: percent(s.prefix_hit_rate),
    acceptance: percent(s.acceptance_rate),
  }));
}

function draw() {
  const samples = range === LIVE ? live() : hour ? past(hour) : [];
  for (const plot of plots) plot(samples, range);
}

function drawFacts(s) {
  document.querySelector("#facts tbody").replaceChildren(...facts.map(([name, of]) => {
    const tr = document.createElement("tr"), a = document.createElement("th"), b = document.createElement("td");
    a.scope = "row";
    a.textContent = name;
    b.textContent = of(s);
    tr.append(a, b);
    return tr;
  }));
  document.getElementById("model").textContent = s.model;
  document.getElementById("state").textContent = s.draining ? "draining: no new requests" : "running";
}

async function fetchJson(path) {
  const r = await fetch(path, { headers: headers(loadSettings().key) });
  if (r.status === 401) throw new Error("The server requires an API key. Enter it in the settings of the chat page.");
  if (!r.ok) throw new Error(`The server answered ${r.status}.`);
  return r.json();
}

async function tick() {
  try {
    const s = await fetchJson("/status.json");
    polled.push({ at: performance.now() / 1000, s });
    while (polled[0].at < polled.at(-1).at - LIVE - 10) polled.shift();
    drawFacts(s);
    if (range === LIVE) draw();
  } catch (e) {
    document.getElementById("state").textContent = e instanceof TypeError ? "The server is unreachable." : e.message;
  }
  setTimeout(tick, document.hidden ? 5000 : 1000);
}

async function tickHour() {
  try {
    hour = await fetchJson("/status/history.json");
    if (range === HOUR) draw();
  } catch { /* tick() shows that the server is unreachable */ }
  setTimeout(tickHour, document.hidden ? 60000 : 10000);
}

for (const button of document.querySelectorAll("#range button"))
  button.addEventListener("click", () => {
    range = Number(button.value);
    for (const b of document.querySelectorAll("#range button")) b.setAttribute("aria-pressed", String(b === button));
    draw();
  });
tick();
tickHour();
