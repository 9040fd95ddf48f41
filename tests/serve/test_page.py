"""The chat page and the status page in Debian's Chromium. Screenshots are in build/screens."""

import contextlib
import json
import os
import re
import shutil
import threading

import pytest

selenium = pytest.importorskip("selenium")
from selenium import webdriver  # noqa: E402
from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402
from waiting import HANG  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCREENS = os.path.join(ROOT, "build", "screens")
pytestmark = pytest.mark.skipif(not shutil.which("chromedriver"), reason="no chromedriver")

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


@pytest.fixture(scope="module")
def browser():
    o = Options()
    for a in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1100,800",
        "--host-resolver-rules=MAP plain.test 127.0.0.1",
    ):
        o.add_argument(a)
    o.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    b = webdriver.Chrome(options=o, service=Service(shutil.which("chromedriver")))
    os.makedirs(SCREENS, exist_ok=True)
    yield b
    b.quit()


@pytest.fixture
def chat(browser, smol):
    """The empty chat page of a server with SmolLM2."""
    browser.set_window_size(1100, 800)
    browser.get(smol.url + "/chat")
    browser.execute_script(
        "localStorage.clear(); localStorage.setItem('llmc.settings.v1', JSON.stringify({temperature: '0', max_tokens: '24'}))"
    )
    browser.refresh()
    wait(browser, lambda b: b.find_element(By.ID, "model").text)
    return browser


def wait(b, what):
    return WebDriverWait(
        b, HANG, poll_frequency=0.05, ignored_exceptions=[StaleElementReferenceException]
    ).until(what)


def say(b, text):
    b.find_element(By.ID, "prompt").send_keys(text, Keys.ENTER)


def answers(b):
    return [e.text for e in b.find_elements(By.CSS_SELECTOR, ".turn.assistant .body")]


def idle(b):
    return b.find_element(By.ID, "send").is_displayed() and bool(answers(b))


def shot(b, name):
    b.save_screenshot(os.path.join(SCREENS, name + ".png"))


def no_errors(b):
    bad = [e for e in b.get_log("browser") if e["level"] == "SEVERE"]
    assert not bad, bad


def test_send_stream_reload(chat):
    say(chat, "What is the capital of France?")
    wait(chat, idle)
    first = answers(chat)[-1]
    assert "Paris" in first
    assert "tokens/s" in chat.find_element(By.CSS_SELECTOR, ".turn.assistant .tools").text
    shot(chat, "chat-light")
    chat.refresh()
    assert answers(chat) == [first]
    say(chat, "And of Italy?")
    wait(chat, lambda b: len(answers(b)) == 2 and idle(b))
    chat.find_element(By.CSS_SELECTOR, ".again").click()
    wait(chat, lambda b: len(answers(b)) == 2 and idle(b))
    no_errors(chat)


@pytest.fixture
def endless(browser, fake):
    """The chat page of the fake engine, whose answers take minutes: none ends before it is
    stopped.
    """
    with fake(step_ms=100, context=4096) as s:
        browser.set_window_size(1100, 800)
        browser.get(s.url + "/chat")
        browser.execute_script(
            "localStorage.setItem('llmc.settings.v1', JSON.stringify({max_tokens: '4000'}))"
        )
        reopen(browser)
        yield s


def test_stop(browser, endless):
    say(browser, "Write a very long story about a lighthouse keeper, with many chapters.")
    wait(browser, lambda b: answers(b) and answers(b)[-1])
    browser.find_element(By.ID, "stop").click()
    wait(browser, idle)
    text = answers(browser)[-1]
    assert "stopped" in browser.find_element(By.CSS_SELECTOR, ".turn.assistant .tools").text
    endless.idle()
    assert answers(browser)[-1] == text


def test_several_conversations(chat):
    say(chat, "Say hello.")
    wait(chat, idle)
    chat.find_element(By.TAG_NAME, "body").send_keys(Keys.ALT, "n")
    assert answers(chat) == []
    say(chat, "Say goodbye.")
    wait(chat, idle)
    titles = [e.text for e in chat.find_elements(By.CSS_SELECTOR, "#list .pick")]
    assert titles == ["Say goodbye.", "Say hello."]
    chat.find_elements(By.CSS_SELECTOR, "#list .pick")[1].click()
    assert chat.find_element(By.CSS_SELECTOR, ".turn.user .body").text == "Say hello."
    chat.find_elements(By.CSS_SELECTOR, "#list .drop")[1].click()
    assert [e.text for e in chat.find_elements(By.CSS_SELECTOR, "#list .pick")] == ["Say goodbye."]


