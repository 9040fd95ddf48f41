// Markdown to DOM nodes. Nothing is ever parsed as HTML: every character of the source becomes part of a text node or is dropped,
// and links use http, https and mailto only. So model output cannot run code.

import { copyButton } from "./copy.js";
import { highlight } from "./highlight.js";
import { math } from "./math.js";

const safeLink = /^(https?:\/\/|mailto:)[^\s]*$/i;

function el(name, ...children) {
  const e = document.createElement(name);
  e.append(...children);
  return e;
}

// Returns a formula, or its source if it cannot be parsed.
function formula(source, display, m) {
  return math(source, display) || el("code", m);
}

function link(href, children, source) {
  if (!safeLink.test(href)) return source;
  const a = el("a", ...children);
  a.href = href;
  a.target = "_blank";
  a.rel = "noopener noreferrer nofollow";
  return a;
}

// Searches that several openers share. For each key the search positions ascend, and the result of
// a search is kept and used for every opener before it. So all searches of a key together take
// linear time.
class Closers {
  constructor(text) {
    this.text = text;
    this.found = new Map();
  }

  // First position >= from at which next(from) finds a closer; -1: none.
  at(key, from, next) {
    const known = this.found.get(key);
    if (known && from >= known.from && (known.at < 0 || known.at >= from)) return known.at;
    const at = next(from);
    this.found.set(key, { from, at });
    return at;
  }

  string(s, from) {
    return this.at(s, from, (n) => this.text.indexOf(s, n));
  }

  // One of the characters of a global expression.
  oneOf(re, from) {
    return this.at(re.source, from, (n) => {
      re.lastIndex = n;
      const m = re.exec(this.text);
      return m ? m.index : -1;
    });
  }

  // Position of the closing mark: it must follow a character that is not blank. single: it must not
  // precede a letter or another mark.
  mark(mark, from, single) {
    return this.at((single ? "1" : "2") + mark, from, (n) => {
      for (let j = this.text.indexOf(mark, n); j >= 0; j = this.text.indexOf(mark, j + 1))
        if (/\S/.test(this.text[j - 1]) && !(single && /[\w*]/.test(this.text[j + 1] || " "))) return j;
      return -1;
    });
  }

