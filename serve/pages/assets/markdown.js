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

// Code spans and formulas first, then links, strong, emphasis, strike; the earliest match wins.
const spans = [
  { re: /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/, make: (m) => el("code", m[2].replace(/^ (.+) $/s, "$1")) },
  { re: /\$\$([^$]+?)\$\$/, make: (m) => formula(m[1], true, m[0]) },
  { re: /\\\[([\s\S]+?)\\\]/, make: (m) => formula(m[1], true, m[0]) },
  { re: /\\\(([\s\S]+?)\\\)/, make: (m) => formula(m[1], false, m[0]) },
  // prices are not formulas: no blank inside the dollars, no digit after them
  { re: /(?<![\\$\w])\$(?=[^\s$])([^$\n`]*?[^\s$\\`])\$(?![\d$])/, make: (m) => formula(m[1], false, m[0]) },
  { re: /\[([^\]\n]+)\]\(([^\s()]+(?:\([^\s()]*\))?)\)/, make: (m, depth) => link(m[2], inline(m[1], depth + 1), m[0]) },
  { re: /<?(https?:\/\/[^\s<>()\]]*[^\s<>()\].,;:!?'"])>?/i, make: (m) => link(m[1], [m[1]], m[0]) },
  { re: /(\*\*|__)(?=\S)([\s\S]*?\S)\1/, make: (m, depth) => el("strong", ...inline(m[2], depth + 1)) },
  { re: /(?<![\w*])([*_])(?=[^\s*_])([\s\S]*?[^\s])\1(?![\w*])/, make: (m, depth) => el("em", ...inline(m[2], depth + 1)) },
  { re: /~~(?=\S)([\s\S]*?\S)~~/, make: (m, depth) => el("s", ...inline(m[1], depth + 1)) },
];

function link(href, children, source) {
  if (!safeLink.test(href)) return source;
  const a = el("a", ...children);
  a.href = href;
  a.target = "_blank";
  a.rel = "noopener noreferrer nofollow";
  return a;
}

function inline(text, depth = 0) {
  const out = [];
  while (text && depth < 8) {
    let best = null;
    for (const span of spans) {
      const m = span.re.exec(text);
      if (m && (!best || m.index < best.m.index)) best = { m, span };
    }
    if (!best) break;
    if (best.m.index) out.push(text.slice(0, best.m.index));
    out.push(best.span.make(best.m, depth));
    text = text.slice(best.m.index + best.m[0].length);
  }
  if (text) out.push(text);
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
  for (let next = i + 1; ; text += "\n" + lines[next++]) {
    const at = text.indexOf(end);
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
  return lines[i].includes("|") && i + 1 < lines.length && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$/.test(lines[i + 1]);
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
    } else if ((m = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line))) {
      out.push(el("h" + Math.min(6, m[1].length + 1), ...inline(m[2])));
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