def keep(b, conversations):
    b.execute_script(
        "localStorage.setItem('llmc.chat.v1', arguments[0])", json.dumps(conversations)
    )


def titles(b):
    return [e.text for e in b.find_elements(By.CSS_SELECTOR, "#list .pick")]


def test_two_tabs_keep_each_other_s_conversations(chat, smol):
    first = chat.current_window_handle
    chat.switch_to.new_window("tab")
    second = chat.current_window_handle
    try:
        chat.get(smol.url + "/chat")
        wait(chat, lambda b: b.find_element(By.ID, "model").text)
        chat.switch_to.window(first)
        say(chat, "Say one.")
        wait(chat, idle)
        chat.switch_to.window(second)
        wait(chat, lambda b: titles(b) == ["Say one."])
        say(chat, "Say two.")
        wait(chat, idle)
        chat.switch_to.window(first)
        wait(chat, lambda b: titles(b) == ["Say two.", "Say one."])
        say(chat, "Say more.")
        wait(chat, lambda b: len(answers(b)) == 2 and idle(b))
        chat.refresh()
        assert titles(chat) == ["Say two.", "Say one."]
        chat.find_elements(By.CSS_SELECTOR, "#list .pick")[1].click()
        assert len(answers(chat)) == 2
        chat.find_elements(By.CSS_SELECTOR, "#list .drop")[0].click()
        chat.switch_to.window(second)
        wait(chat, lambda b: titles(b) == ["Say one."])
        no_errors(chat)
    finally:
        chat.switch_to.window(second)
        chat.close()
        chat.switch_to.window(first)


def test_a_conversation_longer_than_the_context_goes_on(browser, tiny):
    browser.set_window_size(1100, 800)
    browser.get(tiny.url + "/chat")
    turns = [{"role": r, "content": "z" * 60} for _ in range(6) for r in ("user", "assistant")]
    keep(browser, [{"id": "x", "title": "Long", "turns": turns}])
    browser.execute_script(
        "localStorage.setItem('llmc.settings.v1', JSON.stringify({max_tokens: '8'}))"
    )
    browser.refresh()
    wait(browser, lambda b: b.find_element(By.ID, "model").text)
    for n in (7, 8):
        say(browser, "hello")
        wait(browser, lambda b: len(answers(b)) == n and idle(b))
        assert not browser.find_elements(By.CSS_SELECTOR, ".error"), browser.find_element(
            By.CSS_SELECTOR, ".error"
        ).text
    assert "no longer sent" in browser.find_element(By.ID, "note").text
    assert len(browser.find_elements(By.CSS_SELECTOR, ".turn")) == 16, (
        "what is not sent is still shown"
    )
    say(browser, "z" * 400)  # does not fit even alone
    wait(browser, lambda b: b.find_elements(By.CSS_SELECTOR, ".error") and idle(b))
    say(browser, "hello")
    wait(browser, lambda b: len(answers(b)) == 10 and idle(b))
    assert len(browser.find_elements(By.CSS_SELECTOR, ".error")) == 1
    shot(browser, "chat-context")
    browser.get_log("browser")  # discard the log of refused requests


def test_copy_on_plain_http(browser, serve, tiny_folder):
    with serve(tiny_folder, "--arch", "generic", "-t", "1", "--allow-host", "plain.test") as s:
        browser.get(f"http://plain.test:{s.port}/chat")
        keep(
            browser,
            [
                {
                    "id": "x",
                    "title": "t",
                    "turns": [
                        {"role": "user", "content": "q"},
                        {"role": "assistant", "content": "an answer\n\n```c\nint x;\n```"},
                    ],
                }
            ],
        )
        browser.refresh()
        assert not browser.execute_script("return window.isSecureContext")
        prompt = browser.find_element(By.ID, "prompt")
        for button, text in (
            (".code-head button", "int x;"),
            (".assistant .tools button", "an answer\n\n```c\nint x;\n```"),
        ):
            browser.find_element(By.CSS_SELECTOR, button).click()
            wait(browser, lambda b: b.find_element(By.CSS_SELECTOR, button).text == "Copied")
            prompt.clear()
            prompt.send_keys(Keys.CONTROL, "v")
            assert prompt.get_attribute("value") == text


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


