"""The read-only HTTP server of ``export`` and ``web``: metrics, and a page that gets an event after each tick."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client import generate_latest

from sparkcluster import output_file
from sparkcluster.errors import UsageError
from sparkcluster.printable import as_json, one_line
from sparkcluster.spec.inventory import bracketed
from sparkcluster.telemetry.exposition import CONTENT_TYPE, Exposition

if TYPE_CHECKING:
    from sparkcluster.telemetry.live import Live

POLL_S, UNREAD_S, DRAW_S = 0.25, 20.0, 60.0
"""Interval of polling for a tick; time limits for a page to read an event, and to draw the HTML of a bench run."""
MOST_PAGES, SENT_BYTES = 16, 1 << 16
"""Open pages; the send buffer of each, small so that a slow page gets the newest document instead of a queue."""
_COOKIE = "sparkcluster"
Say = Callable[..., None]
"""Writes a text, preceded by its ``kind``."""
_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
_HTML = "text/html; charset=utf-8"
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"


def listening(listen: str) -> socket.socket:
    """A socket that listens at ``listen``, for example ``127.0.0.1:9469`` or ``[::1]:9469``; port 0 picks a free port.

    Raises:
        UsageError: it is not an address and port of this machine, or the port is in use.
    """
    found = re.fullmatch(r"\[?([\w.:-]+?)\]?:(\d{1,5})", listen)
    if found is None or int(found[2]) > 65_535:
        raise UsageError(f"--listen takes ADDRESS:PORT, not {listen[:80]}", hint="--listen 127.0.0.1:9469")
    try:
        family, *_, address = socket.getaddrinfo(found[1], found[2], type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", "no such name").partition(" (while")[0]
        hint = "choose another address or port with --listen; export and web run the same server"
        raise UsageError(f"cannot listen on {listen}: {why}", hint=hint) from None


def token() -> tuple[str, Path]:
    """The token of this user and its file, created on first use.

    Raises:
        UsageError: it cannot be written.
    """
    path = output_file.state_home() / "web-token"
    if not path.is_file() or not path.read_text().strip():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        output_file.write(path, lambda file: file.write(secrets.token_urlsafe(32).encode()), private=True)
    return path.read_text().strip(), path


def is_local(listener: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def url(listener: socket.socket) -> str:
    """Its URL for a browser, with this machine's name if it listens on all addresses."""
    host, port = listener.getsockname()[:2]
    host = socket.gethostname() if ipaddress.ip_address(host).is_unspecified else bracketed(host)
    return f"http://{host}:{port}"


def serve(live: Live, listener: socket.socket, token: str | None, listen: str, say: Say) -> None:
    """Answer requests with ``live`` until Ctrl-C (KeyboardInterrupt).

    Requests without ``token`` are refused, unless it is None. The name in ``listen`` is accepted as a host name.
    ``say`` is called for errors and warnings that appear or are resolved.
    """

    async def run() -> None:
        server = Server(live, token, local=is_local(listener), name=listen.rpartition(":")[0].lower())
        await asyncio.get_running_loop().create_server(web.Server(server.answer, access_log=None), sock=listener)
        await server.follow(say)

    asyncio.run(run())


def policy(page: str) -> str:
    """The Content-Security-Policy of ``page``: only its own script and style run, identified by hash."""
    own = ""
    for tag in ("script", "style"):
        digest = hashlib.sha256(re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[0].encode()).digest()
        own += f"{tag}-src 'sha256-{base64.b64encode(digest).decode()}'; "
    return f"default-src 'none'; {own}connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


