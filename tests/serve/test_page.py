"""The chat page: conversations, files, settings, keyboard, phones."""

import json

from page_browser import (  # noqa: F401
    By,
    Keys,
    answers,
    browser,
    chat,
    css,
    endless,
    idle,
    keep,
    listen,
    no_errors,
    page,
    pytestmark,
    reopen,
    say,
    sent,
    shot,
    titles,
    wait,
)


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