  // Position of the next run of exactly n backquotes.
  ticks(n, from) {
    if (!this.runs) {
      this.runs = new Map();
      for (const m of this.text.matchAll(/`+/g)) {
        if (!this.runs.has(m[0].length)) this.runs.set(m[0].length, []);
        this.runs.get(m[0].length).push(m.index);
      }
    }
    const list = this.runs.get(n) || [];
    while (list.length && list[0] < from) list.shift();
    return list.length ? list[0] : -1;
  }

  // Returns [url, end] of "url)" at `from`, or null.
  target(from) {
    if (!this.url || this.url.from !== from) {
      const re = /([^\s()]+(?:\([^\s()]*\))?)\)/y;
      re.lastIndex = from;
      const m = re.exec(this.text);
      this.url = { from, is: m && [m[1], re.lastIndex] };
    }
    return this.url.is;
  }
}

// Returns the span that begins at i as [node, end], or the next position at which a span may begin.
function spanAt(text, i, find, depth) {
  const c = text[i], two = text.substr(i, 2);
  let j;
  if (c === "`") {
    const n = /`+/y;
    n.lastIndex = i;
    const ticks = n.exec(text)[0].length;
    j = find.ticks(ticks, i + ticks);
    if (j < 0) return i + ticks;
    return [el("code", text.slice(i + ticks, j).replace(/^ (.+) $/s, "$1")), j + ticks];
  }
  if (two === "$$") {
    j = find.string("$", i + 2);
    if (j > i + 2 && text[j + 1] === "$") return [formula(text.slice(i + 2, j), true, text.slice(i, j + 2)), j + 2];
  }
  if (two === "\\[" || two === "\\(") {
    j = find.string(two === "\\[" ? "\\]" : "\\)", i + 3);
    if (j >= 0) return [formula(text.slice(i + 2, j), two === "\\[", text.slice(i, j + 2)), j + 2];
  }
  // prices are not formulas: no blank inside the dollars, no digit after them
  if (c === "$" && !/[\\$\w]/.test(text[i - 1] || " ") && /[^\s$]/.test(text[i + 1] || " ")) {
    j = find.oneOf(/[$\n`]/g, i + 1);
    if (j > i + 1 && text[j] === "$" && !/[\s\\]/.test(text[j - 1]) && !/[\d$]/.test(text[j + 1] || " "))
      return [formula(text.slice(i + 1, j), false, text.slice(i, j + 1)), j + 1];
  }
  if (c === "[") {
    j = find.oneOf(/[\]\n]/g, i + 1);
    const to = j > i + 1 && text[j] === "]" && text[j + 1] === "(" && find.target(j + 2);
    if (to) return [link(to[0], inline(text.slice(i + 1, j), depth + 1), text.slice(i, to[1])), to[1]];
  }
  if (c === "<" || c === "h" || c === "H") {
    const re = /<?(https?:\/\/[^\s<>()\]]*[^\s<>()\].,;:!?'"])>?/iy;
    re.lastIndex = i;
    const m = re.exec(text);
    if (m) return [link(m[1], [m[1]], m[0]), re.lastIndex];
  }
  if ((two === "**" || two === "__" || two === "~~") && /\S/.test(text[i + 2] || " ")) {
    j = find.mark(two, i + 3, false);
    if (j >= 0) return [el(c === "~" ? "s" : "strong", ...inline(text.slice(i + 2, j), depth + 1)), j + 2];
  }
  if ((c === "*" || c === "_") && !/[\w*]/.test(text[i - 1] || " ") && /[^\s*_]/.test(text[i + 1] || " ")) {
    j = find.mark(c, i + 2, true);
    if (j >= 0) return [el("em", ...inline(text.slice(i + 1, j), depth + 1)), j + 1];
  }
  return i + 1;
}

// Parses code spans, formulas, links, strong, emphasis and strike, in linear time.
function inline(text, depth = 0) {
  const out = [], find = new Closers(text), begin = /[`$\\[<hH*_~]/g;
  let from = 0;
  for (let i = 0; depth < 8; ) {
    begin.lastIndex = i;
    const m = begin.exec(text);
    if (!m) break;
    const span = spanAt(text, m.index, find, depth);
    if (typeof span === "number") {
      i = span;
      continue;
    }
    if (m.index > from) out.push(text.slice(from, m.index));
    out.push(span[0]);
    i = from = span[1];
  }
  if (from < text.length) out.push(text.slice(from));
  return out;
}

function codeBlock(lines, language) {
  const code = el("code", ...highlight(lines.join("\n"), language));
  const head = el("div", el("span", language.slice(0, 40)), copyButton(() => code.textContent));
  head.className = "code-head";
  return el("div", head, el("pre", code));
}

// Detects a display formula that starts at line i: [its end, whether the end belongs to it], or null.
function formulaAt(line) {
  const m = /^\s*(?:(\$\$)|(\\\[)|\\begin\{((?:equation|align|gather)\*?)\})/.exec(line);
  return m && (m[1] ? ["$$", false] : m[2] ? ["\\]", false] : ["\\end{" + m[3] + "}", true]);
}

// Returns [node, next line], or null if the formula has no end yet.
function formulaBlock(lines, i) {
  const [end, keep] = formulaAt(lines[i]);
  let text = keep ? lines[i] : lines[i].trim().slice(2);
  for (let next = i + 1, searched = 0; ; text += "\n" + lines[next++]) {
    const at = text.indexOf(end, searched);
    searched = Math.max(0, text.length - end.length + 1);
    if (at >= 0 && !text.slice(at + end.length).trim()) {
      const source = keep ? text.slice(0, at + end.length) : text.slice(0, at), node = el("div", formula(source, true, lines.slice(i, next).join("\n")));
      node.className = "math-block";
      return [node, next];
    }
    if (at >= 0 || next >= lines.length || next - i > 60) return null;
  }
}

const listItem = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

// Parses a list that starts at line i, with nested lists in its items; returns [node, next line].
function list(lines, i, depth) {
  const first = listItem.exec(lines[i]), indent = first[1].length, ordered = /\d/.test(first[2]);
  const node = el(ordered ? "ol" : "ul");
  if (ordered) node.start = parseInt(first[2], 10);
  while (i < lines.length) {
    const m = listItem.exec(lines[i]);
    if (!m || m[1].length < indent) break;
    if (m[1].length > indent + 1 && node.lastChild && depth < 6) {
      const [inner, next] = list(lines, i, depth + 1);
      node.lastChild.append(inner);
      i = next;
      continue;
    }
    if (/\d/.test(m[2]) !== ordered) break;
    const body = [m[3]];
    for (i++; i < lines.length && lines[i].trim() && !listItem.test(lines[i]) && /^\s/.test(lines[i]) && !/^\s*```/.test(lines[i]); i++)
      body.push(lines[i].trim());
    node.append(el("li", ...inline(body.join(" "))));
    if (i + 1 < lines.length && !lines[i].trim() && listItem.test(lines[i + 1])) i++;
  }
  return [node, i];
}

