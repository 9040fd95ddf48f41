// The chat page: list of conversations on the left, the open one on the right.
import { complete, headers } from "./api.js";
import { copyButton } from "./copy.js";
import { contentOf, imageNode, readImage } from "./images.js";
import { asMarkdown, turnBody, wholeCalls, who } from "./turn.js";
import { add, drop, dropAll, keep, loadAll, loadSettings, onChange, saveSettings } from "./store.js";

const EXAMPLES = [
  "Explain how a hash table works, with a short example in Python.",
  "Write a friendly e-mail that moves a call from Monday to Tuesday.",
  "List five facts about the Moon in a table.",
];

const $ = (id) => document.getElementById(id);
let all = loadAll(), settings = loadSettings(), model = "", running = null;
let about = null; // the model's entry of /v1/models
let context = 0, files = [];
let now = all[0] || fresh();

function fresh() {
  return { id: crypto.randomUUID?.() || String(Date.now()) + Math.random(), title: "New conversation", turns: [] };
}

function save(c) {
  if (c.turns.length && !keep(c)) note("The browser's storage is full: the oldest conversations were not kept.");
  reload();
}

// Reads the conversations that this and other tabs have stored; the open one stays the same object.
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
  const wanted = $("search").value.trim().toLowerCase();
  const has = (c) => !wanted || c.title.toLowerCase().includes(wanted) || c.turns.some((t) => t.content.toLowerCase().includes(wanted));
  $("list").replaceChildren(...all.filter(has).map((c) => {
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
  const open = new Set([...body.querySelectorAll("details[open]")].map((d) => d.className));
  body.replaceChildren(...turnBody(turn, running !== null));
  for (const d of body.querySelectorAll("details")) d.open ||= open.has(d.className);
  const tools = node.querySelector(".tools"), last = now.turns.at(-1) === turn;
  tools.replaceChildren();
  if (turn.error) {
    const e = document.createElement("span");
    e.className = "error";
    e.textContent = turn.error;
    tools.append(e);
  }
  if (turn.role === "user" && !running) {
    const edit = button("Edit", () => editTurn(node, turn), "Send another question from here, in a new branch");
    edit.className = "edit";
    tools.append(edit);
  }
  if (turn.role === "assistant" && !(running && last)) {
    if (turn.content) tools.append(copyButton(() => turn.content));
    if (turn.tokens?.length) {
      const b = button(turn.asTokens ? "Text" : "Probabilities", () => { turn.asTokens = !turn.asTokens; fill(node, turn); });
      b.className = "probs";
      tools.append(b);
    }
    if (!last) {
      const b = button("Branch", () => branch(turn, turn), "Go on from here in a conversation of its own");
      b.className = "branch";
      tools.append(b);
    }
    if (last) {
      const again = button("Regenerate", regenerate);
      again.className = "again";
      tools.append(again);
      if (!settings.plain && wholeCalls(turn).length) body.append(resultForm(turn));
    }
  }
  if (turn.note) {
    const s = document.createElement("span");
    s.className = "dim";
    s.textContent = turn.note;
    tools.append(s);
  }
}

// Input boxes for tool results: the user runs the tools, and the answer continues with their results.
function resultForm(turn) {
  const form = document.createElement("form"), calls = wholeCalls(turn);
  const areas = calls.map((call) => {
    const label = document.createElement("label"), area = document.createElement("textarea");
    label.append("Result of " + call.name, area);
    form.append(label);
    return area;
  });
  const done = document.createElement("button");
  done.textContent = calls.length > 1 ? "Send results" : "Send result";
  form.className = "results";
  form.append(done);
  form.addEventListener("submit", (e) => {
    e.preventDefault();
    if (running) return;
    now.turns.push(...calls.map((call, i) => ({ role: "tool", content: areas[i].value, id: call.id, name: call.name })));
    save(now);
    answer();
  });
  return form;
}

function turnNode(turn) {
  const node = document.createElement("article"), head = document.createElement("div");
  node.className = "turn " + (["user", "tool"].includes(turn.role) ? turn.role : "assistant");
  head.className = "who";
  head.textContent = who(turn);
  const body = document.createElement("div"), tools = document.createElement("div");
  body.className = "body";
  tools.className = "tools";
  node.append(head, body, tools);
  fill(node, turn);
  return node;
}

// Keyboard focus on an element that f removes moves to the message box.
function keepingFocus(change) {
  const at = document.querySelector(":focus-visible");
  change();
  if (at && !at.getClientRects().length) $("prompt").focus();
}

// Facts about the model as /v1/models gives them: context, parameters, bytes of the weights.
function factsOf(m) {
  const big = (v) => (v >= 1e9 ? Number((v / 1e9).toPrecision(3)) + " B" : Number((v / 1e6).toPrecision(3)) + " M");
  const list = [m.max_model_len && `context ${m.max_model_len.toLocaleString("en")} tokens`, m.meta?.n_params && `${big(m.meta.n_params)} parameters`,
    m.meta?.size && `${m.meta.size >= 2 ** 30 ? (m.meta.size / 2 ** 30).toFixed(1) + " GiB" : Math.round(m.meta.size / 2 ** 20) + " MiB"} of weights`];
  return list.filter(Boolean).join(", ");
}

// The view of a conversation without messages: the model, and prompts to try.
function emptyNode() {
  const node = document.createElement("section"), h = document.createElement("h2"), facts = document.createElement("p"), list = document.createElement("div");
  node.id = "empty";
  node.setAttribute("aria-label", "Start");
  h.textContent = about?.id || "";
  facts.className = "dim";
  facts.textContent = about ? factsOf(about) : "";
  list.className = "examples";
  for (const text of EXAMPLES)
    list.append(button(text, () => { $("prompt").value = text; send(); }, "Send this prompt"));
  node.append(h, facts, list);
  return node;
}

function draw() {
  keepingFocus(() => $("log").replaceChildren(...(now.turns.length ? now.turns.map(turnNode) : [emptyNode()])));
  $("title").textContent = now.title;
  document.title = now.turns.length ? now.title + " - llmc" : "llmc chat";
  $("log").scrollTop = $("log").scrollHeight;
  meter();
  drawList();
}

function busy(is) {
  keepingFocus(() => {
    $("send").hidden = is;
    $("stop").hidden = !is;
  });
}

// ---- actions ----

// Copies the turns before `at` to a new conversation and appends `turn`; the old one is unchanged.
function branch(at, turn) {
  const c = { ...fresh(), title: now.title, turns: [...now.turns.slice(0, now.turns.indexOf(at)), structuredClone(turn)] };
  save(now);
  now = c;
  save(c);
  draw();
}

function editTurn(node, turn) {
  const area = document.createElement("textarea"), tools = node.querySelector(".tools");
  area.value = turn.content;
  area.setAttribute("aria-label", "Edit the message");
  node.querySelector(".body").replaceChildren(area);
  const done = button("Send", () => {
    if (!area.value.trim() || running) return;
    branch(turn, { role: "user", content: area.value, ...(turn.images && { images: turn.images }) });
    answer();
  });
  done.className = "edited";
  tools.replaceChildren(done, button("Cancel", () => keepingFocus(() => fill(node, turn))));
  area.focus();
}

function rename() {
  const title = prompt("Name of this conversation", now.title);
  if (!title?.trim()) return;
  now.title = title.trim();
  save(now);
  $("title").textContent = now.title;
  drawList();
}

function download(name, ending, type, text) {
  const a = document.createElement("a"), url = URL.createObjectURL(new Blob([text], { type }));
  a.href = url;
  a.download = (name.replace(/[^\p{L}\p{N} _-]+/gu, "").trim() || "conversation") + ending;
  a.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// Imports conversations from a file that "Export all" wrote.
async function take(file) {
  try {
    const n = add(JSON.parse(await file.text()));
    note(`${n} conversations of ${file.name} are new.`);
  } catch {
    note(`${file.name} holds no conversations.`);
  }
  reload();
  drawList();
}

function readsImages() {
  return about?.architecture?.input_modalities?.includes("image");
}

// Attaches files to the next message: text files, each after its name, and images.
async function attach(list) {
  for (const f of list) {
    if (f.type.startsWith("image/")) {
      const image = readsImages() ? await readImage(f) : null;
      if (image) files.push({ name: f.name || "image", image });
      else note(`${f.name}: ${readsImages() ? "larger than 14 MB" : "this model reads text only"}; it is not attached.`);
      continue;
    }
    const text = f.size > 1 << 20 ? null : await f.text();
    if (text === null || text.includes("\0")) note(`${f.name}: ${text === null ? "larger than 1 MB" : "no text"}; it is not attached.`);
    else files.push({ name: f.name, text });
  }
  drawFiles();
}

function drawFiles() {
  $("files").hidden = !files.length;
  $("files").replaceChildren(...files.map((f) => {
    const li = document.createElement("li"), away = button("\u00d7", () => { files = files.filter((x) => x !== f); drawFiles(); }, "Take away");
    away.setAttribute("aria-label", "Take away " + f.name);
    if (f.image) li.append(imageNode(f.image));
    li.append(f.name + " ", away);
    return li;
  }));
}

// Returns the turn of a message with the attached files.
function turnOf(text) {
  const images = files.filter((f) => f.image).map((f) => f.image);
  return { role: "user", content: withFiles(text), ...(images.length && { images }) };
}

function withFiles(text) {
  const fence = (t) => "`".repeat(Math.max(3, ...[...t.matchAll(/`+/g)].map((m) => m[0].length + 1)));
  const parts = files.filter((f) => !f.image).map((f) => `${f.name}:\n${fence(f.text)}\n${f.text.replace(/\n$/, "")}\n${fence(f.text)}`);
  files = [];
  drawFiles();
  return [text, ...parts].filter((p) => p.trim()).join("\n\n");
}

// Shows the context usage that the last answer reported.
function meter() {
  const m = $("context"), used = now.turns.findLast((t) => t.used)?.used;
  m.hidden = !used || !context;
  if (m.hidden) return;
  m.value = used / context;
  m.title = `${used} of ${context} tokens of context`;
}

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

function message(turn) {
  const m = { role: turn.role, content: settings.plain ? turn.content : contentOf(turn) }, calls = wholeCalls(turn);
  if (turn.role === "tool") Object.assign(m, { tool_call_id: turn.id, name: turn.name });
  if (calls.length) m.tool_calls = calls.map((c) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } }));
  return m;
}

// Returns the turns to send: those that fit, without failed answers.
function messagesOf(c) {
  const list = c.turns.slice(c.skip || 0).map(message).filter((m) => m.content || m.tool_calls || m.role === "tool");
  return settings.system.trim() && !settings.plain ? [{ role: "system", content: settings.system }, ...list] : list;
}

// Omits more of the oldest turns at each call; false: only the last one is left.
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
      if (p.text === undefined && !p.reasoning && !p.call) continue;
      first ||= performance.now();
      pieces++;
      turn.content += p.text || "";
      if (p.reasoning) turn.reasoning = (turn.reasoning || "") + p.reasoning;
      if (p.tokens?.length) (turn.tokens ||= []).push(...p.tokens);
      if (p.call) {
        const call = ((turn.calls ||= [])[p.call.index] ||= { id: "", name: "", arguments: "" });
        call.id += p.call.id;
        call.name += p.call.name;
        call.arguments += p.call.arguments;
      }
      turn.note = speed();
      if (!queued) {
        queued = true;
        requestAnimationFrame(show);
      }
    }
    turn.note = speed();
    turn.used = usage?.total_tokens;
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
      c.skip = 0; /* even one turn is too long: send all again next time */
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
    meter();
    const bottom = log.scrollHeight - log.scrollTop - log.clientHeight < 90;
    /* draw all turns again with the buttons that are hidden during an answer */
    keepingFocus(() => [...log.children].forEach((n, i) => fill(n, c.turns[i])));
    if (bottom) log.scrollTop = log.scrollHeight;
  }
}

function send() {
  const text = $("prompt").value, title = text.trim() || files.map((f) => f.name).join(", ");
  if (!title || running) return;
  $("prompt").value = "";
  grow();
  now.turns.push(turnOf(text));
  if (now.turns.length === 1) now.title = title.replace(/\s+/g, " ").slice(0, 60);
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
      note("The server requires an API key. Enter it in the settings.");
      return;
    }
    const known = (await models.json()).data;
    const chosen = known.find((m) => m.id === settings.model) || known[0];
    model = chosen.id;
    about = chosen;
    context = chosen.max_model_len || 0;
    $("attach").title = readsImages() ? "Attach text files or images" : "Attach text files";
    $("attach").setAttribute("aria-label", $("attach").title);
    if ($("empty")) $("empty").replaceWith(emptyNode());
    meter();
    $("model").textContent = model;
    $("model").hidden = known.length > 1;
    $("models").hidden = known.length < 2;
    $("models").replaceChildren(...known.map((m) => new Option(m.id, m.id, m.id === model, m.id === model)));
    const v = await fetch("/version");
    if (v.ok) $("version").textContent = "llmc " + (await v.json()).version;
    note("");
  } catch {
    note("The server is unreachable.");
  }
}

// ---- event handlers ----

$("form").addEventListener("submit", (e) => { e.preventDefault(); send(); });
$("stop").addEventListener("click", () => running?.abort());
$("models").addEventListener("change", () => { settings.model = $("models").value; saveSettings(settings); hello(); });
$("search").addEventListener("input", drawList);
$("rename").addEventListener("click", rename);
$("export").addEventListener("click", () => download(now.title, ".md", "text/markdown", asMarkdown(now)));
$("export-all").addEventListener("click", () => download("conversations", ".json", "application/json", JSON.stringify(loadAll())));
$("import").addEventListener("click", () => $("import-file").click());
$("import-file").addEventListener("change", () => { $("settings").close(); take($("import-file").files[0]); $("import-file").value = ""; });
$("attach").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => { attach([...$("file").files]); $("file").value = ""; });
document.addEventListener("dragover", (e) => {
  if (![...e.dataTransfer.types].includes("Files")) return;
  e.preventDefault();
  document.body.classList.add("drop");
});
document.addEventListener("dragleave", (e) => { if (!e.relatedTarget) document.body.classList.remove("drop"); });
document.addEventListener("drop", (e) => {
  document.body.classList.remove("drop");
  if (!e.dataTransfer.files.length) return;
  e.preventDefault();
  attach([...e.dataTransfer.files]);
});
$("prompt").addEventListener("paste", (e) => {
  if (!e.clipboardData.files.length) return;
  e.preventDefault();
  attach([...e.clipboardData.files]);
});
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
