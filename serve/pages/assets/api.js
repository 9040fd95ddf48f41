// Client of the server's OpenAI routes for the pages.

export function headers(key) {
  const h = { "Content-Type": "application/json" };
  if (key) h.Authorization = "Bearer " + key;
  return h;
}

// Converts an unsuccessful response to an Error with the server's code.
async function problem(response) {
  try {
    const j = await response.json();
    return Object.assign(new Error(j.error?.message || j.error || j.message || response.statusText), { code: j.error?.code });
  } catch {
    return new Error(`${response.status} ${response.statusText}`);
  }
}

// Yields the JSON value of each server-sent event, until [DONE].
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const frame = rest.slice(0, end);
      rest = rest.slice(end + 2);
      for (const line of frame.split("\n")) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  }
}

function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch (e) {
    throw new Error(`${what} in the settings is no JSON: ${e.message}`);
  }
}

// Yields the parts of an answer: {text}, {reasoning}, {call: {index, id, name, arguments}} and {tokens} as they arrive, {usage} and {finish} once known.
export async function* complete({ model, messages, settings, plain, signal }) {
  const body = { model, stream: true, stream_options: { include_usage: true } };
  if (settings.temperature !== "") body.temperature = Number(settings.temperature);
  if (settings.top_p !== "") body.top_p = Number(settings.top_p);
  if (settings.max_tokens !== "") body.max_tokens = Number(settings.max_tokens);
  if (settings.seed !== "") body.seed = Number(settings.seed);
  if (settings.probs && !plain) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  if (settings.schema.trim()) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: parsed(settings.schema, "The JSON schema") } };
  if (settings.tools.trim() && !plain) body.tools = parsed(settings.tools, "The list of tools");
  if (plain) {
    body.prompt = messages.map((m) => m.content).filter(Boolean).join("\n\n");
  } else {
    body.messages = messages;
  }
  const response = await fetch(plain ? "/v1/completions" : "/v1/chat/completions",
    { method: "POST", headers: headers(settings.key), body: JSON.stringify(body), signal });
  if (!response.ok) throw await problem(response);
  for await (const e of events(response)) {
    if (e.error) throw new Error(e.error.message || String(e.error));
    if (e.usage) yield { usage: e.usage };
    const c = e.choices?.[0];
    if (!c) continue;
    const text = plain ? c.text : c.delta?.content;
    if (c.delta?.reasoning_content) yield { reasoning: c.delta.reasoning_content };
    for (const k of c.delta?.tool_calls || []) yield { call: { index: k.index, id: k.id || "", name: k.function?.name || "", arguments: k.function?.arguments || "" } };
    const tokens = plain ? [] : c.logprobs?.content || [];
    if (text || tokens.length)
      yield { text: text || "", tokens: tokens.map((t) => ({ text: t.token, p: Math.exp(t.logprob), top: (t.top_logprobs || []).map((o) => [o.token, Math.exp(o.logprob)]) })) };
    if (c.finish_reason) yield { finish: c.finish_reason };
  }
}
