"""The page in Chromium, served with the server's headers: each state, phone to screen, light and dark."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import os
import re
import shutil
import subprocess
import threading
import time
from contextlib import closing

import pytest
from aiohttp import web

from sparkcluster.bench import record
from sparkcluster.telemetry import serve
from tests.unit.bench import sample
from tests.unit.telemetry import documents
from tests.unit.telemetry.fake_live import FakeLive

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [pytest.mark.full, pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")]


class Served:
    """The server of ``web`` with one document; ``push`` is a tick, ``breaks`` closes connections and refuses new ones."""

    def __init__(self, document, history):
        self.live = FakeLive()
        self.live.views = {"sparks": self.live.views["atlas"]}
        self.live.document, self.live.history = document, history
        self.asked, self.broken, self.open = [], False, []
        self.listener, self.ready = serve.listening("127.0.0.1:0"), threading.Event()
        self.url = f"{serve.url(self.listener)}/"
        self.thread = threading.Thread(target=lambda: asyncio.run(self.run()))
        self.thread.start()
        self.ready.wait(10)

    async def run(self):
        self.loop, self.ended = asyncio.get_running_loop(), asyncio.Event()
        self.server, answers = serve.Server(self.live, None, local=True), web.Server(self.answer, access_log=None)
        listens = await self.loop.create_server(answers, sock=self.listener)
        following = self.loop.create_task(self.server.follow(lambda *_, **__: None))
        self.ready.set()
        await self.ended.wait()
        following.cancel()
        listens.close()
        await answers.shutdown(0.1)

    async def answer(self, request):
        self.asked.append(request.path)
        if self.broken:
            return web.Response(status=503)
        self.open.append(request.transport)
        return await self.server.answer(request)

    def push(self, document, point):
        for place, values in ((each, self.live.history[each]) for each in ("nodes", "groups")):
            for key, signals in values.items():
                for signal, series in signals.items():
                    series.append(point[place][key][signal])
        self.live.history["at"].append(point["at"])
        self.live.tick(**document)

    def breaks(self):
        self.broken = True
        for transport in self.open:
            self.loop.call_soon_threadsafe(transport.abort)

    def close(self):
        self.loop.call_soon_threadsafe(self.ended.set)
        self.thread.join(10)


class Browser:
    """Chromium through its DevTools pipe; ``events`` are the open page's events."""

    def __init__(self, profile):
        to_it, ours = os.pipe()
        theirs, from_it = os.pipe()
        argv = [
            BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--hide-scrollbars",
            "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
        ]  # fmt: skip
        wiring = f'exec "$@" 3<&{to_it} 4>&{from_it}'
        self.process = subprocess.Popen(
            ["bash", "-c", wiring, "bash", *argv], pass_fds=(to_it, from_it), stderr=subprocess.DEVNULL
        )
        os.close(to_it)
        os.close(from_it)
        self.writes, self.reads = os.fdopen(ours, "wb", 0), os.fdopen(theirs, "rb")
        self.number, self.session, self.events, self.rest = 0, {}, [], b""
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for each in ("Page", "Runtime", "Log", "Network"):
            self(f"{each}.enable")

    def __call__(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params, **self.session}
        self.writes.write(json.dumps(message).encode() + b"\0")
        while True:
            message = self.receive()
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def receive(self):
        while b"\0" not in self.rest:
            read = os.read(self.reads.fileno(), 1 << 20)
            assert read, "the browser has ended"
            self.rest += read
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def evaluate(self, script):
        result = self("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, script):
        """Wait until ``script`` returns a true value; returns it."""
        limit = time.monotonic() + 30
        while not (found := self.evaluate(script)):
            assert time.monotonic() < limit, (script, self.complaints())
            time.sleep(0.05)
        return found

    def open(self, url, width=1280, *, dark=False, height=900):
        self("Page.navigate", url="about:blank")
        self.events.clear()
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self("Page.navigate", url=url)

    def picture(self):
        """The complete page as PNG."""
        size = self("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        return base64.b64decode(self("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])

    def complaints(self):
        """Console messages and blocked requests."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [each for each in self.events if each.get("method") in kinds]

    def close(self):
        self.writes.close()
        self.process.wait(30)
        self.reads.close()


DRAWN = "document.querySelectorAll('path').length && document.getElementById('bench').childElementCount"
# Texts with too little contrast to their background, by WCAG 2.2, 1.4.3.
PALE = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => parse(text).slice(0, 3).map((each) => each / 255)
    .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
    .reduce((sum, each, i) => sum + each * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (at) => (parse(getComputedStyle(at).backgroundColor)[3] === 0 ? ground(at.parentElement)
    : getComputedStyle(at).backgroundColor);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) {
    const at = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !at.checkVisibility()) continue;
    const [low, high] = [light(getComputedStyle(at).color), light(ground(at))].sort((a, b) => a - b);
    if ((high + 0.05) / (low + 0.05) < 4.5) found.push(texts.currentNode.data);
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with closing(Browser(tmp_path_factory.mktemp("profile"))) as started:
        yield started


@pytest.fixture
def start(monkeypatch, tmp_path):
    """``start(document, history)``: serves both; two runs of ``bench`` are stored."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for _ in range(2):
        record.save(dataclasses.replace(sample.sweep(), id="", cluster="sparks"))
    servers = []

    def served(document, history):
        servers.append(Served(document, history))
        return servers[-1]

    yield served
    for each in servers:
        each.close()


