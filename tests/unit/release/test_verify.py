"""A start that tests a tool call and reasoning fails with the settings that the playbook lacks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkcluster.endpoint.find import Endpoint
from sparkcluster.engines.vllm import ENGINE
from sparkcluster.errors import LaunchError
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.release.verify import verify_group
from sparkcluster.spec.playbook import Playbook, Verify

AT = Endpoint("default", "alpha", "http://127.0.0.1:8000/v1", "m", None)
MODEL = {"name": "x", "model": {"id": "a/b", "checkpoint": "modelopt"}}
HINTS = {
    "garbage": "set moe-backend: marlin under args in the playbook, then sparkcluster down INVENTORY and up again",
    **ENGINE.api_features(Playbook.model_validate(MODEL)).remedies,
}
CALL = [{"name": "get_weather", "arguments": '{"city": "Paris"}'}]
AUTO = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'


def spec_of(**verify):
    """A playbook with ``verify`` that is not in a file."""
    playbook = Playbook.model_validate({**MODEL, "verify": {"pause_s": 0, **verify}})
    return SimpleNamespace(playbook=playbook, places={})


@pytest.fixture
def verified():
    """``verified(called, thinking, **verify)``: the requests; ``called`` ends the answer to tools, or is an error."""

    def run(called=None, thinking=None, text="It is 204.", **verify):
        asked = []

        def answer(request):
            asked.append(request)
            end = {"content": text, "reasoning": text and "hm", "usage": None, "ttft_s": 0.1, "total_s": 0.2}
            if request.get("tools"):
                end = called
            elif request["chat_template_kwargs"].get("enable_thinking"):
                end = thinking
            return [end if "error" in end else {"done": end}]

        host = FakeHost("alpha").program("ask", answer)
        reply = verify_group(host, AT, spec_of(**verify))
        assert reply.text == "It is 204."
        return asked

    return run


def test_after_the_answer_tool_call_and_reasoning_are_verified(verified):
    asked = verified({"tool_calls": CALL}, {"reasoning": "12 * 17"}, tools=True, reasoning=True, max_tokens=64)
    assert [bool(request.get("tools")) for request in asked] == [False, False, True, False]
    assert "tool_choice" not in asked[2]
    assert (asked[2]["max_tokens"], asked[3]["max_tokens"]) == (1024, 64)
    assert asked[3]["chat_template_kwargs"] == {"enable_thinking": True}
    assert asked[3]["messages"] == asked[0]["messages"]


@pytest.mark.parametrize(
    ("key", "answer", "message", "hint"),
    [
        ("tools", {"content": "Sunny"}, "verify.tools: the model was asked to use a tool but called none", HINTS["tools"]),
        ("tools", {"error": {"kind": "rejected", "message": AUTO}}, f"verify.tools: the model does not answer: {AUTO}",
         HINTS["tools"]),
        ("tools", {"error": {"kind": "timeout", "message": "late"}}, "verify.tools: the model does not answer: late",
         "sparkcluster logs"),
        ("reasoning", {"content": "204"}, "verify.reasoning: no reasoning was streamed", HINTS["reasoning"]),
    ],
)  # fmt: skip
def test_an_invalid_verification_names_the_key_and_the_line_to_write(verified, key, answer, message, hint):
    with pytest.raises(LaunchError) as caught:
        verified(answer, answer, **{key: True})
    assert caught.value.message.startswith(message)
    assert hint in caught.value.hint
    assert (caught.value.node, caught.value.step) == ("alpha", "verify")


@pytest.mark.parametrize(
    ("text", "verify", "hint"),
    [
        ("!" * 40, {}, HINTS["garbage"]),
        ("!" * 40, {"expect": "204"}, HINTS["garbage"]),
        ("It is 203.", {"expect": "204"}, "the answer must match verify.expect in the playbook"),
        ("", {"max_tokens": 64}, "raise verify.max_tokens in the playbook above 64"),
    ],
)
def test_a_wrong_answer_is_explained_with_the_playbooks_settings(verified, text, verify, hint):
    with pytest.raises(LaunchError) as caught:
        verified(text=text, **verify)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("finish", "hint"),
    [("length", "raise verify.max_tokens in the playbook above 2048"), ("stop", HINTS["reasoning"])],
)
def test_an_answer_with_only_reasoning_is_not_an_answer(finish, hint):
    end = {"content": "", "reasoning": "17 twelves are 204.", "finish_reason": finish}
    host = FakeHost("alpha").program("ask", [{"reasoning": end["reasoning"]}, {"done": end}])
    with pytest.raises(LaunchError, match="the answer is empty: ") as caught:
        verify_group(host, AT, spec_of(expect="204", max_tokens=2048))
    assert caught.value.hint == hint


OFF, ON = {"enable_thinking": False}, {"enable_thinking": True}
PARSER = {"reasoning-parser": "nemotron_v3"}


@pytest.mark.parametrize(
    ("playbook", "sent"),
    [
        ({}, {"temperature": 0.0, "max_tokens": 512}),
        ({"args": PARSER}, {"temperature": 0.0, "max_tokens": 2048}),
        (
            {"args": {**PARSER, "default-chat-template-kwargs": ON}},
            {"temperature": 0.0, "max_tokens": 512, "chat_template_kwargs": OFF},
        ),
        ({"args": PARSER, "verify": {"max_tokens": 9000}}, {"temperature": 0.0, "max_tokens": 9000}),
        (
            {"args": PARSER, "request": {"chat_template_kwargs": ON, "max_tokens": 7000, "temperature": 0.7}},
            {"temperature": 0.7, "max_tokens": 512, "chat_template_kwargs": OFF},
        ),
        (
            {"request": {"chat_template_kwargs": {"thinking": True, "lang": "de"}, "top_k": 20, "top_p": 0.9}},
            {"temperature": 0.0, "top_p": 0.9, "top_k": 20, "max_tokens": 512,
             "chat_template_kwargs": {"thinking": False, "lang": "de"}},
        ),
        (
            {"args": PARSER, "request": {"temperature": 0.7}, "verify": {"temperature": 0.1, "chat_template_kwargs": ON}},
            {"temperature": 0.1, "max_tokens": 2048, "chat_template_kwargs": ON},
        ),
    ],
)  # fmt: skip
def test_verification_sends_the_fields_for_clients_and_disables_reasoning_if_possible(playbook, sent):
    made = Playbook.model_validate({"name": "x", "model": {"id": "a/b"}, **playbook})
    assert made.verifying.body == sent
    again = made.model_copy(update={"verify": made.verifying})
    assert again.verifying == made.verifying


@pytest.mark.parametrize(
    ("args", "kind"),
    [
        ({}, "chat"),
        ({"runner": "pooling"}, "embeddings"),
        ({"task": "embed"}, "embeddings"),
        ({"runner": "pooling", "convert": "classify"}, "rerank"),
        ({"runner": "pooling", "hf-overrides": {"architectures": ["Qwen3ForSequenceClassification"]}}, "rerank"),
    ],
)
def test_a_models_kind_comes_from_the_playbook_or_its_arguments(args, kind):
    written = {"name": "x", "model": {"id": "a/b"}, "args": args}
    assert Playbook.model_validate(written).verifying.kind == kind
    assert Playbook.model_validate({**written, "verify": {"kind": "rerank"}}).verifying.kind == "rerank"


def test_a_model_without_text_output_has_no_tool_call_test():
    with pytest.raises(ValueError, match="tools and reasoning do not apply to kind: embeddings"):
        Verify.model_validate({"kind": "embeddings", "tools": True})
