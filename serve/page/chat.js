// The chat page: conversations on the left, one of them on the right.
import { complete, headers } from "./api.js";
import { copyButton } from "./copy.js";
import { markdown } from "./markdown.js";
import { drop, dropAll, keep, loadAll, loadSettings, onChange, saveSettings } from "./store.js";

const $ = (id) => document.getElementById(id);
let all = loadAll(), settings = loadSettings(), model = "", running = null;
let now = all[0] || fresh();

function fresh() {
  return { id: crypto.randomUUID?.() || String(Date.now()) + Math.random(), title: "New conversation", turns: [] };
}

function save(c) {
  if (c.turns.length && !keep(c)) note("The browser has no room left: the oldest conversations were not kept.");
  reload();
}

// What the browser keeps, by this tab and others; the one that is open stays the same object.
function reload() {
  all = loadAll().map((c) => (c.id === now.id ? now : c));
}

function note(text) {
  $("note").textContent = text;
}

// ---- drawing ----

function button(text, does, title) {
  const b = document.createElement("button");
  b.type = "button";
  b.textContent = text;
  if (title) b.title = title;
  b.addEventListener("click", does);
  return b;
}

function drawList() {
  $("list").replaceChildren(...all.map((c) => {
    const pick = button(c.title, () => open(c), c.title);
    pick.className = "pick";
    pick.setAttribute("aria-current", String(c === now));
    const away = button("\u00d7", () => remove(c), "Delete");
    away.className = "drop";
    away.setAttribute("aria-label", "Delete " + c.title);
    const li = document.createElement("li");
    li.append(pick, away);
    return li;
  }));
}

function fill(node, turn) {
  const body = node.querySelector(".body");
  if (turn.role === "user") body.textContent = turn.content;
  else body.replaceChildren(...markdown(turn.content));
  const tools = node.querySelector(".tools"), last = now.turns.at(-1) === turn;
  tools.replaceChildren();
  if (turn.error) {
    const e = document.createElement("span");
    e.className = "error";
    e.textContent = turn.error;
    tools.append(e);
  }
  if (turn.role === "assistant" && !(running && last)) {
    if (turn.content) tools.append(copyButton(() => turn.content));
    if (last) {
      const again = button("Regenerate", regenerate);
      again.className = "again";
      tools.append(again);
    }
  }
  if (turn.note) {
    const s = document.createElement("span");
    s.className = "dim";
    s.textContent = turn.note;
    tools.append(s);
  }
}

function turnNode(turn) {
  const node = document.createElement("article"), who = document.createElement("div");
  node.className = "turn " + (turn.role === "user" ? "user" : "assistant");
  who.className = "who";
  who.textContent = turn.role === "user" ? "You" : "Model";
  const body = document.createElement("div"), tools = document.createElement("div");
  body.className = "body";
  tools.className = "tools";
  node.append(who, body, tools);
  fill(node, turn);
  return node;
}

function draw() {
  $("log").replaceChildren(...now.turns.map(turnNode));
  $("title").textContent = now.title;
  document.title = now.turns.length ? now.title + " - llmc" : "llmc chat";
  $("log").scrollTop = $("log").scrollHeight;
  drawList();
}

function busy(is) {
  $("send").hidden = is;
  $("stop").hidden = !is;
}

// ---- doing ----

function open(c) {
  running?.abort();
  now = c;
  $("side").classList.remove("open");
  draw();
  $("prompt").focus();
}

function remove(c) {
  drop(c);
  all = loadAll();
  if (c.id === now.id) open(all[0] || fresh());
  reload();
  drawList();
}

// The turns that are sent: those that fit, without answers that failed.
function messagesOf(c) {
  const list = c.turns.slice(c.skip || 0).filter((t) => t.content && !(t.role === "assistant" && t.error && !t.content))
    .map((t) => ({ role: t.role, content: t.content }));
  return settings.system.trim() && !settings.plain ? [{ role: "system", content: settings.system }, ...list] : list;
}

// Leaves out the oldest turns, a few more each time; false: only the last is left.
function shorten(c) {
  const last = c.turns.findLastIndex((t) => t.role === "user"), from = c.skip || 0;
  if (from >= last) return false;
  c.skip = Math.min(last, from + Math.max(1, Math.floor((last - from) / 4)));
  while (c.skip < last && c.turns[c.skip].role !== "user") c.skip++;
  return true;
}