def test_phone_and_dark(chat):
    chat.execute_script(
        "localStorage.setItem('llmc.chat.v1', arguments[0])",
        json.dumps(
            [
                {
                    "id": "x",
                    "title": "A table",
                    "turns": [
                        {"role": "user", "content": "w" * 300},
                        {
                            "role": "assistant",
                            "content": "| a | b |\n|---|---|\n| "
                            + "1" * 200
                            + " | 2 |\n\n```c\n"
                            + "int x; " * 60
                            + "\n```",
                        },
                    ],
                }
            ]
        ),
    )
    light = chat.execute_script("return getComputedStyle(document.body).backgroundColor")
    chat.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 375, "height": 720, "deviceScaleFactor": 1, "mobile": True},
    )
    chat.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    try:
        chat.refresh()
        assert chat.execute_script("return document.scrollingElement.scrollWidth") <= 375
        assert (
            chat.execute_script("return getComputedStyle(document.body).backgroundColor") != light
        )
        # a word that fits is not broken: each is on one line
        chat.execute_script(
            "localStorage.setItem('llmc.chat.v1', arguments[0])",
            json.dumps(
                [
                    {
                        "id": "y",
                        "title": "Words",
                        "turns": [
                            {"role": "user", "content": "Compare them."},
                            {
                                "role": "assistant",
                                "note": "24 tokens, 31.4 tokens/s, first after 0.12 s",
                                "content": "| Characteristic | Description | Consequences |\n|---|---|---|\n| Responsiveness | Immediate acknowledgement | Satisfaction |\n\nIncomprehensibilities notwithstanding.",
                            },
                        ],
                    }
                ]
            ),
        )
        shot(chat, "chat-phone-dark")
        chat.refresh()
        assert chat.execute_script("return document.scrollingElement.scrollWidth") <= 375
        broken = chat.execute_script("""
            const out = [], walk = document.createTreeWalker(document.querySelector("#log"), NodeFilter.SHOW_TEXT);
            for (let t; (t = walk.nextNode());)
              for (const m of t.data.matchAll(/\\S+/g)) {
                const r = document.createRange();
                r.setStart(t, m.index);
                r.setEnd(t, m.index + m[0].length);
                if (new Set([...r.getClientRects()].map((b) => Math.round(b.top))).size > 1) out.push(m[0]);
              }
            return out;""")
        assert broken == []
        shot(chat, "chat-phone-words")
        chat.find_element(By.ID, "side-open").click()
        wait(chat, lambda b: b.find_element(By.ID, "new").is_displayed())
        shot(chat, "chat-phone-list")
        chat.find_element(By.ID, "side-close").click()
    finally:
        chat.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        chat.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_settings_by_keyboard(chat):
    chat.find_element(By.ID, "settings-open").send_keys(Keys.ENTER)
    box = chat.find_element(By.NAME, "max_tokens")
    wait(chat, lambda b: box.is_displayed())
    box.clear()
    box.send_keys("3", Keys.ENTER)
    wait(chat, lambda b: not b.find_element(By.ID, "settings").is_displayed())
    say(chat, "Count to twenty.")
    wait(chat, idle)
    assert "3 tokens" in chat.find_element(By.CSS_SELECTOR, ".turn.assistant .tools").text


def css(b, what):
    return b.find_element(By.CSS_SELECTOR, what)


def test_reasoning_calls_and_probabilities_are_drawn(chat):
    turn = {
        "role": "assistant",
        "content": "Sunny.",
        "reasoning": "They ask for **weather**.",
        "calls": [{"name": "weather", "arguments": '{"city":"Ghent"}'}],
        "tokens": [
            {"text": "Sun", "p": 0.9, "top": [["Sun", 0.9], ["Rain", 0.05]]},
            {"text": "ny.", "p": 0.1, "top": [["ny.", 0.1]]},
        ],
    }
    keep(
        chat,
        [
            {
                "id": "x",
                "title": "Weather",
                "turns": [{"role": "user", "content": "Weather in Ghent?"}, turn],
            }
        ],
    )
    chat.refresh()
    reasoning = css(chat, "details.reasoning")
    assert not reasoning.get_attribute("open") and "weather" not in reasoning.text
    reasoning.find_element(By.TAG_NAME, "summary").click()
    assert reasoning.find_element(By.TAG_NAME, "strong").text == "weather"
    assert (
        "weather" in css(chat, "details.call summary").text
        and '"city": "Ghent"' in css(chat, "details.call pre").text
    )
    css(chat, ".probs").click()
    token = css(chat, ".tokens .token")
    assert (
        token.text == "Sun"
        and "90.0 %" in token.get_attribute("title")
        and "Rain" in token.get_attribute("title")
    )
    token.click()
    assert [e.text for e in chat.find_elements(By.CSS_SELECTOR, ".top tr")] == [
        "Sun 90.0 %",
        "Rain 5.0 %",
    ]
    shot(chat, "chat-turn")
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
        shot(chat, "chat-turn-phone-dark")
    finally:
        chat.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        chat.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    no_errors(chat)