class Server:
    """Answers requests; ``local``: only this machine can send them, else ``name`` is one of its names."""

    def __init__(self, live: Live, token: str | None, *, local: bool, name: str = "") -> None:
        logging.getLogger("aiohttp.server").addFilter(_brief)
        self._live, self._token, self._local = live, token, local
        host = socket.gethostname().lower()
        self._hosts = {"localhost"} if local else {"localhost", host, f"{host}.local", name} - {""}
        self._cookie = hmac.digest((token or "").encode(), b"cookie", "sha256").hex()
        self._page = Path(__file__).with_name("page.html").read_text("utf-8")
        self._policy = policy(self._page)
        self._exposition = Exposition(live)
        self._pages, self._ticked, self._now = 0, asyncio.Event(), b""
        self._drawing, self._drawn = asyncio.Lock(), ("", b"")

    async def follow(self, say: Say) -> None:
        """Send pages an event after each tick, and report changes with ``say``; raises an error of ``live``."""
        number, reported = 0, set[tuple[str, str]]()
        while True:
            if (newer := self._live.wait(number, 0)) != number:
                number, ticked, self._ticked = newer, self._ticked, asyncio.Event()
                self._now = _event("now", {"document": self._live.document, "point": _last(self._live.history)})
                ticked.set()
                models = self._live.document["models"]
                findings = [(each, each["node"] or model["cluster"]) for model in models for each in model["findings"]]
                found = {(each["severity"], f"{each['code']} {where}: {each['summary']}") for each, where in findings}
                for kind, text in sorted(found - reported):
                    say(text, kind=kind)
                for _, text in sorted(reported - found):
                    say(text, kind="resolved")
                reported = found
            await asyncio.sleep(POLL_S)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to a request, or its refusal."""
        if refusal := self._refusal(request):
            return refusal
        if request.path == "/events":
            return await self._events(request)
        if request.path.startswith("/bench"):
            return await self._bench(request.path)
        if request.path == "/metrics":
            return self._response(200, generate_latest(self._exposition), CONTENT_TYPE)
        if request.path == "/":
            return self._response(200, self._page.encode(), _HTML)
        return self._response(204 if request.path == "/favicon.ico" else 404)

    def _refusal(self, request: web.BaseRequest) -> web.Response | None:
        if not self._is_ours(request.headers.get("Host", "")):
            return self._response(421, b"unknown host name: use the IP address")
        if request.method not in {"GET", "HEAD"}:
            return self._response(405, Allow="GET, HEAD")
        if request.path != "/" and request.headers.get("Sec-Fetch-Site") == "cross-site":
            return self._response(403, b"cross-site requests are refused")
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        sent = given if scheme.lower() == "bearer" else "", request.cookies.get(_COOKIE, "")
        if self._token is None or _same(sent[0], self._token) or _same(sent[1], self._cookie):
            return None
        if request.path != "/" or not _same(request.query.get("token", ""), self._token):
            return self._response(
                401,
                b"the token is missing or wrong: open /?token=TOKEN, or send it as a bearer token",
                **{"WWW-Authenticate": "Bearer"},
            )
        response = self._response(302, Location="/")
        response.set_cookie(_COOKIE, self._cookie, httponly=True, samesite="Lax")
        return response

    def _response(self, status: int, body: bytes = b"", kind: str = "text/plain", /, **more: str) -> web.Response:
        headers = {**_HEADERS, "Content-Security-Policy": self._policy, "Content-Type": kind, **more}
        return web.Response(body=body, status=status, headers=headers)

    def _is_ours(self, named: str) -> bool:
        """Whether a Host header names this machine, to prevent DNS rebinding by other web pages."""
        name = re.sub(r":\d*$", "", named.lower())
        host = name.strip("[]")
        try:
            return ipaddress.ip_address(host).is_loopback or not self._local
        except ValueError:
            return host in self._hosts

    async def _events(self, request: web.BaseRequest) -> web.StreamResponse:
        """The history, then the newest document, and again after each tick; a slow page skips documents."""
        transport = request.transport
        if self._pages >= MOST_PAGES or transport is None:
            return self._response(503, b"too many pages are open: close one")
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_BYTES)
        response = web.StreamResponse(headers=self._response(200, b"", "text/event-stream").headers)
        self._pages += 1
        try:
            await response.prepare(request)
            before = b"retry: 3000\n" + _event("history", self._live.history)
            while request.method == "GET":
                ticked = self._ticked
                async with asyncio.timeout(UNREAD_S):
                    await response.write(before + self._now)
                before = b""
                await ticked.wait()
        except (ConnectionError, TimeoutError):
            transport.abort()
        finally:
            self._pages -= 1
        return response

    def _runs(self) -> list[dict[str, Any]]:
        """Bench runs of these clusters on this machine, newest first."""
        from sparkcluster.bench import judge, record  # noqa: PLC0415 - not needed for Prometheus

        found = []
        for each in record.kept()[0]:
            if each.cluster in self._live.views:
                alone = judge.alone(each)
                passes = {name: judge.by_pass(alone, name) if alone else [] for name in ("decode", "prefill")}
                figures = {name: statistics.median(values) if values else None for name, values in passes.items()}
                found.append({"id": each.id, "at": each.at, "profile": each.profile, "model": each.model, **figures})
        return found

    async def _bench(self, path: str) -> web.Response:
        """The runs, or the HTML of one, drawn by a separate process, since matplotlib would stay in memory here."""
        runs, run = await asyncio.to_thread(self._runs), path.removeprefix("/bench/")
        if path == "/bench":
            return self._response(200, as_json(runs).encode(), "application/json")
        if run not in [each["id"] for each in runs]:
            return self._response(404)
        async with self._drawing:
            if self._drawn[0] != run:
                self._drawn = run, await asyncio.to_thread(_draw, run)
            body = self._drawn[1]
        if not body:
            return self._response(404, f"cannot draw it; for the error: sparkcluster bench show {run} --html".encode())
        return self._response(200, body, _HTML, **{"Content-Security-Policy": _REPORT_POLICY})


def _brief(record: logging.LogRecord) -> bool:
    """Reduce aiohttp's log entry of a failed request to one printable line, since anyone can send garbage."""
    error = record.exc_info and record.exc_info[1]
    record.msg, record.args, record.exc_info = one_line(f"{record.getMessage()}: {error!r}")[:300], (), None
    return True


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def _draw(run: str) -> bytes:
    argv = [sys.executable, "-m", "sparkcluster", "bench", "show", run, "--html"]
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(argv, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, timeout=DRAW_S, check=False)
        return Path(folder, f"{run}.html").read_bytes()
    return b""


def _event(name: str, document: Any) -> bytes:
    return f"event: {name}\ndata: {as_json(document)}\n\n".encode()


def _last(history: Any) -> Any:
    """The last column of a history."""
    if isinstance(history, dict):
        return {name: _last(values) for name, values in history.items()}
    return history[-1]
