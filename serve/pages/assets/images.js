// Images of messages. A turn has their ids and names; their data stays in this page and is not stored, because browsers
// store only a few megabytes.

const MOST = 14 << 20; // bytes of a file, so that its base64 fits into a request
const urls = new Map();

// Reads a file; returns {id, name}, or null if it is too large.
export async function readImage(file) {
  if (file.size > MOST) return null;
  const url = await new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
  const image = { id: String(Math.random()).slice(2), name: file.name || "image" };
  urls.set(image.id, url);
  return image;
}

// Returns an element with the image, or with its name if its data is gone.
export function imageNode(image) {
  const url = urls.get(image.id), node = document.createElement(url ? "img" : "span");
  if (url) Object.assign(node, { src: url, alt: image.name, title: image.name });
  else Object.assign(node, { className: "dim", textContent: `${image.name} (not kept after a reload)` });
  return node;
}

// Returns the content of a message: text, or parts with images before the text.
export function contentOf(turn) {
  const known = (turn.images || []).filter((i) => urls.has(i.id));
  if (!known.length) return turn.content;
  const parts = known.map((i) => ({ type: "image_url", image_url: { url: urls.get(i.id) } }));
  return turn.content ? [...parts, { type: "text", text: turn.content }] : parts;
}
