// Conversations and settings in the browser's storage. A conversation: {id, title, turns: [{role, content, note?,
// reasoning?, calls?, tokens?, images?, used?}], skip?}; a turn of the role "tool" has the id and name of its call.
// Several tabs share them: each change reads what the others have written and touches one conversation only.

const KEY = "llmc.chat.v1";
const SETTINGS = "llmc.settings.v1";
export const defaults = { model: "", system: "", temperature: "0.7", top_p: "", max_tokens: "", seed: "", key: "", plain: false, schema: "", tools: "", probs: false };

function read(key, otherwise) {
  try {
    const v = JSON.parse(localStorage.getItem(key));
    return v && typeof v === "object" ? v : otherwise;
  } catch {
    return otherwise;
  }
}

function valid(c) {
  return c && typeof c.id === "string" && typeof c.title === "string" && Array.isArray(c.turns) &&
    c.turns.every((t) => t && typeof t.role === "string" && typeof t.content === "string" && [t.calls, t.tokens, t.images].every((l) => l === undefined || Array.isArray(l)));
}

export function loadAll() {
  const all = read(KEY, []);
  return Array.isArray(all) ? all.filter(valid) : [];
}

// Writes all conversations; drops the oldest ones if the storage is full.
function write(all) {
  for (let n = all.length; n >= 0; n--) {
    try {
      localStorage.setItem(KEY, JSON.stringify(all.slice(0, n)));
      return n === all.length;
    } catch { /* storage is full */ }
  }
  return false;
}

// New conversations are inserted first.
export function keep(c) {
  const all = loadAll(), at = all.findIndex((x) => x.id === c.id);
  if (at < 0) all.unshift(c);
  else all[at] = c;
  return write(all);
}

// Adds the conversations of a list (as loadAll returns it) that are missing; existing ones are unchanged. Returns how many were stored.
export function add(list) {
  const all = loadAll(), news = list.filter((c) => valid(c) && !all.some((x) => x.id === c.id));
  write([...all, ...news]);
  return loadAll().length - all.length;
}

export function drop(c) {
  write(loadAll().filter((x) => x.id !== c.id));
}

export function dropAll() {
  write([]);
}

// Calls back when another tab has changed the conversations.
export function onChange(f) {
  window.addEventListener("storage", (e) => { if (e.key === KEY || e.key === null) f(); });
}

export function loadSettings() {
  return { ...defaults, ...read(SETTINGS, {}) };
}

export function saveSettings(s) {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(s));
  } catch { /* storage is full: the settings last until the page is closed */ }
}
