// Mathematics: converts the part of TeX that models write to MathML. Unknown input is shown as its source; nothing is parsed as HTML.

const NS = "http://www.w3.org/1998/Math/MathML";
const MOST = 4000, DEEPEST = 40;

function el(name, ...children) {
  const e = document.createElementNS(NS, name);
  e.append(...children);
  return e;
}

function table(s) {
  const out = {}, parts = s.split(" ");
  for (let i = 0; i + 1 < parts.length; i += 2) out[parts[i]] = parts[i + 1];
  return out;
}

const letters = table("alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ mu μ nu ν xi ξ pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω " +
  "Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω infty ∞ partial ∂ nabla ∇ ell ℓ hbar ℏ imath ı jmath ȷ Re ℜ Im ℑ aleph ℵ emptyset ∅ varnothing ∅ top ⊤ bot ⊥ angle ∠ triangle △ prime ′ degree °");
const operators = table("times × cdot ⋅ div ÷ pm ± mp ∓ ast ∗ star ⋆ circ ∘ bullet ∙ oplus ⊕ otimes ⊗ odot ⊙ wedge ∧ land ∧ vee ∨ lor ∨ neg ¬ lnot ¬ cap ∩ cup ∪ setminus ∖ le ≤ leq ≤ ge ≥ geq ≥ ne ≠ neq ≠ ll ≪ gg ≫ equiv ≡ approx ≈ sim ∼ simeq ≃ cong ≅ " +
  "propto ∝ in ∈ notin ∉ ni ∋ subset ⊂ subseteq ⊆ supset ⊃ supseteq ⊇ forall ∀ exists ∃ nexists ∄ to → rightarrow → leftarrow ← leftrightarrow ↔ Rightarrow ⇒ implies ⟹ Leftarrow ⇐ Leftrightarrow ⇔ iff ⟺ mapsto ↦ longrightarrow ⟶ uparrow ↑ downarrow ↓ " +
  "mid ∣ parallel ∥ perp ⊥ ldots … dots … cdots ⋯ vdots ⋮ ddots ⋱ colon : therefore ∴ because ∵ langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ lvert | rvert | vert | lVert ‖ rVert ‖ Vert ‖ | ‖ backslash \\ { { } } % % $ $ # # & & _ _");
const big = table("sum ∑ prod ∏ coprod ∐ bigcup ⋃ bigcap ⋂ bigoplus ⨁ bigotimes ⨂ bigvee ⋁ bigwedge ⋀ int ∫ iint ∬ iiint ∭ oint ∮");
const names = new Set("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp arg dim ker deg hom Pr".split(" "));
const limits = new Set("lim max min sup inf limsup liminf gcd det argmax argmin".split(" "));
const accents = table("hat ^ widehat ^ bar ¯ overline ¯ vec → tilde ~ widetilde ~ dot ˙ ddot ¨ overbrace ⏞");
const spaces = table("quad 1em qquad 2em , 0.167em : 0.222em ; 0.278em ! -0.167em");
const holes = { bb: table("C ℂ H ℍ N ℕ P ℙ Q ℚ R ℝ Z ℤ"), cal: table("B ℬ E ℰ F ℱ H ℋ I ℐ L ℒ M ℳ R ℛ e ℯ g ℊ o ℴ"), frak: table("C ℭ H ℌ I ℑ R ℜ Z ℨ") };
const alphabets = { mathbb: ["bb", 0x1d538, 0x1d552, 0x1d7d8], mathbf: ["", 0x1d400, 0x1d41a, 0x1d7ce], boldsymbol: ["", 0x1d400, 0x1d41a, 0x1d7ce], bm: ["", 0x1d400, 0x1d41a, 0x1d7ce], mathcal: ["cal", 0x1d49c, 0x1d4b6], mathscr: ["cal", 0x1d49c, 0x1d4b6],
  mathfrak: ["frak", 0x1d504, 0x1d51e], mathsf: ["", 0x1d5a0, 0x1d5ba, 0x1d7e2], mathtt: ["", 0x1d670, 0x1d68a, 0x1d7f6] };
