"""The gateway's answers to clients, over real connections."""

from __future__ import annotations

import asyncio
import io
import json
import random

import aiohttp
import pytest
from aiohttp import web

from tests.unit.gateway.served import CHAT, REFUSING, gateway, key, model, run, serving

AUDIO = "/v1/audio/transcriptions"
FORM = b'--X\r\nContent-Disposition: form-data; name="model"\r\n\r\ngpt\r\n--X\r\n'
EVENTS = {"Content-Type": "text/event-stream"}


HEADERS = {"Set-Cookie": "a=b", "Access-Control-Allow-Origin": "*", "X-Request-Id": "7"}


class Recorder:
    """An engine that answers every request in the same way, and records requests."""

    def __init__(self, status: int = 200, text: str = "{}") -> None:
        self.status, self.text = status, text
        self.requests: list[web.BaseRequest] = []
        self.bodies: list[bytes] = []

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        self.requests.append(request)
        self.bodies.append(await request.read())
        return web.Response(status=self.status, text=self.text, headers=HEADERS)


@run
async def test_64_concurrent_streams_lose_no_byte() -> None:
    """Order and content of streams are unchanged, for any chunk size."""

    def sent(seed: int) -> list[bytes]:
        chance = random.Random(seed)
        return [chance.randbytes(chance.choice([1, 9, 80, 5000, 5000, 100_000])) for _ in range(100)]

    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(request)
        for chunk in sent(json.loads(await request.read())["seed"]):
            await response.write(chunk)
            await asyncio.sleep(0)
        return response

    async with serving(engine) as url, gateway(model("gpt", url)) as it:

        async def ask(seed: int) -> None:
            async with it.post(json={"model": "gpt", "stream": True, "seed": seed}) as answer:
                assert await answer.read() == b"".join(sent(seed)), seed

        await asyncio.gather(*map(ask, range(64)))


@run
async def test_request_and_answer_are_forwarded_unchanged_except_hop_by_hop_headers_and_secrets() -> None:
    """The body byte for byte; no client key is forwarded, and no cookie or CORS header is returned."""
    engine, body = Recorder(), '{"x":  1.0,"model" : "gpt-alias", "é":"\\u00e9"}\n'.encode()
    keys, path = key("clients"), "/v1/messages?beta=true"
    for engine_key in ("engines", None):
        async with serving(engine) as url, gateway(model("gpt", url), keys=keys, engine_key=engine_key) as it:
            for sent in ({"Authorization": "Bearer clients"}, {"x-api-key": "clients"}):
                headers = {**sent, "Content-Type": "application/json", "Cookie": "c=clients", "anthropic-version": "1"}
                headers |= {"Connection": "keep-alive, X-Hop", "X-Hop": "clients"}
                async with it.post(path, data=body, headers=headers) as answer:
                    assert (answer.status, await answer.text(), answer.headers["X-Request-Id"]) == (200, "{}", "7")
                    assert not {"Set-Cookie", "Access-Control-Allow-Origin"} & answer.headers.keys()
                request = engine.requests.pop()
                assert request.headers.get("Authorization") == (engine_key and f"Bearer {engine_key}")
                assert (request.headers["anthropic-version"], request.path_qs) == ("1", path)
                assert "clients" not in str(request.raw_headers)
    assert engine.bodies == [body] * 4


@run
async def test_a_multipart_body_is_routed_by_its_model_and_forwarded_unchanged() -> None:
    """Parts before and after ``model`` are kept; if an engine is unreachable the next one gets the complete body."""
    engine = Recorder()
    part = b'--XX\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    sent = part % (b"prompt", b'name="model"') + part % (b"model", b"whisper") + part % (b"file", b"\0" * 300_000)
    sent += b"--XX--\r\n"

    async def body():
        for at in range(0, 300, 3):
            yield sent[at : at + 3]
            await asyncio.sleep(0.001)
        yield sent[300:]

    headers = {"Content-Type": 'multipart/form-data; boundary="XX"'}
    async with serving(engine) as url, gateway(model("gpt", REFUSING), model("whisper", REFUSING, url)) as it:
        assert (await it.post(AUDIO, data=body(), headers=headers)).status == 200
    assert engine.bodies == [sent]
    assert engine.requests[0].headers["Content-Type"] == headers["Content-Type"]