@pytest.fixture
def page(browser, tiny):
    """The empty chat page of the tiny server."""
    browser.set_window_size(1100, 800)
    browser.get(tiny.url + "/chat")
    browser.execute_script(
        "localStorage.clear(); localStorage.setItem('llmc.settings.v1', JSON.stringify({temperature: '0', max_tokens: '8'}))"
    )
    reopen(browser)
    return browser


def reopen(b):
    b.refresh()
    wait(b, lambda b: b.find_element(By.ID, "models").get_property("value"))


def listen(b, *given):
    """Record the requests of the page in window.sent. The first ones get these deltas, one
    list per answer; the others reach the server.
    """
    b.execute_script(
        """
        const given = arguments[0], fetch = window.fetch;
        window.sent = [];
        window.fetch = (url, o) => {
          if (o?.method === "POST") window.sent.push(JSON.parse(o.body));
          if (o?.method !== "POST" || !given.length) return fetch(url, o);
          const frames = given.shift().map((delta) => "data: " + JSON.stringify({ choices: [{ index: 0, delta }] }) + "\\n\\n");
          return Promise.resolve(new Response(frames.join("") + "data: [DONE]\\n\\n"));
        };""",
        list(given),
    )


def sent(b):
    return b.execute_script("return window.sent")


def test_calls_are_sent_again_with_their_results(page, tiny):
    def call(index, name, *arguments):
        return [
            {
                "tool_calls": [
                    {
                        "index": index,
                        "id": f"call_{index}",
                        "type": "function",
                        "function": {"name": name, "arguments": ""},
                    }
                ]
            },
            *({"tool_calls": [{"index": index, "function": {"arguments": a}}]} for a in arguments),
        ]

    listen(
        page,
        [*call(0, "f", '{"x": ', '"a"}'), *call(1, "g", "{}"), *call(2, "h", '{"cut')],
        [{"content": "Both."}],
    )
    say(page, "Call them.")
    wait(page, idle)
    boxes = page.find_elements(By.CSS_SELECTOR, ".results textarea")
    assert [e.text for e in page.find_elements(By.CSS_SELECTOR, ".results label")] == [
        "Result of f",
        "Result of g",
    ], "a call that was cut short has none"
    boxes[0].send_keys("<b>12</b> degrees")
    shot(page, "chat-results")
    css(page, ".results button").click()
    wait(page, lambda b: answers(b)[-1] == "Both." and idle(b))
    calls = [
        {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"x": "a"}'}},
        {"id": "call_1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    talk = [
        {"role": "user", "content": "Call them."},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "<b>12</b> degrees", "tool_call_id": "call_0", "name": "f"},
        {"role": "tool", "content": "", "tool_call_id": "call_1", "name": "g"},
    ]
    assert (
        sent(page)[-1]["messages"] == talk
        and tiny.post("/v1/chat/completions", sent(page)[-1]).status == 200
    )
    assert not page.find_elements(By.CSS_SELECTOR, ".results"), "they have their results"
    reopen(page)
    assert [e.text for e in page.find_elements(By.CSS_SELECTOR, ".turn .who")] == [
        "You",
        "Model",
        "Result of f",
        "Result of g",
        "Model",
    ]
    assert (
        css(page, ".turn.tool .body").text == "<b>12</b> degrees"
        and css(page, "details.call pre").is_displayed()
    )
    listen(page)
    say(page, "And now?")
    wait(page, lambda b: len(answers(b)) == 3 and idle(b))
    assert sent(page)[-1]["messages"] == [
        *talk,
        {"role": "assistant", "content": "Both."},
        {"role": "user", "content": "And now?"},
    ]
    assert not page.find_elements(By.CSS_SELECTOR, ".error")
    no_errors(page)


