// Syntax colours: a lexer of words, numbers, strings and comments, configured by a few lines per language. It has no grammar; unknown code stays plain.
// The text of the nodes is the source, unchanged.

const words = (s) => new Set(s.split(" "));
const c = { line: "//", block: ["/*", "*/"], quotes: "\"'" };
const languages = {
  python: { line: "#", quotes: "\"'", triple: true, prefix: "[rbfuRBFU]{0,2}", decorator: true, words: words("and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try while with yield True False None self") },
  javascript: { ...c, quotes: "\"'`", words: words("async await break case catch class const continue debugger default delete do else export extends finally for from function if import in instanceof interface let new of return static super switch this throw try type typeof var void while with yield enum implements private public readonly true false null undefined") },
  c: { ...c, preprocessor: true, words: words("alignas alignof auto bool break case catch char class const constexpr consteval continue default delete do double else enum explicit extern false final float for friend goto if inline int int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t long mutable namespace new noexcept nullptr operator override private protected public register restrict return short signed sizeof static static_assert struct switch template this throw true try typedef typename union unsigned using virtual void volatile while NULL __global__ __device__ __shared__") },
  java: { ...c, decorator: true, words: words("abstract assert boolean break byte case catch char class const continue default do double else enum extends final finally float for if implements import instanceof int interface long native new package private protected public record return sealed short static super switch synchronized this throw throws transient try var void volatile while yield true false null string object using namespace async await foreach in is out ref params get set val fun when companion data override suspend") },
  go: { ...c, quotes: "\"'`", words: words("break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var bool byte error float32 float64 int int8 int16 int32 int64 rune string uint uint8 uint16 uint32 uint64 any true false nil iota make new append len cap") },
  rust: { ...c, quotes: "\"", lifetime: true, words: words("as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while bool char f32 f64 i8 i16 i32 i64 i128 isize str u8 u16 u32 u64 u128 usize String Vec Option Result Some None Ok Err") },
  shell: { line: "#", quotes: "\"'", variable: true, words: words("if then else elif fi for in do done while until case esac function return exit export local set unset source echo cd read shift eval exec trap test") },
  sql: { line: "--", block: ["/*", "*/"], quotes: "\"'", nocase: true, words: words("select from where and or not in is null as on join left right inner outer full cross group by order having limit offset insert into values update set delete create table view index drop alter add primary key foreign references unique default check constraint distinct union all exists between like case when then else end with recursive over partition asc desc int integer text varchar real boolean date timestamp true false count sum avg min max begin commit rollback") },
  json: { quotes: "\"", keys: true, words: words("true false null") },
  yaml: { line: "#", quotes: "\"'", keys: true, words: words("true false null yes no") },
  css: { block: ["/*", "*/"], quotes: "\"'", css: true, words: words("important auto none inherit initial unset") },
  html: { markup: true },
  diff: { diff: true },
};
const other = { py: "python", python3: "python", js: "javascript", jsx: "javascript", ts: "javascript", tsx: "javascript", typescript: "javascript", mjs: "javascript", h: "c", cpp: "c", "c++": "c", cc: "c", hpp: "c", cuda: "c", cu: "c",
  "c#": "java", csharp: "java", cs: "java", kotlin: "java", swift: "java", scala: "java", golang: "go", rs: "rust", sh: "shell", bash: "shell", zsh: "shell", console: "shell", makefile: "shell", jsonc: "json", json5: "json", yml: "yaml", toml: "yaml",
  ini: "yaml", xml: "html", svg: "html", vue: "html", patch: "diff", scss: "css", less: "css", postgresql: "sql", sqlite: "sql", mysql: "sql" };

const MOST = 60000; // characters; longer code stays plain

const quoted = (s) => s.replace(/[.*+?^${}()|[\]\\\/]/g, "\\$&");