@run
async def test_a_request_with_a_wrong_key_reaches_no_engine() -> None:
    """Each client library gets the error in its format; only /health needs no key."""
    engine = Recorder()
    async with serving(engine) as url, gateway(model("gpt", url), keys=key("right")) as it:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic right"}, {"x-api-key": "é"}):
            async with it.post(json={"model": "gpt"}, headers=headers) as answer:
                assert (answer.status, (await answer.json())["error"]["type"]) == (401, "authentication_error")
            async with it.post("/v1/messages", json={"model": "gpt"}, headers=headers) as answer:
                assert (answer.status, (await answer.json())["type"]) == (401, "error")
            for path, status in (("/v1/models", 401), ("/metrics", 401), ("/health", 200)):
                assert (await it.get(path, headers=headers)).status == status
    assert engine.requests == []


@run
async def test_a_model_of_another_key_looks_absent() -> None:
    """A limited key can neither use nor list other models, also not through ``auto``, a listing or metrics."""
    keys = {**key("all"), **key("alices", ["embed"])}
    models = [model("gpt", REFUSING), model("embed", REFUSING, kind="embeddings")]
    async with gateway(*models, keys=keys) as it:
        alice = {"Authorization": "Bearer alices"}
        seen = set()
        for name in ("gpt", "no-such", "auto"):
            async with it.post(json={"model": name}, headers=alice) as answer:
                seen.add((answer.status, await answer.text()))
        assert [status for status, _ in seen] == [404]
        async with it.get("/v1/models", headers=alice) as answer:
            assert [entry["id"] for entry in (await answer.json())["data"]] == ["embed", "embed-alias"]
        assert (await it.get("/metrics", headers=alice)).status == 403
        async with it.post("/v1/embeddings", json={"model": "embed"}, headers=alice) as answer:
            assert (answer.status, "gpt" in await answer.text()) == (503, False)


@run
async def test_other_paths_of_an_engine_are_not_exposed() -> None:
    """Paths that stop an engine, load code into it or show data of other clients."""
    engine = Recorder()
    async with serving(engine) as url, gateway(model("gpt", url)) as it:
        for path in (
            "/sleep",
            "/collective_rpc",
            "/v1/load_lora_adapter",
            "/v1/chat/completions/",
            "/v1/../sleep",
            "//sleep",
        ):
            reader, writer = await it.connect()
            writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            assert (await reader.readline()).split()[1] == b"404", path
            writer.close()
        for path in ("/load", "/ping", CHAT):
            async with it.get(path, headers={"Connection": "Upgrade", "Upgrade": "websocket"}) as answer:
                assert (answer.status, (await answer.json())["error"]["type"]) == (404, "not_found_error")
        async with it.get("/metrics") as answer:
            assert 'sparkcluster_gateway_model_ready{model="gpt"} 1.0' in await answer.text()
    assert engine.requests == []


@run
async def test_an_endless_body_is_refused() -> None:
    """A body that stops arriving is refused after a time, an endless one at a size, in either kind of body."""
    engine = Recorder()
    kinds = {"application/json": b'{"model": "gpt", "x": "', "multipart/form-data; boundary=X": FORM}

    async def body(begin: bytes, endless: bool):
        yield begin
        while endless:
            yield b"x" * 10_000
            await asyncio.sleep(0)
        await asyncio.sleep(2)

    async with serving(engine) as url, gateway(model("gpt", url), MOST_BYTES=100_000, WITHIN_S=0.3) as it:
        for kind, begin in kinds.items():
            for endless, status in ((True, 413), (False, 408)):
                async with it.post(
                    AUDIO if b"form" in begin else CHAT, data=body(begin, endless), headers={"Content-Type": kind}
                ) as answer:
                    assert (answer.status, url in await answer.text()) == (status, False)
        assert (await it.post(json={"model": "gpt"})).status == 200
    assert len(engine.bodies) == 1