def test_a_call_without_a_result_is_not_forgotten(page):
    keep(
        page,
        [
            {
                "id": "x",
                "title": "t",
                "turns": [
                    {"role": "user", "content": "q"},
                    {
                        "role": "assistant",
                        "content": "",
                        "calls": [{"id": "i", "name": "f", "arguments": '{"x":1}'}],
                    },
                ],
            }
        ],
    )
    reopen(page)
    listen(page)
    say(page, "Never mind.")
    wait(page, lambda b: len(answers(b)) == 2 and idle(b))
    assert [m["role"] for m in sent(page)[0]["messages"]] == ["user", "assistant", "user"] and sent(
        page
    )[0]["messages"][1]["tool_calls"][0]["id"] == "i"


def test_a_schema_and_probabilities_of_an_answer(chat):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    chat.execute_script(
        "localStorage.setItem('llmc.settings.v1', arguments[0])",
        json.dumps(
            {"temperature": "0", "max_tokens": "24", "schema": json.dumps(schema), "probs": True}
        ),
    )
    chat.refresh()
    say(chat, "Give a number.")
    wait(chat, idle)
    assert list(json.loads(answers(chat)[-1])) == ["n"]
    css(chat, ".probs").click()
    assert "".join(
        e.get_attribute("textContent")
        for e in chat.find_elements(By.CSS_SELECTOR, ".tokens .token")
    ).startswith("{")
    meter = css(chat, "#context")
    assert meter.is_displayed() and "of 1024 tokens" in meter.get_attribute("title")
    chat.execute_script("localStorage.setItem('llmc.settings.v1', JSON.stringify({schema: '{'}))")
    chat.refresh()
    say(chat, "Again.")
    wait(chat, lambda b: b.find_elements(By.CSS_SELECTOR, ".turn .error"))
    assert "no JSON" in css(chat, ".turn .error").text
    no_errors(chat)


def test_edit_branches_rename_search_export(chat, tmp_path):
    say(chat, "Say one.")
    wait(chat, idle)
    css(chat, ".edit").click()
    area = css(chat, ".turn textarea")
    area.clear()
    area.send_keys("Say two.")
    css(chat, ".edited").click()
    wait(chat, lambda b: len(titles(b)) == 2 and idle(b))
    assert css(chat, ".turn.user .body").text == "Say two." and len(answers(chat)) == 1
    chat.execute_script("window.prompt = () => ' Second name '")
    css(chat, "#rename").click()
    assert titles(chat) == ["Second name", "Say one."] and css(chat, "#title").text == "Second name"
    css(chat, "#search").send_keys("say ONE")
    assert titles(chat) == ["Say one."]
    css(chat, "#search").clear()
    css(chat, "#search").send_keys("name")
    assert titles(chat) == ["Second name"]
    chat.execute_script(
        "HTMLAnchorElement.prototype.click = function () { window.saved = this.download; fetch(this.href).catch(() => 0); }"
    )
    css(chat, "#export").click()
    assert chat.execute_script("return window.saved") == "Second name.md"
    chat.get_log("browser")


def test_a_file_alone_is_sent(page, tmp_path):
    (tmp_path / "a.txt").write_text("b\n")
    listen(page)
    say(page, " ")
    assert sent(page) == [] and not answers(page)
    css(page, "#file").send_keys(str(tmp_path / "a.txt"))
    wait(page, lambda b: b.find_element(By.ID, "files").is_displayed())
    css(page, "#send").click()
    wait(page, idle)
    assert sent(page)[0]["messages"] == [
        {"role": "user", "content": "a.txt:\n```\nb\n```"}
    ] and titles(page) == ["a.txt"]


def test_the_context_in_use_is_shown_again(page):
    meter = lambda: css(page, "#context")
    say(page, "hello")
    wait(page, idle)
    used = meter().get_attribute("title")
    assert meter().is_displayed() and used.endswith("of 256 tokens of context")
    reopen(page)
    assert meter().is_displayed() and meter().get_attribute("title") == used
    css(page, "#new").click()
    assert not meter().is_displayed()
    css(page, "#list .pick").click()
    assert meter().is_displayed() and meter().get_attribute("title") == used


