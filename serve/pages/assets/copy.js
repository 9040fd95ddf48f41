// Copies a string to the clipboard. navigator.clipboard exists only on https and localhost; the fallback needs a selection.
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"), at = document.activeElement;
  area.value = text;
  area.className = "offscreen";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  at?.focus();
  if (!done) throw new Error("the browser did not copy");
}

export function copyButton(text) {
  const b = document.createElement("button");
  b.type = "button";
  b.textContent = "Copy";
  b.addEventListener("click", () => copy(text()).then(() => { b.textContent = "Copied"; }, () => { b.textContent = "Not copied"; }));
  return b;
}
