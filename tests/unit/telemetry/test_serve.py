"""Answers and refusals of the server of ``export`` and ``web``, over real connections."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import functools
import hashlib
import json
import re
import socket
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from sparkcluster.bench import record
from sparkcluster.errors import UsageError
from sparkcluster.telemetry import serve
from tests.unit.bench import sample
from tests.unit.telemetry.fake_live import FakeLive

TOKEN = "a-token"
Ask = Callable[..., Awaitable[aiohttp.ClientResponse]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "POLL_S", 0.01)


def served(token: str | None = None, *, local: bool = True, name: str = ""):
    """Runs a test with ``ask(path, method, **headers)`` and the ``FakeLive`` that is served, on a free port of loopback."""

    def around(test):
        @functools.wraps(test)
        def run() -> None:
            async def main() -> None:
                live = FakeLive()
                server = serve.Server(live, token, local=local, name=name)
                listener = serve.listening("127.0.0.1:0")
                loop = asyncio.get_running_loop()
                listens = await loop.create_server(web.Server(server.answer, access_log=None), sock=listener)
                following = loop.create_task(server.follow(lambda text, kind: live.said.append(f"{kind}: {text}")))
                answers: list[aiohttp.ClientResponse] = []
                address = f"http://127.0.0.1:{listener.getsockname()[1]}"
                async with aiohttp.ClientSession(address) as session:

                    async def ask(path: str, method: str = "GET", **headers: str) -> aiohttp.ClientResponse:
                        named = {key.replace("_", "-"): value for key, value in headers.items()}
                        answers.append(await session.request(method, path, headers=named, allow_redirects=False))
                        return answers[-1]

                    await asyncio.wait_for(test(ask, live), 20)
                    for answer in answers:
                        answer.close()
                following.cancel()
                listens.close()

            asyncio.run(main())

        del run.__wrapped__  # pytest would take the arguments for fixtures
        return run

    return around


@served()
async def test_metrics_and_the_page_are_read_only(ask: Ask, live: FakeLive) -> None:
    for path, kind in {"/": "text/html", "/metrics": "text/plain", "/bench": "application/json"}.items():
        found = await ask(path)
        assert (found.status, found.content_type) == (200, kind)
        head = await ask(path, "HEAD")
        assert (head.status, await head.read()) == (200, b"")
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert (await ask(path, method)).status == 405
    assert b'sparkcluster_node_up{node="spark-1"} 1.0' in await (await ask("/metrics")).read()
    assert (await ask("/favicon.ico")).status == 204
    for path in ("/page.html", "/bench/", "/bench/atlas-1", "/../etc/passwd", "/metrics/"):
        assert (await ask(path)).status == 404


@served()
async def test_the_page_can_run_its_own_script_only(ask: Ask, live: FakeLive) -> None:
    for path in ("/", "/metrics", "/bench", "/events", "/nothing"):
        found = await ask(path, "HEAD")
        policy = found.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert found.headers["X-Content-Type-Options"] == "nosniff"
        assert found.headers["Cache-Control"] == "no-store"
    page = await (await ask("/")).text()
    for tag in ("script", "style"):
        (own,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", page, re.DOTALL)
        assert f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()}'" in policy


@served()
async def test_on_loopback_an_unknown_host_header_is_refused(ask: Ask, live: FakeLive) -> None:
    """A page on a name that resolves to 127.0.0.1 could otherwise read it (DNS rebinding)."""
    for host in ("localhost", "localhost:9999", "127.0.0.1", "127.1.2.3:80", "[::1]:9469", "LOCALHOST"):
        assert (await ask("/metrics", Host=host)).status == 200, host
    for host in (
        "evil.example",
        "localhost.evil.example",
        "10.0.0.1",
        "[::1",
        "",
        "[",
        "a b",
        "127.0.0.1.evil.example",
    ):
        assert (await ask("/metrics", Host=host)).status == 421, host


@served(local=False, name="spark-1.lan")
async def test_beyond_loopback_addresses_and_names_of_this_machine_are_accepted(ask: Ask, live: FakeLive) -> None:
    for host in ("192.168.1.5:9469", "[fe80::1]", socket.gethostname(), f"{socket.gethostname()}.local", "spark-1.lan"):
        assert (await ask("/metrics", Host=host)).status == 200, host
    for host in ("evil.example", ""):
        assert (await ask("/metrics", Host=host)).status == 421, host


@served()
async def test_a_page_of_another_site_can_start_nothing(ask: Ask, live: FakeLive) -> None:
    for path, status in {"/events": 403, "/bench": 403, "/metrics": 403, "/": 200}.items():
        assert (await ask(path, Sec_Fetch_Site="cross-site")).status == status


@served(TOKEN, local=False)
async def test_without_the_token_nothing_is_visible(ask: Ask, live: FakeLive) -> None:
    for path in ("/", "/metrics", "/events", "/bench", "/nothing", "/?token=wrong", f"/metrics?token={TOKEN}"):
        assert (await ask(path)).status == 401, path
    for value in (f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer", "Bearer é"):
        assert (await ask("/metrics", Authorization=value)).status == 401
    assert (await ask("/metrics", Authorization=f"Bearer {TOKEN}")).status == 200
    entered = await ask(f"/?token={TOKEN}")
    assert (entered.status, entered.headers["Location"]) == (302, "/")
    cookie = entered.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert TOKEN not in cookie  # other servers of this host get it too
    value = entered.cookies["sparkcluster"].value
    assert (await ask("/events", "HEAD", Cookie=f"sparkcluster={value}")).status == 200
    assert (await ask("/events", "HEAD", Cookie="sparkcluster=x")).status == 401
    assert (await ask("/metrics", Authorization=f"Bearer {value}")).status == 401


async def event(found: aiohttp.ClientResponse) -> tuple[str, dict]:
    """The next event: its name and document."""
    lines: dict[str, str] = {}
    while (line := (await found.content.readline()).decode().rstrip("\n")) or not lines:
        name, _, value = line.partition(": ")
        lines[name] = value
    return lines["event"], json.loads(lines["data"])


@served()
async def test_the_start_and_end_of_a_problem_are_logged_once(ask: Ask, live: FakeLive):
    healthy = {**live.document["models"][0], "findings": []}
    for models in ([healthy], live.document["models"]):
        live.tick(models=models)
        await asyncio.sleep(2 * serve.POLL_S)
    warning = "HOST-017 spark-1: the clocks differ"
    assert live.said == [f"warning: {warning}", f"resolved: {warning}", f"warning: {warning}"]


@served()
async def test_a_page_gets_the_history_and_then_each_tick(ask: Ask, live: FakeLive) -> None:
    live.tick(inventory="\u202e</script>\n\x1b", checked_s=float("nan"))
    found = await ask("/events")
    assert await event(found) == ("history", live.history)
    name, now = await event(found)
    while "inventory" not in now["document"]:  # the tick is seen some hundredths of a second later
        name, now = await event(found)
    assert (name, now["document"]["inventory"], now["document"]["checked_s"]) == ("now", "\u202e</script>\n\x1b", None)
    assert now["point"] == {"at": 2.0, "nodes": {"spark-1": {"gpu_power_w": None}}, "groups": {}}
    live.tick(inventory="next")
    assert (await event(found))[1]["document"]["inventory"] == "next"


@served()
async def test_a_slow_page_gets_the_newest_tick_and_the_others_every_tick(ask: Ask, live: FakeLive) -> None:
    slow, quick = await ask("/events"), await ask("/events")
    await event(quick)
    await event(quick)
    for tick in range(40):
        live.tick(filler="x" * 400_000, tick=tick)
        assert (await event(quick))[1]["document"]["tick"] == tick
    await event(slow)
    await event(slow)
    seen = [(await event(slow))[1]["document"]["tick"] for _ in range(3)]
    while seen[-1] < 39:
        seen.append((await event(slow))[1]["document"]["tick"])
    assert len(seen) < 30


@pytest.mark.parametrize("leaves", [True, False])
def test_a_page_above_the_limit_is_refused_until_another_closes_or_stops_reading(monkeypatch, leaves: bool) -> None:
    """A closed laptop leaves its connection open, and does not read."""
    monkeypatch.setattr(serve, "UNREAD_S", 20 if leaves else 0.2)

    @served()
    async def asks(ask: Ask, live: FakeLive) -> None:
        pages = [await ask("/events") for _ in range(16)]
        assert (await ask("/events")).status == 503
        if leaves:
            pages[0].close()
        for tick in range(100):
            live.tick(filler="x" * 400_000, tick=tick)
            await asyncio.sleep(0.05)
            if (await ask("/events", "HEAD")).status == 200:
                return
        raise AssertionError("it still counts")

    asks()


def test_an_invalid_request_is_at_most_a_printable_line_in_the_journal(caplog):
    @served()
    async def asks(ask: Ask, live: FakeLive) -> None:
        address = (await ask("/")).url
        for said in (b"\x16\x03\x01 what\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\x1b[2J\r\n\r\n"):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(said)
            assert b" 400 " in await reader.readline()
            writer.close()

    asks()
    assert [each.getMessage() for each in caplog.records if each.exc_info or not each.getMessage().isprintable()] == []


def test_runs_of_these_clusters_are_listed_and_drawn(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for cluster in ("atlas", "other"):
        run = sample.sweep()
        record.save(dataclasses.replace(run, id="", cluster=cluster, cells=run.cells[:1], samples={}))

    @served()
    async def asks(ask: Ask, live: FakeLive) -> None:
        (listed,) = await (await ask("/bench")).json()
        known = {"id": "atlas-1", "at": 1_790_000_000.0, "profile": "sweep", "model": "openai/gpt-oss-120b"}
        assert listed == {**known, "decode": pytest.approx(52, rel=0.02), "prefill": pytest.approx(3900, rel=0.02)}
        for _ in range(2):
            found = await ask("/bench/atlas-1")
            assert (found.status, found.content_type) == (200, "text/html")
            policy = found.headers["Content-Security-Policy"]
            assert "sandbox" in policy
            assert "default-src 'none'" in policy
            assert "atlas-1" in await found.text()
            monkeypatch.setattr(serve, "_draw", None)  # the last token is kept
        for path in ("/bench/other-1", "/bench/--help", "/bench/../atlas-1"):
            assert (await ask(path)).status == 404

    asks()


def test_a_used_port_or_missing_address_is_one_line():
    with serve.listening("127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match="in use") as failed:
            serve.listening(f"127.0.0.1:{port}")
        assert "--listen" in failed.value.hint
    for text in ("9469", "127.0.0.1", ":9469", "127.0.0.1:x", "u@127.0.0.1:1", "127.0.0.1:1/x", "127.0.0.1:99999", ""):
        with pytest.raises(UsageError, match="--listen takes ADDRESS:PORT"):
            serve.listening(text)
    for text in ("no-such-name.invalid:1", "192.0.2.1:0"):
        with pytest.raises(UsageError, match="cannot listen on"):
            serve.listening(text)


def test_the_token_is_created_once_and_readable_by_its_user_only(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "new"))
    token, path = serve.token()
    assert serve.token() == (token, path)
    assert len(token) > 40
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("")  # an empty token would admit every client
    assert len(serve.token()[0]) > 40