async function answer() {
  const c = now, messages = messagesOf(c), turn = { role: "assistant", content: "" };
  const abort = new AbortController(), log = $("log");
  c.turns.push(turn);
  running = abort;
  busy(true);
  note("");
  draw();
  const node = log.lastElementChild, started = performance.now();
  let first = 0, pieces = 0, usage = null, queued = false;
  const show = () => {
    queued = false;
    if (now !== c) return;
    const bottom = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    fill(node, turn);
    if (bottom) log.scrollTop = log.scrollHeight;
  };
  const speed = () => {
    const n = usage?.completion_tokens ?? pieces, s = (performance.now() - first) / 1000;
    return first && n > 1 && s > 0 ? `${n} tokens, ${((n - 1) / s).toFixed(1)} tokens/s, first after ${((first - started) / 1000).toFixed(2)} s` : "";
  };
  try {
    for await (const p of complete({ model, messages, settings, plain: settings.plain, signal: abort.signal })) {
      if (p.usage) usage = p.usage;
      if (!p.text) continue;
      first ||= performance.now();
      pieces++;
      turn.content += p.text;
      turn.note = speed();
      if (!queued) {
        queued = true;
        requestAnimationFrame(show);
      }
    }
    turn.note = speed();
  } catch (e) {
    if (e.name === "AbortError") {
      turn.note = [speed(), "stopped"].filter(Boolean).join(", ");
    } else if (!turn.content && !settings.plain && /chat template/i.test(e.message)) {
      settings.plain = true;
      saveSettings(settings);
      c.turns.pop();
      running = null;
      note("This model has no chat template: going on without one.");
      return answer();
    } else if (e.code === "context_length_exceeded" && !turn.content) {
      c.turns.pop();
      if (shorten(c)) {
        running = null;
        return answer();
      }
      c.skip = 0; /* it did not help */
      c.turns.push(turn);
      turn.error = e.message;
    } else {
      turn.error = e.message;
    }
  }
  if (running === abort) running = null;
  busy(running !== null);
  save(c);
  if (now === c && c.skip) note(`The conversation is longer than the model's context: its first ${c.skip} messages are no longer sent.`);
  if (now === c) {
    const bottom = log.scrollHeight - log.scrollTop - log.clientHeight < 90;
    fill(node, turn);
    if (bottom) log.scrollTop = log.scrollHeight;
  }
}

function send() {
  const text = $("prompt").value;
  if (!text.trim() || running) return;
  $("prompt").value = "";
  grow();
  now.turns.push({ role: "user", content: text });
  if (now.turns.length === 1) now.title = text.trim().replace(/\s+/g, " ").slice(0, 60);
  save(now);
  answer();
}

function regenerate() {
  if (running || now.turns.at(-1)?.role !== "assistant") return;
  now.turns.pop();
  answer();
}

function grow() {
  const p = $("prompt");
  p.style.height = "auto";
  p.style.height = p.scrollHeight + 2 + "px";
}

function openSettings() {
  const f = $("settings-form").elements;
  for (const k of Object.keys(settings)) {
    if (!f[k]) continue;
    if (f[k].type === "checkbox") f[k].checked = settings[k];
    else f[k].value = settings[k];
  }
  $("settings").showModal();
}

function closeSettings() {
  const f = $("settings-form").elements, had = settings.key;
  for (const k of Object.keys(settings))
    if (f[k]) settings[k] = f[k].type === "checkbox" ? f[k].checked : f[k].value;
  saveSettings(settings);
  if (had !== settings.key) hello();
}

async function hello() {
  try {
    const models = await fetch("/v1/models", { headers: headers(settings.key) });
    if (models.status === 401) {
      note("The server wants an API key: give it in the settings.");
      return;
    }
    model = (await models.json()).data[0].id;
    $("model").textContent = model;
    const v = await fetch("/version");
    if (v.ok) $("version").textContent = "llmc " + (await v.json()).version;
    note("");
  } catch {
    note("The server does not answer.");
  }
}

// ---- wiring ----

$("form").addEventListener("submit", (e) => { e.preventDefault(); send(); });
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => open(fresh()));
$("side-open").addEventListener("click", () => { $("side").classList.add("open"); $("new").focus(); });
$("side-close").addEventListener("click", () => $("side").classList.remove("open"));
$("settings-open").addEventListener("click", openSettings);
$("settings").addEventListener("close", closeSettings);
$("forget").addEventListener("click", () => {
  if (!confirm("Delete all conversations kept in this browser?")) return;
  dropAll();
  all = [];
  open(fresh());
});
$("prompt").addEventListener("input", grow);
$("prompt").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
    e.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (e) => {
  if (e.key === "Escape" && !$("settings").open) {
    running?.abort();
    $("side").classList.remove("open");
  } else if (e.altKey && e.key.toLowerCase() === "n") {
    e.preventDefault();
    open(fresh());
  } else if (e.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
    e.preventDefault();
    $("prompt").focus();
  }
});
window.addEventListener("beforeunload", () => { if (running) save(now); });
onChange(() => {
  const theirs = loadAll().find((c) => c.id === now.id);
  const news = theirs && !running && JSON.stringify(theirs) !== JSON.stringify(now);
  if (news) now = theirs;
  reload();
  if (news) draw();
  else drawList();
});

draw();
hello();
$("prompt").focus();
