"""Images on the chat page in Debian's Chromium: button, drop, paste, preview, removal, history."""

import os

import pytest

import tiny_vision
from page_browser import By, browser, css, idle, no_errors, pytestmark, say, shot, wait  # noqa: F401

EVENT = """
const bytes = Uint8Array.from(atob(arguments[1]), (c) => c.charCodeAt(0)), data = new DataTransfer();
data.items.add(new File([bytes], arguments[0] + '.png', { type: 'image/png' }));
const e = arguments[0] === 'paste' ? new ClipboardEvent('paste', { clipboardData: data, bubbles: true })
                                   : new DragEvent('drop', { dataTransfer: data, bubbles: true });
document.getElementById('prompt').dispatchEvent(e);
"""


@pytest.fixture(scope="module")
def vision(serve, tmp_path_factory):
    folder = tiny_vision.build(tmp_path_factory.mktemp("page") / "vision")
    with serve(
        folder, "--arch", "generic", "-t", "1", "--context", "1024", "--model-name", "vision"
    ) as s:
        yield s


@pytest.fixture
def page(browser, vision):  # noqa: F811
    browser.set_window_size(1100, 800)
    browser.get(vision.url + "/chat")
    browser.execute_script(
        "localStorage.clear(); localStorage.setItem('llmc.settings.v1', JSON.stringify({temperature: '0', max_tokens: '4'}))"
    )
    browser.refresh()
    wait(browser, lambda b: "images" in css(b, "#attach").get_attribute("title"))
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def attached(b):
    return [e.text.split()[0] for e in b.find_elements(By.CSS_SELECTOR, "#files li")]


def test_images_are_attached_shown_removed_and_sent(page):
    import base64

    encoded = base64.b64encode(tiny_vision.png(60, 40)).decode()
    css(page, "#file").send_keys("\n".join(os.path.abspath(p) for p in tiny_vision.IMAGES))
    wait(page, lambda b: len(attached(b)) == 2)
    for event in "paste", "drop":
        page.execute_script(EVENT, event, encoded)
    wait(page, lambda b: len(attached(b)) == 4)
    assert attached(page) == ["image.png", "image-2.png", "paste.png", "drop.png"]
    assert len(page.find_elements(By.CSS_SELECTOR, "#files img")) == 4
    shot(page, "chat-images-attached")
    page.find_elements(By.CSS_SELECTOR, "#files button")[1].click()
    assert attached(page) == ["image.png", "paste.png", "drop.png"]
    page.execute_script(
        "const f = window.fetch; window.bodies = [];"
        "window.fetch = (u, o) => { if (o?.body) window.bodies.push(JSON.parse(o.body)); return f(u, o); };"
    )
    say(page, "What is this?")
    wait(page, idle)
    assert css(page, ".turn.user .body").text == "What is this?"
    assert len(page.find_elements(By.CSS_SELECTOR, ".turn.user .images img")) == 3
    assert not page.find_elements(By.CSS_SELECTOR, ".error"), css(page, ".error").text
    say(page, "And now?")
    wait(page, idle)
    first, second = page.execute_script("return window.bodies")
    kinds = [p["type"] for p in first["messages"][0]["content"]]
    assert kinds == ["image_url", "image_url", "image_url", "text"]
    assert second["messages"][0] == first["messages"][0] and len(second["messages"]) == 3
    assert first["messages"][0]["content"][1]["image_url"]["url"].endswith(encoded)
    for scheme in "light", "dark":
        page.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        for width in 375, 1100:
            page.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": 720, "deviceScaleFactor": 1, "mobile": width == 375},
            )
            assert page.execute_script("return document.scrollingElement.scrollWidth") <= width
            shot(page, f"chat-images-{scheme}-{width}")
    no_errors(page)


def test_images_are_not_stored(page):
    css(page, "#file").send_keys(os.path.abspath(tiny_vision.IMAGES[0]))
    wait(page, lambda b: attached(b))
    say(page, "Look")
    wait(page, idle)
    assert "base64" not in page.execute_script("return localStorage['llmc.chat.v1']")
    page.refresh()
    wait(page, lambda b: "not kept after a reload" in css(b, ".turn.user .images").text)
    no_errors(page)