@run
async def test_a_body_that_is_not_a_valid_request_is_refused() -> None:
    """Including bodies that expand to hundreds of times their size, and requests of any web page."""
    bodies = {b"[" * 1_100_000: 413, b"[" * 10_000: 400, b"[]": 400, b"{": 400, b'{"model": 1}': 404, b"": 400}
    async with gateway(model("gpt", REFUSING)) as it:
        for body, status in bodies.items():
            headers = {"Content-Type": "application/json"}
            assert (await it.post(data=io.BytesIO(body), headers=headers)).status == status, body[:20]
        for headers in (
            {"Content-Type": "text/plain"},
            {"Content-Encoding": "gzip", "Content-Type": "application/json"},
        ):
            assert (await it.post(data=b"{}", headers=headers)).status == 415
        headers = {"Content-Type": "multipart/form-data; boundary=X", "Origin": "http://page.example"}
        for path in (CHAT, AUDIO):
            assert (await it.post(path, data=FORM, headers=headers)).status == 415


@run
async def test_another_replica_is_used_if_one_is_down_or_full() -> None:
    """Before the first byte; if none accepts it, the client gets a retry time, and no address."""
    full, engine = Recorder(503), Recorder()
    async with serving(full) as busy, serving(engine) as url:
        async with gateway(model("gpt", REFUSING, busy, url), model("one", REFUSING, busy)) as it:
            assert (await it.post(json={"model": "gpt"})).status == 200
            async with it.post(json={"model": "one"}) as answer:
                text = await answer.text()
                assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
                assert "loaded: gpt, one" in text
                assert "127.0.0.1" not in text
    assert (len(full.requests), len(engine.requests)) == (2, 1)


@run
async def test_large_concurrent_requests_are_refused_before_they_exhaust_memory() -> None:
    """It has memory for eight of the largest: later ones get a retry time, and none is stored."""
    big = {"model": "gpt", "x": "y" * 900}
    async with serving(Recorder()) as url, gateway(model("gpt", url, idle_s=60), MOST_HELD_BYTES=8000) as it:

        async def ask() -> str:
            async with it.post(json=big) as answer:
                return await answer.text()

        asked = [asyncio.ensure_future(ask()) for _ in range(10)]
        await asyncio.sleep(0.3)
        it.report(gpt="ready")
        assert sum("too many large requests" in text for text in await asyncio.gather(*asked)) == 2
        assert [await ask() for _ in range(20)] == ["{}"] * 20


@run
async def test_an_engine_that_requires_a_different_key_is_not_reported_as_a_wrong_client_key() -> None:
    async with serving(Recorder(401)) as url, gateway(model("gpt", url), engine_key="old") as it:
        async with it.post(json={"model": "gpt"}) as answer:
            assert (answer.status, "another api.key" in await answer.text()) == (503, True)


@run
async def test_an_interrupted_answer_is_not_retried_and_does_not_look_complete() -> None:
    """An event stream ends with an error; any other answer is truncated."""
    asked = []

    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request)
        response = web.StreamResponse(headers=EVENTS if b"true" in await request.read() else {})
        await response.prepare(request)
        await response.write(b"data: 1")
        request.transport.abort()
        return response

    async with serving(engine) as url, gateway(model("gpt", url, url.replace("127.0.0.1", "127.1"))) as it:
        async with it.post(json={"model": "gpt", "stream": True}) as answer:
            first, _, event = (await answer.text()).partition("\n\n")
            assert (first, json.loads(event.removeprefix("data: "))["error"]["code"]) == ("data: 1", 503)
        with pytest.raises(aiohttp.ClientError):
            async with it.post(json={"model": "gpt"}) as answer:
                await answer.read()
    assert len(asked) == 2