// One expression of named groups: c comment, s text, n number, w word, k other coloured text
function expression(l) {
  if (l.diff) return /^(?<add>\+.*)|^(?<del>-.*)|^(?<k>@@.*)/gm;
  if (l.markup) return /(?<c><!--[\s\S]*?(?:-->|$))|(?<w><\/?[A-Za-z][\w:-]*|\/?>)|(?<k>[A-Za-z_:][\w:.-]*(?==["']))|(?<s>(?<==)(?:"[^"]*"|'[^']*'))|(?<n>&[#\w]+;)/g;
  const parts = [], comments = [];
  if (l.block) comments.push(quoted(l.block[0]) + "[\\s\\S]*?(?:" + quoted(l.block[1]) + "|$)");
  if (l.line) comments.push((l.line === "#" ? "(?<![\\w$&{])" : "") + quoted(l.line) + ".*");
  if (l.preprocessor) comments.push("(?<=^|\\n)[ \\t]*#[ \\t]*[a-z]+\\b.*");
  if (comments.length) parts.push("(?<c>" + comments.join("|") + ")");
  const strings = [];
  if (l.triple) for (const q of ['"""', "'''"]) strings.push((l.prefix || "") + q + "[\\s\\S]*?(?:" + q + "|$)");
  for (const q of l.quotes || "")
    strings.push((l.prefix || "") + (q === "`" ? "`(?:\\\\[\\s\\S]|[^`\\\\])*(?:`|$)" : q + "(?:\\\\.|[^\\\\\\n" + q + "])*(?:" + q + "|(?=\\n)|$)"));
  if (strings.length) parts.push("(?<s>" + strings.join("|") + ")");
  if (l.variable) parts.push("(?<k>\\$\\{[^}\\n]*\\}|\\$(?:\\w+|[@#?*!-]))");
  if (l.decorator) parts.push("(?<k>@[\\w.]+)");
  if (l.lifetime) parts.push("(?<k>'[a-z_]\\w*\\b(?!'))|(?<ch>'(?:\\\\.[^']*|[^'\\\\])')");
  if (l.css) parts.push("(?<k>[.#@][A-Za-z_-][\\w-]*|--[\\w-]+|[a-z-]+(?=\\s*:))");
  parts.push("(?<n>(?<![\\w.])(?:0[xX][\\da-fA-F_]+|0[bB][01_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)[a-zA-Z%]*)");
  if (l.keys && l.line) parts.push("(?<y>[A-Za-z_][\\w.-]*(?=\\s*[:=](?:\\s|$)))");
  parts.push("(?<w>[A-Za-z_$][\\w$]*)");
  return new RegExp(unique(parts.join("|")), "g");
}

// Group names must be unique in an expression: the second k gets another name.
function unique(source) {
  let n = 0;
  return source.replace(/\(\?<k>/g, () => "(?<k" + n++ + ">");
}

function kind(l, groups, text, end) {
  if (groups.c !== undefined) return "tok-c";
  if (groups.s !== undefined) return l.keys && /\s*:/y.test(text.slice(end, end + 20)) ? "tok-k" : "tok-s";
  if (groups.ch !== undefined) return "tok-s";
  if (groups.n !== undefined) return "tok-n";
  if (groups.add !== undefined) return "tok-s";
  if (groups.del !== undefined) return "tok-d";
  if (groups.w !== undefined) {
    if (l.markup || l.words.has(l.nocase ? groups.w.toLowerCase() : groups.w)) return "tok-w";
    return text[end] === "(" ? "tok-f" : "";
  }
  return "tok-k";
}

// Returns nodes and strings for source code.
export function highlight(text, language) {
  const name = language.toLowerCase(), l = languages[name] || languages[other[name]];
  if (!l || text.length > MOST) return [text];
  const re = l.re || (l.re = expression(l)), out = [];
  let from = 0;
  re.lastIndex = 0;
  for (let m; (m = re.exec(text)); ) {
    if (!m[0]) {
      re.lastIndex++;
      continue;
    }
    const name = kind(l, m.groups, text, m.index + m[0].length);
    if (!name) continue;
    if (m.index > from) out.push(text.slice(from, m.index));
    const span = document.createElement("span");
    span.className = name;
    span.textContent = m[0];
    out.push(span);
    from = m.index + m[0].length;
  }
  if (from < text.length) out.push(text.slice(from));
  return out;
}
