// A line plot over time with axes: one SVG per plot, one line per series.
const W = 340, H = 150, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 20;

function svg(name, attributes, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  return e;
}

function html(name, className, text = "") {
  const e = document.createElement(name);
  e.className = className;
  e.textContent = text;
  return e;
}

// Returns ticks at 1, 2 or 5 times a power of ten from 0 up to the first one that holds `most`.
export function ticks(most) {
  const rough = Math.max(most, 1e-9) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough);
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, k) => k * step);
}

export function number(v) {
  if (v >= 1e6) return Number((v / 1e6).toPrecision(3)) + " M";
  if (v >= 1e4) return Number((v / 1e3).toPrecision(3)) + " k";
  return v >= 100 ? Math.round(v).toLocaleString("en") : String(Number(v.toPrecision(3)));
}

// Creates a plot in `parent`. spec: title, unit, series [{ name, of(sample) }], most(context) for
// a fixed upper end of the axis. The returned function draws samples [{ ago, value }], ago in
// seconds, over the last `seconds`; a null value leaves a gap.
export function createPlot(spec, parent) {
  const box = html("div", "plot"), now = html("div", "now"), key = html("div", "key");
  const pic = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${spec.title}, ${spec.unit}, over time` });
  const axes = svg("g", { class: "axes" }), lines = svg("g", {}), cursor = svg("line", { class: "cursor", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
  const head = html("h2", "", spec.title);
  head.append(html("span", "unit", " " + spec.unit));
  pic.append(axes, lines, cursor);
  box.append(head, now, key, pic);
  parent.append(box);
  let shown = null;

  const x = (ago) => W - RIGHT - (W - LEFT - RIGHT) * ago / shown.seconds;
  const y = (v) => H - BOTTOM - (H - TOP - BOTTOM) * Math.min(1, v / shown.top);
  const values = (s) => spec.series.map((one) => one.of(s));
  const read = (s) => values(s).map((v) => (v === null ? "–" : number(v))).join(" / ");

  function drawAxes(marks) {
    axes.replaceChildren();
    for (const v of marks) {
      axes.append(svg("line", { x1: LEFT, x2: W - RIGHT, y1: y(v), y2: y(v) }));
      axes.append(svg("text", { x: LEFT - 5, y: y(v) + 3.5, "text-anchor": "end" }, number(v)));
    }
    for (let k = 0; k <= 4; k++) {
      const ago = shown.seconds * k / 4, anchor = k === 0 ? "end" : k === 4 ? "start" : "middle";
      const label = k === 0 ? "now" : shown.seconds >= 600 ? `−${ago / 60} min` : `−${ago} s`;
      axes.append(svg("line", { x1: x(ago), x2: x(ago), y1: H - BOTTOM, y2: H - BOTTOM + 3 }));
      axes.append(svg("text", { x: x(ago), y: H - 5, "text-anchor": anchor }, label));
    }
  }

  // Draws one path per series. A missing value interrupts the line; a value between two missing
  // ones becomes a dash.
  function drawLines(samples) {
    lines.replaceChildren(...spec.series.map((one, k) => {
      let d = "", pen = "M";
      for (const [i, s] of samples.entries()) {
        const v = one.of(s), missing = (t) => !t || one.of(t) === null;
        if (v !== null && missing(samples[i - 1]) && missing(samples[i + 1])) {
          d += `M${(x(s.ago) - 1.5).toFixed(1)},${y(v).toFixed(1)}h3`;
          continue;
        }
        d += v === null ? "" : `${pen}${x(s.ago).toFixed(1)},${y(v).toFixed(1)}${pen === "M" ? "h0" : ""}`;
        pen = v === null ? "M" : "L";
      }
      return svg("path", { d, class: "series-" + k });
    }));
  }

  function draw(samples, seconds, context) {
    const some = samples.filter((s) => s.ago <= seconds);
    const most = Math.max(0, ...some.flatMap(values).filter((v) => v !== null));
    const marks = ticks(spec.most ? Math.max(spec.most(context), most) : Math.max(most, spec.least ?? 1));
    shown = { samples: some, seconds, top: marks.at(-1) };
    drawAxes(marks);
    drawLines(some);
    const last = some.at(-1), none = !last || values(last).every((v) => v === null);
    now.textContent = none ? spec.none ?? "no data" : read(last);
    key.replaceChildren(...(spec.series.length < 2 ? [] : spec.series.map((one, k) => html("span", "series-" + k, one.name))));
  }

  pic.addEventListener("pointermove", (e) => {
    if (!shown?.samples.length) return;
    const r = pic.getBoundingClientRect(), ago = (W - RIGHT - (e.clientX - r.left) * W / r.width) * shown.seconds / (W - LEFT - RIGHT);
    const s = shown.samples.reduce((a, b) => (Math.abs(a.ago - ago) < Math.abs(b.ago - ago) ? a : b));
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("x1", x(s.ago));
    cursor.setAttribute("x2", x(s.ago));
    now.textContent = `${read(s)}, ${s.ago < 600 ? Math.round(s.ago) + " s" : Math.round(s.ago / 60) + " min"} ago`;
  });
  pic.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    if (shown?.samples.length) now.textContent = read(shown.samples.at(-1));
  });
  return draw;
}