@run
async def test_an_engine_that_dies_before_it_answers_is_an_error_with_a_message() -> None:
    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        request.transport.abort()
        return web.Response()

    async with serving(engine) as url, gateway(model("gpt", url)) as it, it.post(json={"model": "gpt"}) as answer:
        assert (answer.status, (await answer.json())["error"]["type"]) == (503, "overloaded_error")


@run
async def test_a_disconnecting_client_aborts_the_request_in_the_engine() -> None:
    """Also before the first byte, when nothing would be written to it."""
    asked, ended = asyncio.Event(), asyncio.Event()

    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers=EVENTS)
        if b"true" in await request.read():
            await response.prepare(request)
            await response.write(b"data: 1\n\n")
        asked.set()
        while request.transport is not None:
            await asyncio.sleep(0.01)
            if response.prepared and request.transport is not None:
                await response.write(b"data: 2\n\n")
        ended.set()
        return response

    async with serving(engine) as url, gateway(model("gpt", url)) as it:
        for stream in (False, True):
            task = asyncio.ensure_future(it.client.post(it.url + CHAT, json={"model": "gpt", "stream": stream}))
            await asked.wait()
            if stream:
                (await task).close()
            task.cancel()
            await asyncio.wait_for(ended.wait(), 5)
            asked.clear(), ended.clear()


@run
async def test_a_client_that_does_not_read_is_disconnected() -> None:
    """Its engine is free immediately, however long the answer would have been."""
    ended = asyncio.Event()

    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 100_000)
        finally:
            ended.set()

    async with serving(engine) as url, gateway(model("gpt", url), UNREAD_S=0.2) as it:
        async with it.post(json={"model": "gpt"}):
            await asyncio.wait_for(ended.wait(), 10)


@run
async def test_auto_is_the_largest_ready_chat_model_or_the_first() -> None:
    """The request uses the engine's model name."""
    engine = Recorder()
    async with serving(engine) as url:
        models = [model("first", url), model("large", url, size=9), model("embed", url, kind="embeddings", size=99)]
        async with gateway(*models) as it:
            for state in ("ready", "failed"):
                it.keeper.seen["large"].state = state
                assert (await it.post(json={"model": "auto", "x": 1})).status == 200
            async with it.get("/v1/models") as answer:
                listed = (await answer.json())["data"]
    assert [json.loads(body) for body in engine.bodies] == [{"model": "large", "x": 1}, {"model": "first", "x": 1}]
    names = ["first", "first-alias", "large", "large-alias", "embed", "embed-alias", "auto"]
    assert [entry["id"] for entry in listed] == names
    assert [listed[2][key] for key in ("state", "max_model_len")] == ["failed", 4096]


@run
async def test_a_stream_gets_comments_while_its_model_loads_then_the_engines_bytes() -> None:
    """Later errors are events: neither a second answer nor a silent end."""
    engine = Recorder(text="data: [DONE]\n\n")
    ends = {200: "data: [DONE]", 400: "data: data: [DONE]", 503: "data: {", None: "event: error"}
    async with serving(engine) as url, gateway(model("gpt", url, idle_s=60), COMMENT_S=0.05) as it:
        for status, end in ends.items():
            it.report(gpt="stopped")
            engine.status = status or 200
            path = CHAT if status else "/v1/messages"
            async with it.post(path, json={"model": "gpt", "stream": True}) as answer:
                assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
                assert await answer.content.readline() == b": loading \n"
                it.report(gpt="starting")
                while not (await answer.content.readline()).endswith(b" %\n"):
                    pass
                it.report(gpt="ready" if status else "failed")
                text = [line for line in (await answer.text()).splitlines() if line and not line.startswith(":")]
                assert text[0].startswith(end)
        async with it.post(json={"model": "gpt"}) as answer:
            assert (
                "gpt cannot be loaded now; its operator can see why with sparkcluster status; loaded: none"
                in await answer.text()
            )
    assert len(engine.requests) == 3