@pytest.mark.parametrize("state", documents.STATES)
def test_each_state_fits_phone_and_screen_and_contacts_only_its_server(browser, start, state):
    document, history = documents.STATES[state]()
    server = start(document, history)
    for width in (390, 1280, 1920):
        for dark in (False, True):
            browser.open(server.url, width, dark=dark)
            browser.until(DRAWN)
            assert browser.complaints() == []
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (int(re.findall(r"\d+", ground)[0]) < 128) is dark
            assert browser.evaluate(PALE) == []
            sent = [each["params"] for each in browser.events if each["method"] == "Network.requestWillBeSent"]
            assert [each["request"]["url"] for each in sent if not each["request"]["url"].startswith(server.url)] == []
    assert browser.evaluate("document.getElementById('word').textContent") == document["state"]
    plots = browser.evaluate("[...document.querySelectorAll('#sparks figure')].map((each) => each.ariaLabel)")
    assert len(plots) == 4 * len(document["nodes"])
    assert all("; highest in 15 minutes: " in each for each in plots)
    wanted = [text for model in document["models"] for each in model["findings"] for text in each["remedy"]]
    shown = browser.evaluate("[...document.querySelectorAll('p:has(> code)')].map((each) => each.textContent)")
    assert set(wanted) <= set(shown)


def test_text_from_nodes_is_not_interpreted_as_html(browser, start):
    server = start(*documents.hostile())
    browser.open(server.url)
    browser.until(DRAWN)
    assert documents.HOSTILE in browser.evaluate("document.getElementById('findings').textContent")
    assert browser.evaluate("document.title") == f"degraded, {documents.HOSTILE}"
    assert browser.evaluate("document.querySelectorAll('img, main script, iframe').length") == 0
    assert set(server.asked) <= {"/", "/events", "/bench", "/favicon.ico"}


def test_errors_come_first_and_unknown_values_leave_a_gap(browser, start):
    document, history = documents.lost()
    for values in history["groups"]["sparks/default"].values():
        values[60:72] = [None] * 12
    browser.open(start(document, history).url)
    browser.until(DRAWN)
    looks = browser.evaluate("[...document.querySelectorAll('.finding')].map((each) => each.classList[2])")
    assert looks == ["bad", "bad", "warn"]
    commands = browser.evaluate(
        "[...document.querySelectorAll('#findings article:nth-child(2) code')].map((each) => each.textContent)"
    )
    assert commands == ["docker restart sparkcluster-sparks-7-spark-1", "sparkcluster up sparks.yaml"]
    line = browser.evaluate("document.querySelector('.group path:not(.area)').getAttribute('d')")
    assert line.count("M") == 2
    now = browser.evaluate("document.querySelector('#sparks article:last-child figure').ariaLabel")
    assert re.fullmatch(r"Memory available: unknown; highest in 15 minutes: 21\.\d GiB", now)


def test_figures_are_updated_in_place_and_keep_a_selection(browser, start):
    document, history = documents.serving()
    server = start(document, history)
    browser.open(server.url)
    browser.until(DRAWN)
    browser.evaluate("getSelection().selectAllChildren(document.querySelector('#findings code'))")
    places = "[...document.querySelectorAll('h2, h3, figure')].map((each) => each.getBoundingClientRect().toJSON())"
    before = browser.evaluate(places)
    point = json.loads(json.dumps(documents.last(history)))
    point["at"] += 5
    point["groups"]["sparks/default"]["tokens_per_s"] = 1234.5
    point["nodes"]["spark-1"]["rdma_per_s"] = 9e8
    document = json.loads(json.dumps(document | {"at": point["at"]}))
    document["models"][0]["groups"][0]["load"] |= {"tokens_per_s": 1234.5, "running": 64.0, "ttft_p50_s": None}
    server.push(document, point)
    browser.until("document.querySelector('#totals b').textContent === '1,235'")
    assert browser.evaluate("document.querySelector('.group b').textContent") == "1,235"
    assert browser.evaluate("document.querySelectorAll('#sparks figure b')[3].textContent") == "7.20"
    assert browser.evaluate("getSelection().toString()") == "sparkcluster setup sparks.yaml --only clock"
    assert browser.evaluate(places) == before


def test_a_broken_stream_is_shown_with_its_age_and_cleared_automatically(browser, start):
    server = start(*documents.serving())
    browser.open(server.url)
    browser.until(DRAWN)
    server.breaks()
    browser.until("document.getElementById('age').textContent.includes('no connection to sparkcluster web')")
    browser.evaluate("{ const now = Date.now; globalThis.later = 3600000; Date.now = () => now() + later; }")
    browser.until("document.getElementById('word').textContent === 'no connection'")
    assert browser.evaluate("document.querySelector('#word span').className") == "warn"
    assert browser.evaluate("document.getElementById('age').textContent").startswith("last state: serving, 1 h 0 min")
    assert browser.evaluate("document.title").startswith("no connection")
    while server.asked.count("/events") < 2:  # it is refused, after which a browser does not retry
        time.sleep(0.05)
    server.broken = False
    browser.until("document.getElementById('word').textContent === 'serving'")
