"""The status page."""

import contextlib
import re
import threading

from page_browser import (  # noqa: F401
    By,
    browser,
    no_errors,
    pytestmark,
    shot,
    wait,
)


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
