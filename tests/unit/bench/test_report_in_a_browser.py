"""The HTML of a run in Chromium: fits a phone and a screen, in light and dark, without network requests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from matplotlib import image

from sparkcluster.bench import pictures
from tests.unit.bench import sample

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PAGES = {"sweep": lambda: (sample.sweep(), []), "ab": lambda: (sample.pair()[1], sample.pair())}
# A window has a minimum width; a frame has none, and its media queries use the frame's width.
FRAME = """<!doctype html><body style="margin:0"><iframe src="{page}" style="border:0;width:{width}px;height:4000px">
</iframe><script>
const frame = document.querySelector("iframe");
addEventListener("load", () => {{
  const root = frame.contentDocument.documentElement;
  document.title = JSON.stringify({{
    width: root.scrollWidth, text: root.innerText.length, pictures: root.querySelectorAll("svg").length,
    dark: frame.contentWindow.matchMedia("(prefers-color-scheme: dark)").matches,
    ground: frame.contentWindow.getComputedStyle(frame.contentDocument.body).backgroundColor,
  }});
}});</script>"""

pytestmark = [pytest.mark.full, pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")]


@pytest.fixture(scope="module", params=PAGES)
def page(request, tmp_path_factory):
    record, others = PAGES[request.param]()
    path = tmp_path_factory.mktemp("pages") / f"{request.param}.html"
    path.write_text(pictures.html(record, others))
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_fits_is_complete_and_makes_no_network_request(page, width, dark, tmp_path):
    frame, log, picture = page.parent / f"frame-{width}.html", tmp_path / "net.json", tmp_path / "page.png"
    frame.write_text(FRAME.format(page=page.name, width=width))

    def browse(*what):
        argv = [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--allow-file-access-from-files",
            f"--window-size={max(width, 500)},4000", "--disable-background-networking", "--disable-component-update",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}", *what, frame.as_uri(),
        ]  # fmt: skip
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)

    done = browse("--dump-dom", f"--log-net-log={log}")
    assert ":CONSOLE" not in done.stderr
    title = re.search("<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title, done.stdout[:2000]
    seen = json.loads(title[1].replace("&quot;", '"'))
    assert seen["width"] <= width
    assert seen["dark"] is dark
    assert seen["text"] > 500
    assert seen["pictures"] >= 3
    events = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    # the browser's own requests have no origin
    asked = [each["url"] for each in events if each.get("initiator", "not an origin") != "not an origin"]
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]

    browse(f"--screenshot={picture}", "--hide-scrollbars")
    pixels = image.imread(picture)[:, :width, :3]
    assert pixels.std() > 0.02
    assert bool(pixels[5, 5].mean() < 0.5) is dark


def test_a_page_has_no_external_source(page):
    text = page.read_text()
    assert "<script" not in text
    outside = re.findall(r"""(?:src|href)\s*=\s*(?!["']?#)\S*|url\((?!["']?#)[^)]*|@import\S*""", text)
    assert not outside
