// Draws a message: reasoning, the text or its tokens with probabilities, tool calls.
import { imageNode } from "./images.js";
import { markdown } from "./markdown.js";

function el(name, className, ...children) {
  const e = document.createElement(name);
  if (className) e.className = className;
  e.append(...children);
  return e;
}

function folded(className, title, open, ...children) {
  const d = el("details", className, el("summary", "", title), ...children);
  d.open = open;
  return d;
}

// Arguments are the model's own bytes; valid JSON is indented.
function laidOut(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const percent = (p) => (100 * p).toFixed(p < 0.001 ? 3 : 1) + " %";
const shown = (text) => text.replace(/\n/g, "\u21b5") || "\u2205";

// Shows the alternatives of the selected token below the text.
function alternatives(token) {
  const table = el("table", "top");
  for (const [text, p] of token.top || []) {
    const row = el("tr", text === token.text ? "taken" : "", el("td", "", el("code", "", shown(text))), el("td", "", percent(p)));
    table.append(row);
  }
  return table;
}

function tokens(turn) {
  const text = el("p", "tokens"), below = el("div", "");
  turn.tokens.forEach((t) => {
    const b = el("button", "token", t.text);
    b.type = "button";
    b.title = percent(t.p) + (t.top?.length ? " \u2014 " + t.top.map(([x, p]) => `${shown(x)} ${percent(p)}`).join(", ") : "");
    b.dataset.sure = String(Math.min(4, Math.floor(t.p * 5)));
    b.addEventListener("click", () => below.replaceChildren(alternatives(t)));
    text.append(b);
  });
  return [text, below];
}

// Returns the complete calls; a truncated call is not valid JSON.
export function wholeCalls(turn) {
  return (turn.calls || []).filter((c) => {
    try {
      return JSON.parse(c.arguments) instanceof Object;
    } catch {
      return false;
    }
  });
}

export function who(turn) {
  return { user: "You", tool: "Result of " + turn.name }[turn.role] || "Model";
}

// Returns the nodes of a turn's body. writing: the turn is being generated.
export function turnBody(turn, writing) {
  if (turn.images?.length) return [el("div", "images", ...turn.images.map(imageNode)), turn.content];
  if (turn.role === "user" || turn.role === "tool") return [turn.content];
  const out = [];
  if (turn.reasoning) out.push(folded("reasoning", "Reasoning", false, el("div", "", ...markdown(turn.reasoning))));
  out.push(...(turn.asTokens && turn.tokens?.length ? tokens(turn) : markdown(turn.content)));
  for (const c of turn.calls || [])
    out.push(folded("call", "Calls " + c.name, !writing, el("pre", "", el("code", "", laidOut(c.arguments)))));
  return out;
}

// Returns a conversation as Markdown.
export function asMarkdown(c) {
  const parts = [`# ${c.title}`];
  for (const t of c.turns) {
    parts.push("## " + who(t));
    if (t.reasoning) parts.push("> " + t.reasoning.trim().replace(/\n/g, "\n> "));
    for (const i of t.images || []) parts.push(`(image: ${i.name})`);
    if (t.content) parts.push(t.content);
    for (const call of t.calls || []) parts.push("```json\n" + JSON.stringify({ name: call.name, arguments: call.arguments }) + "\n```");
  }
  return parts.join("\n\n") + "\n";
}
