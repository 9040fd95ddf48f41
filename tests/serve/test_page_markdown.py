"""Markdown, code and formulas in answers of the chat page: drawn, inert and in linear time."""

import json

from page_browser import (  # noqa: F401
    By,
    browser,
    chat,
    css,
    keep,
    pytestmark,
    shot,
)
from waiting import HANG


HOSTILE = r"""<script>window.pwned = 1</script><img src=x onerror="window.pwned = 2"><svg onload="window.pwned=3">

# <b onmouseover=window.pwned=4>head</b>

[click](javascript:window.pwned=5) [data](data:text/html,<script>window.pwned=6</script>) <javascript:alert(1)> [ok](https://example.org/a_(b))

| a | <script>window.pwned=7</script> |
|---|---|
| `<i>` | **bold** |

- one
  - two <iframe src="javascript:window.pwned=8"></iframe>

```html"><script>window.pwned=9</script>
<script>window.pwned = 10</script>
```
> quote [x]( jav&#x09;ascript:window.pwned=11)
"""


def test_a_table_after_a_line_of_text(chat):
    keep(
        chat,
        [
            {
                "id": "x",
                "title": "t",
                "turns": [
                    {"role": "user", "content": "q"},
                    {
                        "role": "assistant",
                        "content": "Some towns:\n| town | people |\n|:--|--:|\n| Ghent | 265 |\nNot a | row",
                    },
                ],
            }
        ],
    )
    chat.refresh()
    body = chat.find_element(By.CSS_SELECTOR, ".turn.assistant .body")
    assert body.find_element(By.TAG_NAME, "p").text == "Some towns:"
    assert [e.text for e in body.find_elements(By.CSS_SELECTOR, "th, td")][:4] == [
        "town",
        "people",
        "Ghent",
        "265",
    ]


