"""llmc plan --html: a self-contained page."""

import json
import os
import re
import shutil
import subprocess

import pytest

from server_process import BUILD, ROOT

# pairs of markers and names of the roofline that share area
OVERLAPS = """
const box = [...document.querySelectorAll('#roof circle, #roof text')]
    .filter((e) => e.tagName === 'circle' || e.getAttribute('class'))
    .map((e) => [e.textContent, e.getBoundingClientRect()]);
const cut = ([, a], [, b]) => a.left < b.right - 0.5 && b.left < a.right - 0.5 &&
    a.top < b.bottom - 1.5 && b.top < a.bottom - 1.5;
return box.flatMap((a, i) => box.slice(0, i).filter((b) => cut(a, b)).map((b) => [a[0], b[0]]));
"""
SCREENS = os.path.join(ROOT, "build", "screens")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    out = tmp_path_factory.mktemp("plan") / "plan.html"
    tmp = tmp_path_factory.mktemp("tmp")
    subprocess.run(
        [
            os.path.join(BUILD, "llmc"),
            "plan",
            "configs/tiny.yaml",
            "--arch",
            "v3",
            "--set",
            "text.prompt='</script><b>{text}'",
            "--html",
            out,
        ],
        check=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp)},
    )
    assert not os.listdir(tmp), "what was written for the page alone is gone"
    return out


def test_everything_is_in_it(page):
    text = page.read_text()
    data = json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1]
    )
    assert {k["file"] for k in data["plan"]["kernel"]} == set(data["source"])
    steps = {s["kernel"] for p in data["plan"]["phase"] for s in p["step"]}
    assert all(
        "llmc_step" in data["source"][k["file"]] for k in data["plan"]["kernel"] if k["id"] in steps
    )
    assert [
        data["source"][k["file"]].count("PRODUCTS(")
        for k in data["plan"]["kernel"]
        if k["id"] not in steps
    ] == [1], "the file of products that kernels call"
    assert (
        data["plan"]["prompt_prefix"] == "</script><b>{text}"
        and data["memory"]["weights"] > 0
        and data["gpu"] is None
    )
    lines = data["yaml"].split("\n")
    assert all(1 <= s["yaml_line"] <= len(lines) for p in data["plan"]["phase"] for s in p["step"])
    assert not re.search(r'(?:src|href)="?https?:', text) and "@DATA@" not in text


@pytest.mark.skipif(not shutil.which("chromedriver"), reason="no chromedriver")
def test_it_draws(page):
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By

    o = Options()
    for a in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1100,1400",
    ):
        o.add_argument(a)
    o.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    b = webdriver.Chrome(options=o, service=Service(shutil.which("chromedriver")))
    os.makedirs(SCREENS, exist_ok=True)
    try:
        b.get(page.as_uri())
        count = lambda what: len(b.find_elements(By.CSS_SELECTOR, what))  # noqa: E731
        assert (
            count("#steps tbody tr") == count("#memory rect") > 10
            and count("#bytes rect") > 3
            and count("#roof circle") == count("#roof text.name") > 2
        )
        assert b.execute_script(OVERLAPS) == []
        b.find_element(By.CSS_SELECTOR, "#steps tbody a[href^='#kernel-']").click()
        assert count("#kernels details[open]") == 1
        b.execute_script(
            "const p = document.getElementById('phase'); p.value = '1'; p.dispatchEvent(new Event('input'))"
        )
        assert count("#steps tbody tr") == count("#memory rect")
        b.save_screenshot(os.path.join(SCREENS, "plan.png"))
        b.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": 375, "height": 720, "deviceScaleFactor": 1, "mobile": True},
        )
        b.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
        )
        assert b.execute_script("return document.scrollingElement.scrollWidth") <= 375
        assert b.execute_script(OVERLAPS) == []
        b.save_screenshot(os.path.join(SCREENS, "plan-phone-dark.png"))
        assert [e for e in b.get_log("browser") if e["level"] == "SEVERE"] == []
    finally:
        b.quit()
