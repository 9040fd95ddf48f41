// The API page: a list of the routes from /openapi.json.
const make = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });

function fields(spec, operation) {
  const content = operation.requestBody?.content?.["application/json"]?.schema;
  const schema = content?.$ref ? spec.components.schemas[content.$ref.split("/").pop()] : content;
  const list = document.createElement("ul");
  for (const [name, f] of Object.entries(schema?.properties ?? {})) {
    const kind = f.type ?? f.$ref?.split("/").pop() ?? "";
    const bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "default"].filter((k) => k in f).map((k) => `${k} ${f[k]}`);
    const item = make("li", "");
    item.append(make("code", name), ` ${[kind, ...bounds, schema.required?.includes(name) ? "required" : ""].filter(Boolean).join(", ")}${f.description ? ": " + f.description : ""}`);
    list.append(item);
  }
  return list;
}

const spec = await (await fetch("/openapi.json")).json();
const routes = document.getElementById("routes");
for (const [path, methods] of Object.entries(spec.paths))
  for (const [method, operation] of Object.entries(methods)) {
    const box = document.createElement("details");
    const head = document.createElement("summary");
    head.append(make("code", `${method.toUpperCase()} ${path}`), ` ${operation.summary}`);
    const answers = Object.entries(operation.responses).map(([code, r]) => `${code}: ${r.description}`);
    box.append(head, fields(spec, operation), make("p", answers.join(" ")));
    routes.append(box);
  }