def test_hostile_markdown_stays_inert(chat):
    turns = [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": HOSTILE}]
    chat.execute_script(
        "localStorage.setItem('llmc.chat.v1', arguments[0])",
        json.dumps([{"id": "x", "title": "<img src=x onerror='window.pwned=12'>", "turns": turns}]),
    )
    chat.refresh()
    body = chat.find_element(By.CSS_SELECTOR, ".turn.assistant .body")
    for e in chat.find_elements(By.CSS_SELECTOR, ".turn a"):
        assert e.get_attribute("href").startswith("https://example.org"), e.get_attribute("href")
        assert "noopener" in e.get_attribute("rel")
    for name in ("script", "img", "iframe", "svg", "b", "i"):
        assert not chat.find_elements(By.CSS_SELECTOR, f"#log {name}, #list {name}"), name
    assert (
        body.find_elements(By.TAG_NAME, "table")
        and body.find_elements(By.TAG_NAME, "pre")
        and body.find_elements(By.TAG_NAME, "strong")
    )
    assert "window.pwned = 10" in body.find_element(By.TAG_NAME, "pre").text
    chat.execute_async_script(
        "const done = arguments[0]; fetch('/version').finally(() => requestAnimationFrame(() => setTimeout(done)))"
    )  # error handlers of failed loads have run
    assert chat.execute_script("return window.pwned") is None
    shot(chat, "chat-hostile")


# openers without closers, each repeated to 200 kB: superlinear time would exceed the script's limit
UNCLOSED = ["**a e ", "[", "[a](", "$a ", "~~a ", "*a ", "__a ", "\\(a ", "<h"]
CLOSED = [
    *("a `b` **c ", "**a `e ", "_a_b ", "`` ` ``` ", "$$a ", "> a\n", "- a\n", "  - a\n"),
    *("$$\na\n", "|a\n-|-\n", "```\nx\n", "# a #\n", " "),
]


def test_long_markdown_takes_linear_time(chat):
    """The page draws the whole answer for each frame, so hostile text must not block it."""
    chat.set_script_timeout(HANG)
    run = """
        const [units, done] = arguments;
        import("/page/markdown.js").then(({ markdown }) => done(units.map((u) => {
            const source = u.repeat(Math.ceil(200000 / u.length)).trim();
            const box = document.createElement("div");
            box.append(...markdown(source));
            return box.textContent === source;
        })), (e) => done(String(e)));
    """
    assert chat.execute_async_script(run, UNCLOSED) == [True] * len(UNCLOSED)
    assert len(chat.execute_async_script(run, CLOSED)) == len(CLOSED)


CODE = {
    "python": "@cached\ndef f(x: int) -> str:\n    '''a \"text\"'''\n    return f\"{x}\" if x > 0x1F else None  # why\n",
    "js": "const a = `x ${b}`; // c\nfunction g() { return a + 1.5e3; }\n",
    "c": '#include <stdio.h>\nint main(void) { printf("hi\\n"); /* c */ return 0; }\n',
    "rust": "fn main() { let x: &'a str = \"a\"; let c = 'x'; }\n",
    "sh": 'for i in $HOME; do echo "${i}#"; done # end\n',
    "json": '{"a": [1, true, "b"]}\n',
    "yaml": "a: 1 # c\nb: 'x'\n",
    "html": '<a href="x">b &amp; c</a><!-- d -->\n',
    "css": ".a { color: #fff; }\n",
    "sql": "SELECT count(*) FROM t -- c\n",
    "diff": "-a\n+b\n",
    "go": "func main() { x := `a` }\n",
    "java": "@Override public int f() { return 1; }\n",
    "unknown": '<b>x</b> "unfinished\n',
}
FORMULAS = r"""Inline $e^{i\pi} + 1 = 0$ and \(a_1^2 \le \sqrt[3]{b}\), prices of $5 and $6 stay, `$x$` too.

$$
\sum_{i=1}^{n} i = \frac{n(n+1)}{2}, \qquad \left( \int_0^\infty e^{-x^2}\,dx \right)^2
$$

\[ A = \begin{pmatrix} a & b \\ c & d \end{pmatrix}, \quad f(x) = \begin{cases} 1 & x \in \mathbb{R} \\ 0 & \text{else} \end{cases} \]

\begin{align}
x &= y \\
z' &= \unknown{w} \hat{v}
\end{align}

$$\begin{nothing} x \end{nothing}$$ and $$ unclosed
"""


def test_code_has_colours_and_formulas_are_drawn(chat):
    """Colours change no character, and an invalid formula is shown as its source."""
    content = (
        "\n\n".join(f"```{name}\n{text}```" for name, text in CODE.items()) + "\n\n" + FORMULAS
    )
    keep(
        chat,
        [
            {
                "id": "x",
                "title": "t",
                "turns": [
                    {"role": "user", "content": "q"},
                    {"role": "assistant", "content": content},
                ],
            }
        ],
    )
    chat.refresh()
    code = chat.find_elements(By.CSS_SELECTOR, ".turn.assistant .body pre code")
    assert [e.get_property("textContent") for e in code] == [t[:-1] for t in CODE.values()]
    kinds = {
        name: {
            (s.get_attribute("class")[4:], s.get_property("textContent"))
            for s in e.find_elements(By.TAG_NAME, "span")
        }
        for name, e in zip(CODE, code)
    }
    assert {
        ("w", "def"),
        ("s", "'''a \"text\"'''"),
        ("n", "0x1F"),
        ("c", "# why"),
        ("k", "@cached"),
        ("f", "f"),
    } <= kinds["python"]
    assert {
        ("c", "#include <stdio.h>"),
        ("w", "int"),
        ("f", "printf"),
        ("s", '"hi\\n"'),
        ("c", "/* c */"),
        ("n", "0"),
    } <= kinds["c"]
    assert {("s", '"a"'), ("k", "'a"), ("s", "'x'"), ("w", "let")} <= kinds["rust"] and {
        ("k", '"a"'),
        ("s", '"b"'),
        ("w", "true"),
    } <= kinds["json"]
    assert (
        {("w", "SELECT"), ("c", "-- c")} <= kinds["sql"]
        and {("d", "-a"), ("s", "+b")} == kinds["diff"]
        and not kinds["unknown"]
    )
    drawn = chat.execute_script("""return [...document.querySelectorAll('.turn.assistant math')].map((m) => [m.namespaceURI, m.getAttribute('display'), m.textContent.replace(/\\s+/g, ''),
        [...new Set([...m.querySelectorAll('*')].map((e) => e.localName))], m.getBoundingClientRect().height > 5])""")
    assert [d[1] for d in drawn] == [None, None, "block", "block", "block"] and all(
        d[0].endswith("MathML") and d[4] for d in drawn
    )
    assert (
        [d[2] for d in drawn][:2] == ["eiπ+1=0", "a12≤b3"]
        and {"msubsup", "mroot"} <= set(drawn[1][3])
        and {"munderover", "mfrac", "msup"} <= set(drawn[2][3])
        and "mtable" in drawn[3][3]
    )
    assert (
        "∑i=1ni=n(n+1)2" in drawn[2][2]
        and "ℝ" in drawn[3][2]
        and "else" in drawn[3][2]
        and "\\unknown" in drawn[4][2]
    )
    text = chat.find_element(By.CSS_SELECTOR, ".turn.assistant .body").text
    assert (
        "prices of $5 and $6 stay, $x$ too" in text
        and "\\begin{nothing} x \\end{nothing}" in text
        and "$$ unclosed" in text
    )
    chat.execute_script("document.querySelector('#log math').scrollIntoView()")
    shot(chat, "chat-code-formulas")
    chat.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 375, "height": 720, "deviceScaleFactor": 1, "mobile": True},
    )
    chat.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    try:
        assert chat.execute_script("return document.scrollingElement.scrollWidth") <= 375
        chat.execute_script("document.querySelector('#log pre').scrollIntoView()")
        shot(chat, "chat-phone-code")
        chat.execute_script("document.querySelector('#log math').scrollIntoView()")
        shot(chat, "chat-phone-formulas")
    finally:
        chat.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        chat.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