function tableRow(line, cell) {
  const parts = line.trim().replace(/^\||\|$/g, "").split("|");
  return el("tr", ...parts.map((p) => el(cell, ...inline(p.trim()))));
}

function tableAt(lines, i) {
  return lines[i].includes("|") && i + 1 < lines.length && /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?$/.test(lines[i + 1].trim());
}

function blocks(lines, depth) {
  const out = [];
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    let m;
    if (!line.trim()) {
      i++;
    } else if ((m = /^\s*(```+|~~~+)\s*([^\s`]*)/.exec(line))) {
      const body = [];
      for (i++; i < lines.length && !lines[i].trim().startsWith(m[1]); i++) body.push(lines[i]);
      i++;
      out.push(codeBlock(body, m[2]));
    } else if ((m = /^(#{1,6})\s+(.*)$/.exec(line))) {
      let end = m[2].length;
      while (end && m[2][end - 1] === "#") end--;
      out.push(el("h" + Math.min(6, m[1].length + 1), ...inline(m[2].slice(0, end).trimEnd())));
      i++;
    } else if (formulaAt(line) && (m = formulaBlock(lines, i))) {
      out.push(m[0]);
      i = m[1];
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      out.push(el("hr"));
      i++;
    } else if (/^\s*>/.test(line) && depth < 6) {
      const body = [];
      for (; i < lines.length && /^\s*>/.test(lines[i]); i++) body.push(lines[i].replace(/^\s*> ?/, ""));
      out.push(el("blockquote", ...blocks(body, depth + 1)));
    } else if (listItem.test(line)) {
      const [node, next] = list(lines, i, 0);
      out.push(node);
      i = next > i ? next : i + 1;
    } else if (tableAt(lines, i)) {
      const table = el("table", el("thead", tableRow(line, "th"))), body = el("tbody");
      for (i += 2; i < lines.length && lines[i].includes("|"); i++) body.append(tableRow(lines[i], "td"));
      table.append(body);
      out.push(table);
    } else {
      const body = [];
      do body.push(lines[i++]);
      while (i < lines.length && lines[i].trim() && !/^\s*(```|~~~|#{1,6}\s|>)/.test(lines[i]) && !listItem.test(lines[i]) && !tableAt(lines, i) && !formulaAt(lines[i]));
      const p = el("p");
      body.forEach((text, k) => {
        if (k) p.append(/( {2}|\\)$/.test(body[k - 1]) ? el("br") : "\n");
        p.append(...inline(text.replace(/( {2}|\\)$/, "")));
      });
      out.push(p);
    }
  }
  return out;
}

// Returns the nodes of a Markdown source.
export function markdown(text) {
  return blocks(String(text).replace(/\r\n?/g, "\n").split("\n"), 0);
}