def test_the_model_that_is_chosen(browser, serve, tiny_folder):
    with serve(
        f"--model=first={tiny_folder}",
        "--model",
        f"second={tiny_folder}",
        "--arch",
        "generic",
        "-t",
        "1",
        "--seqs",
        "4",
    ) as s:
        browser.set_window_size(1100, 800)
        browser.get(s.url + "/chat")
        browser.execute_script(
            "localStorage.setItem('llmc.settings.v1', JSON.stringify({max_tokens: '4'}))"
        )
        reopen(browser)
        models = lambda: css(browser, "#models")
        assert models().is_displayed() and not css(browser, "#model").is_displayed()
        assert [e.text for e in models().find_elements(By.TAG_NAME, "option")] == [
            "first",
            "second",
        ] and models().get_property("value") == "first"
        models().send_keys(Keys.ARROW_DOWN)
        shot(browser, "chat-models")
        reopen(browser)
        assert models().get_property("value") == "second"
        listen(browser)
        say(browser, "hello")
        wait(browser, idle)
        assert sent(browser)[0]["model"] == "second" and not browser.find_elements(
            By.CSS_SELECTOR, ".error"
        )
        browser.execute_script(
            "localStorage.setItem('llmc.settings.v1', JSON.stringify({model: 'gone'}))"
        )
        reopen(browser)
        assert models().get_property("value") == "first", "a model that is no longer there"
        no_errors(browser)


def test_a_branch_goes_on_from_an_earlier_answer(page):
    for n in (1, 2):
        say(page, f"hello {n}")
        wait(page, lambda b: len(answers(b)) == n and idle(b))
    first = answers(page)[0]
    buttons = [
        [e.text for e in t.find_elements(By.TAG_NAME, "button")]
        for t in page.find_elements(By.CSS_SELECTOR, ".turn.assistant .tools")
    ]
    assert ["Branch" in b for b in buttons] == [True, False] and "Regenerate" in buttons[1]
    css(page, ".branch").click()
    assert answers(page) == [first] and titles(page) == ["hello 1", "hello 1"]
    say(page, "hello 3")
    wait(page, lambda b: len(answers(b)) == 2 and idle(b))
    page.find_elements(By.CSS_SELECTOR, "#list .pick")[1].click()
    said = lambda: [e.text for e in page.find_elements(By.CSS_SELECTOR, ".turn.user .body")]
    assert said() == ["hello 1", "hello 2"] and answers(page)[0] == first, "the old one stays"
    page.find_elements(By.CSS_SELECTOR, "#list .pick")[0].click()
    assert said() == ["hello 1", "hello 3"]
    no_errors(page)


def test_everything_by_the_keyboard(browser, endless):
    """Sending, stopping and editing: Tab reaches everything, and nothing is clicked. The fake
    engine answers with the prompt.
    """
    keys = lambda *k: browser.switch_to.active_element.send_keys(*k)

    def tab_to(what, back=False):
        for _ in range(40):
            if browser.execute_script("return document.activeElement.matches(arguments[0])", what):
                return
            keys(Keys.SHIFT + Keys.TAB if back else Keys.TAB)
        raise AssertionError(f"Tab does not come to {what}")

    assert browser.execute_script("return document.activeElement.id") == "prompt"
    keys("one", Keys.SHIFT + Keys.ENTER + Keys.NULL, "two")
    assert not answers(browser)
    keys(Keys.ENTER)
    wait(browser, lambda b: answers(b) and answers(b)[-1])
    keys(Keys.ESCAPE)
    wait(browser, idle)
    assert (
        "stopped" in css(browser, ".turn.assistant .tools").text
        and css(browser, ".turn.user .body").text == "one\ntwo"
    )
    endless.idle()
    keys("again", Keys.ENTER)
    wait(browser, lambda b: len(answers(b)) == 2 and answers(b)[-1])
    tab_to("#stop")
    keys(Keys.ENTER)
    wait(browser, lambda b: len(answers(b)) == 2 and idle(b))
    assert browser.find_elements(By.CSS_SELECTOR, ".turn.assistant .tools")[1].text.endswith(
        "stopped"
    )
    endless.idle()
    browser.find_element(By.ID, "prompt").send_keys("")
    tab_to(".edit", back=True)
    keys(Keys.ENTER)
    assert (
        browser.execute_script("return document.activeElement.getAttribute('aria-label')")
        == "Edit the message"
    )
    keys(Keys.CONTROL + "a")
    keys("other")
    tab_to(".edited")
    keys(Keys.ENTER)
    wait(browser, lambda b: len(titles(b)) == 2 and answers(b)[-1])
    assert [e.text for e in browser.find_elements(By.CSS_SELECTOR, ".turn.user .body")][
        -1
    ] == "other"
    keys(Keys.ESCAPE)
    wait(browser, idle)
    keys("more", Keys.ENTER)
    wait(browser, lambda b: b.find_elements(By.CSS_SELECTOR, ".turn.user .body")[-1].text == "more")
    keys(Keys.ESCAPE)
    wait(browser, idle)
    endless.idle()
    no_errors(browser)


