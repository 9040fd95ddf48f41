"""Reasoning, calls, probabilities and schemas on the chat page."""

import json

from page_browser import (  # noqa: F401
    By,
    answers,
    browser,
    chat,
    css,
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
    wait,
)


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
