"""Debian's Chromium on the pages of a server: fixtures and what their tests share. Screenshots are in build/screens."""

import json
import os
import shutil

import pytest

pytest.importorskip("selenium")
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


def keep(b, conversations):
    b.execute_script(
        "localStorage.setItem('llmc.chat.v1', arguments[0])", json.dumps(conversations)
    )


def titles(b):
    return [e.text for e in b.find_elements(By.CSS_SELECTOR, "#list .pick")]


def css(b, what):
    return b.find_element(By.CSS_SELECTOR, what)


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