def test_all_conversations_are_exported_and_imported(page, tmp_path):
    turns = [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "a",
            "calls": [{"id": "i", "name": "f", "arguments": "{}"}],
        },
    ]
    mine = [{"id": i, "title": f"{i} \u00e9", "turns": turns} for i in "ab"]
    keep(page, mine)
    reopen(page)
    page.execute_script(
        "HTMLAnchorElement.prototype.click = function () { window.saved = this.download; }; URL.createObjectURL = (b) => { b.text().then((t) => { window.text = t; }); return '#'; }"
    )
    css(page, "#settings-open").click()
    shot(page, "chat-settings")
    css(page, "#export-all").click()
    text = wait(page, lambda b: b.execute_script("return window.text"))
    assert (
        page.execute_script("return window.saved") == "conversations.json"
        and json.loads(text) == mine
    )
    bad = [
        {"id": "c", "title": "c", "turns": [{"role": "user", "content": 1}]},
        {"id": "d", "title": "d", "turns": [{"role": "assistant", "content": "", "calls": 7}]},
        None,
        3,
    ]
    for name, content in (
        ("all.json", json.dumps(json.loads(text) + bad)),
        ("none.json", "{"),
        ("other.json", "{}"),
    ):
        (tmp_path / name).write_text(content)
    keep(page, [{**mine[1], "title": "mine"}])
    reopen(page)
    for name, told in (
        ("all.json", "1 conversations of all.json are new."),
        ("none.json", "none.json holds no conversations."),
        ("other.json", "other.json holds no conversations."),
    ):
        css(page, "#import-file").send_keys(str(tmp_path / name))
        wait(page, lambda b: b.find_element(By.ID, "note").text == told)
        assert titles(page) == ["mine", "a \u00e9"]
    page.find_elements(By.CSS_SELECTOR, "#list .pick")[1].click()
    assert answers(page)[0].startswith("a") and css(page, "details.call summary").text == "Calls f"
    no_errors(page)