const fences = { matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"], vmatrix: ["|", "|"], Vmatrix: ["‖", "‖"], smallmatrix: ["", ""], array: ["", ""], cases: ["{", ""], aligned: ["", ""], align: ["", ""], "align*": ["", ""], gathered: ["", ""], gather: ["", ""], "gather*": ["", ""], equation: ["", ""], "equation*": ["", ""], split: ["", ""] };

function styled(text, how) {
  const [hole, upper, lower, digit] = alphabets[how];
  return [...text].map((x) => {
    const c = x.charCodeAt(0);
    if (holes[hole] && holes[hole][x]) return holes[hole][x];
    if (c >= 65 && c <= 90) return String.fromCodePoint(upper + c - 65);
    if (c >= 97 && c <= 122) return String.fromCodePoint(lower + c - 97);
    return digit && c >= 48 && c <= 57 ? String.fromCodePoint(digit + c - 48) : x;
  }).join("");
}

class Reader {
  constructor(source) {
    this.t = source.match(/\\[A-Za-z]+\*?|\\[\s\S]|\d+(?:\.\d+)?|\s+|[\s\S]/gu) || [];
    this.i = 0;
    this.depth = 0;
  }

  next() {
    this.blanks();
    return this.t[this.i];
  }

  blanks() {
    while (this.i < this.t.length && /^\s+$/.test(this.t[this.i])) this.i++;
  }

  // Returns the source of {...}.
  raw() {
    let depth = 0, out = "";
    if (this.next() !== "{") return this.t[this.i++] || "";
    for (; this.i < this.t.length; this.i++) {
      const x = this.t[this.i];
      if (x === "}" && --depth === 0) break;
      if (depth) out += x;
      if (x === "{") depth++;
    }
    this.i++;
    return out;
  }

  // Parses atoms up to a terminating token, which is not consumed.
  row(ends) {
    const out = [];
    if (++this.depth > DEEPEST) throw new Error("deep");
    for (let x; (x = this.next()) !== undefined && !ends.includes(x); ) {
      const node = this.scripts(x === "^" || x === "_" ? el("mrow") : this.atom());
      if (node) out.push(node);
    }
    this.depth--;
    return out;
  }

  // Parses {...}.
  group() {
    this.i++;
    const inside = this.row(["}"]);
    this.i++;
    return inside.length === 1 ? inside[0] : el("mrow", ...inside);
  }

  // Parses an argument: a group or one atom.
  argument() {
    const x = this.next();
    if (x === undefined || x === "}" || x === "&") return el("mrow");
    if (x === "{") return this.group();
    if (++this.depth > DEEPEST) throw new Error("deep");
    const node = this.atom() || el("mrow");
    this.depth--;
    return node;
  }

  scripts(base) {
    let sub = null, sup = null;
    if (!base) return base;
    for (let x; (x = this.next()) === "^" || x === "_" || x === "'"; ) {
      if (x === "'") {
        let n = 0;
        while (this.next() === "'") this.i++, n++;
        const primes = el("mo", "′".repeat(Math.min(n, 4)));
        sup = sup ? el("mrow", sup, primes) : primes;
        continue;
      }
      this.i++;
      const node = this.argument();
      if (x === "_") sub = node;
      else sup = sup ? el("mrow", sup, node) : node;
    }
    if (!sub && !sup) return base;
    const under = base.limits, kind = under ? (sub && sup ? "munderover" : sub ? "munder" : "mover") : sub && sup ? "msubsup" : sub ? "msub" : "msup";
    return el(kind, base, ...[sub, sup].filter(Boolean));
  }

  fence() {
    const x = this.next();
    this.i++;
    const text = x === "." || x === undefined ? "" : x[0] === "\\" ? operators[x.slice(1)] || x.slice(1) : x === "<" ? "⟨" : x === ">" ? "⟩" : x;
    return text;
  }

  stretched(text) {
    const mo = el("mo", text);
    mo.setAttribute("stretchy", "true");
    return mo;
  }

  environment() {
    const name = this.raw(), marks = fences[name];
    if (!marks) throw new Error("environment");
    if (name === "array") this.raw();
    const rows = [[]];
    for (;;) {
      const cell = el("mtd", ...this.row(["&", "\\\\", "\\end"]));
      rows[rows.length - 1].push(cell);
      const x = this.next();
      this.i++;
      if (x === "\\\\") rows.push([]);
      else if (x !== "&") break;
    }
    this.raw();
    if (rows.length > 1 && rows[rows.length - 1].every((c) => !c.childNodes.length)) rows.pop();
    const grid = el("mtable", ...rows.map((r) => el("mtr", ...r)));
    if (name === "cases" || name.startsWith("align") || name === "split") grid.setAttribute("class", "math-left");
    return el("mrow", ...(marks[0] ? [this.stretched(marks[0])] : []), grid, ...(marks[1] ? [this.stretched(marks[1])] : []));
  }

  atom() {
    const x = this.next();
    if (x === "{") return this.group();
    this.i++;
    if (x === "}" || x === "&") return null;
    if (x === "~") return el("mtext", "\u00a0");
    if (/^\d/.test(x)) return el("mn", x);
    if (/^\p{L}$/u.test(x)) return el("mi", x);
    if (x[0] !== "\\") {
      const mo = el("mo", x === "-" ? "−" : x === "*" ? "∗" : x);
      if ("()[]|/".includes(x)) mo.setAttribute("stretchy", "false"); // \left and \right enable it
      return mo;
    }
    const name = x.slice(1);
    if (letters[name]) return el("mi", letters[name]);
    if (operators[name]) return el("mo", operators[name]);
    if (big[name]) {
      const mo = el("mo", big[name]);
      mo.limits = !name.endsWith("int");
      if (mo.limits) mo.setAttribute("movablelimits", "true");
      return mo;
    }
    if (names.has(name)) return el("mi", name);
    if (limits.has(name)) {
      const mo = el("mo", name);
      mo.setAttribute("movablelimits", "true");
      mo.limits = true;
      return mo;
    }
    if (spaces[name] || name === " " || name === "\n") {
      const space = el("mspace");
      space.setAttribute("width", spaces[name] || "0.25em");
      return space;
    }
    if (alphabets[name]) return el("mi", styled(this.raw(), name));
    if (accents[name]) {
      const node = el("mover", this.argument(), el("mo", accents[name]));
      node.setAttribute("accent", "true");
      return node;
    }
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac": return el("mfrac", this.argument(), this.argument());
      case "binom": {
        const f = el("mfrac", this.argument(), this.argument());
        f.setAttribute("linethickness", "0");
        return el("mrow", this.stretched("("), f, this.stretched(")"));
      }
      case "sqrt": {
        if (this.next() !== "[") return el("msqrt", this.argument());
        this.i++;
        const root = el("mrow", ...this.row(["]"]));
        this.i++;
        return el("mroot", this.argument(), root);
      }
      case "text": case "textrm": case "textbf": case "textit": case "mbox": case "operatorname": case "operatorname*": case "mathrm": case "mathit": {
        const node = el(name.startsWith("math") || name.startsWith("op") ? "mi" : "mtext", this.raw().replace(/\\([_%$#&{} ])/g, "$1"));
        if (name !== "mathit") node.setAttribute("mathvariant", "normal");
        return node;
      }
      case "left": {
        const open = this.fence(), inside = this.row(["\\right"]);
        this.i++;
        const close = this.fence();
        return el("mrow", ...(open ? [this.stretched(open)] : []), ...inside, ...(close ? [this.stretched(close)] : []));
      }
      case "underbrace": {
        const node = el("munder", this.argument(), this.stretched("⏟"));
        node.limits = true;
        return node;
      }
      case "underline": return el("munder", this.argument(), this.stretched("_"));
      case "overset": case "stackrel": {
        const over = this.argument();
        return el("mover", this.argument(), over);
      }
      case "underset": {
        const under = this.argument();
        return el("munder", this.argument(), under);
      }
      case "not": return el("mo", (this.argument().textContent || "") + "\u0338");
      case "boxed": return el("mrow", this.argument());
      case "begin": return this.environment();
      case "tag": return el("mtext", "\u2003(" + this.raw() + ")");
      case "displaystyle": case "textstyle": case "limits": case "nolimits": case "big": case "Big": case "bigg": case "Bigg": case "bigl": case "bigr": case "Bigl": case "Bigr": case "label": case "right": case "middle": return null;
      case "\\": return null;
      case "pmod": return el("mrow", el("mo", "("), el("mi", "mod"), el("mspace"), this.argument(), el("mo", ")"));
      case "bmod": case "mod": return el("mo", "mod");
      default: return el("mtext", x);
    }
  }
}

// Returns <math>, or null if the source is to be shown.
export function math(source, display) {
  if (source.length > MOST) return null;
  try {
    const r = new Reader(source), rows = r.row([]);
    if (r.i < r.t.length) return null;
    const node = el("math", el("mrow", ...rows));
    if (display) node.setAttribute("display", "block");
    node.setAttribute("alttext", source);
    return node;
  } catch {
    return null;
  }
}