def test_attached_files_go_with_the_message(chat, tmp_path):
    (tmp_path / "notes.txt").write_text("```\nthe word is lighthouse\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    css(chat, "#file").send_keys(f"{tmp_path}/notes.txt\n{tmp_path}/picture.png")
    wait(chat, lambda b: "this model reads text only" in b.find_element(By.ID, "note").text)
    assert [e.text.split()[0] for e in chat.find_elements(By.CSS_SELECTOR, "#files li")] == [
        "notes.txt"
    ]
    shot(chat, "chat-files")
    say(chat, "What is the word?")
    wait(chat, idle)
    sent = css(chat, ".turn.user .body").text
    assert (
        sent.startswith("What is the word?")
        and "notes.txt:" in sent
        and "lighthouse" in sent
        and "````" in sent
    )
    assert not css(chat, "#files").is_displayed()


def test_an_empty_conversation_shows_the_model_and_prompts_to_try(chat, smol):
    served = smol.get("/v1/models").json()["data"][0]
    wait(chat, lambda b: served["id"] in b.find_element(By.CSS_SELECTOR, "#empty h2").text)
    facts = chat.find_element(By.CSS_SELECTOR, "#empty p").text
    assert f"{served['max_model_len']:,} tokens" in facts and "135 M parameters" in facts
    examples = chat.find_elements(By.CSS_SELECTOR, "#empty .examples button")
    assert len(examples) == 3
    shot(chat, "chat-empty")
    text = examples[0].text
    examples[0].click()
    wait(chat, idle)
    assert chat.find_element(By.CSS_SELECTOR, ".turn.user .body").text == text
    assert not chat.find_elements(By.ID, "empty")
    no_errors(chat)


PLOTS = [
    ("Decode throughput", "tok/s"),
    ("Prefill throughput", "tok/s"),
    ("Running / waiting", "sequences"),
    ("KV cache use", "%"),
    ("Step time p50 / p99", "ms"),
    ("Prefix cache hits", "% of prompt tokens"),
    ("Draft acceptance", "% of draft tokens"),
]


def axis(plot):
    """The labels of a plot's axes: those of the values, and those of time. They are read at once,
    since the page draws its plots again and again."""
    texts = plot.parent.execute_script(
        "return [...arguments[0].querySelectorAll('.axes text')].map((e) => e.textContent)", plot
    )
    return texts[:-5], texts[-5:]


def choose_range(b, seconds):
    b.find_element(By.CSS_SELECTOR, f'#range button[value="{seconds}"]').click()


def test_status_page(browser, smol):
    browser.set_window_size(1100, 800)
    browser.get(smol.url + "/status")
    wait(browser, lambda b: b.find_element(By.ID, "state").text == "running")
    plots = browser.find_elements(By.CSS_SELECTOR, ".plot")
    assert [p.find_element(By.TAG_NAME, "h2").text for p in plots] == [" ".join(p) for p in PLOTS]
    with asked_again_and_again(smol, {"prompt": "Once upon a time", "max_tokens": 8}):
        wait(
            browser,
            lambda b: all(
                p.get_attribute("d")
                for p in b.find_elements(By.CSS_SELECTOR, ".plot:nth-child(-n+6) path")
            ),
        )  # there may be no draft tokens
    for seconds, oldest in ((120, "−120 s"), (3600, "−60 min")):
        choose_range(browser, seconds)
        for p in plots:
            values, times = axis(p)
            assert values[0] == "0" and len(values) > 2 and len(set(values)) == len(values)
            assert times[0] == "now" and times[-1] == oldest
    shot(browser, "status")
    no_errors(browser)


@contextlib.contextmanager
def asked_again_and_again(server, body):
    """Another client sends requests until the block ends, so that the live figures of the page
    are present whenever it is read.
    """
    over = threading.Event()

    def ask():
        while not over.is_set():
            assert server.post("/v1/completions", body).status == 200

    t = threading.Thread(target=ask)
    t.start()
    try:
        yield
    finally:
        over.set()
        t.join()


def test_status_page_plots_the_draft_acceptance_rate(browser, fake):
    """The fake engine accepts one in four draft tokens."""
    with fake(step_ms=20) as s:
        browser.set_window_size(1100, 1200)
        browser.get(s.url + "/status")
        drafts = lambda b: b.find_element(By.CSS_SELECTOR, ".plot:nth-child(7)")
        value = lambda b: drafts(b).find_element(By.CLASS_NAME, "now").text
        for seconds in (120, 3600):
            choose_range(browser, seconds)
            wait(browser, lambda b: value(b) == "no drafts")
        with asked_again_and_again(
            s, {"prompt": "a b c d", "max_tokens": 200}
        ):  # the plots show the last seconds
            wait(browser, lambda b: value(b) == "25")  # after the next sample of the hour
            choose_range(browser, 120)
            wait(
                browser,
                lambda b: value(b) == "25"
                and drafts(b).find_element(By.CSS_SELECTOR, "path").get_attribute("d"),
            )
            true, made = (
                int(n.replace(",", ""))
                for n in re.search(
                    r"Draft tokens accepted ([\d,]+) of ([\d,]+)",
                    browser.find_element(By.ID, "facts").text,
                ).groups()
            )
            assert 0 < 4 * true == made
        paper = set()
        try:
            for scheme in ("light", "dark"):
                browser.execute_cdp_cmd(
                    "Emulation.setEmulatedMedia",
                    {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
                )
                paper.add(
                    browser.execute_script(
                        "return [document.body, document.querySelector('.plot path')].map((e) => getComputedStyle(e)).map((c) => [c.backgroundColor, c.color, c.stroke]).join()"
                    )
                )
                for width in (375, 1100):
                    browser.execute_cdp_cmd(
                        "Emulation.setDeviceMetricsOverride",
                        {
                            "width": width,
                            "height": 1400,
                            "deviceScaleFactor": 1,
                            "mobile": width < 500,
                        },
                    )
                    assert (
                        browser.execute_script("return document.documentElement.scrollWidth")
                        <= width
                    )
                    places = browser.execute_script(
                        "return [...document.querySelectorAll('.plot, #facts')].map((e) => e.getBoundingClientRect()).map((r) => [r.left, r.right, r.width])"
                    )
                    assert len(places) == 8 and all(
                        0 <= left and right <= width and w > 200 for left, right, w in places
                    )
                    assert len({left for left, _, _ in places[:7]}) == (1 if width == 375 else 3), (
                        "columns"
                    )
                    shot(browser, f"status-{width}-{scheme}")
            assert len(paper) == 2, "light and dark"
        finally:
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        no_errors(browser)
