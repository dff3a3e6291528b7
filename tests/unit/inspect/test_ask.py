"""Prompts to the group in a record, and errors if none can be sent or answered."""

from __future__ import annotations

import pytest

from sparkcluster.errors import EmptyAnswer, NotServing, PromptTooLong, UsageError
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.ask import Conversation, cut
from sparkcluster.inspect.cluster import see
from sparkcluster.inspect.status import status
from sparkcluster.spec.playbook import REASONING_TOKENS

DONE = {"done": {"content": "Hi", "usage": None, "finish_reason": "stop", "ttft_s": 0.1, "total_s": 0.2}}


@pytest.fixture
def asked(world):
    """``asked(answer)``: fleet and spec of a cluster that serves release 3 and whose head gives this answer."""

    def make(answer, *, record=True, run=True, **changes):
        site = world(**changes)
        plan = site.plan(3)
        if run:
            site.run(plan)
        if record:
            site.record(plan, 3)
        hosts = {
            name: FakeHost(name).program("probe", facts.model_dump(mode="json")).program("ask", answer)
            for name, facts in site.facts.items()
        }
        return Fleet(hosts), site.spec

    return make


def messages(fleet):
    return [request["messages"] for program, request in fleet.hosts["alpha"].requests if program == "ask"]


def test_a_conversation_sends_all_messages_and_begins_with_the_system_prompt(asked):
    fleet, spec = asked([{"text": "H"}, {"text": "i"}, DONE])
    conversation = Conversation(fleet, spec, group=None, max_tokens=8, system="Be brief.")
    for prompt in ("one", "two"):
        conversation.ask(prompt, lambda *_: None)
    first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]
    second = [*first, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "two"}]
    assert messages(fleet) == [first, second]
    assert [program for program, _ in fleet.hosts["alpha"].requests].count("probe") == 1
    conversation.forget()
    assert conversation.messages == first[:1]


def test_an_answer_interrupted_by_ctrl_c_is_kept(asked):
    fleet, spec = asked([{"reasoning": "hm"}, {"text": "Hel"}, {"text": "lo"}, DONE])
    conversation = Conversation(fleet, spec, group=None, max_tokens=8)

    def interrupt(at):
        def show(_kind, text):
            if text == at:
                raise KeyboardInterrupt

        return show

    for at, kept in (("hm", []), ("lo", ["user one", "assistant Hello"])):
        with pytest.raises(KeyboardInterrupt):
            conversation.ask("one", interrupt(at))
        assert [f"{each['role']} {each['content']}" for each in conversation.messages] == kept


def test_ranks_without_a_recorded_release_are_distinguished_from_a_stopped_cluster(asked):
    with pytest.raises(NotServing, match="is down"):
        Conversation(*asked(DONE, record=False, run=False), group=None, max_tokens=8).ask("hi", lambda *_: None)
    with pytest.raises(NotServing, match="is orphaned: the command that started it ended before") as caught:
        Conversation(*asked(DONE, record=False), group=None, max_tokens=8).ask("hi", lambda *_: None)
    assert caught.value.hint.startswith("sparkcluster up ")


def failing(kind, message):
    return {"error": {"status": 400, "kind": kind, "message": message}}


def test_a_rejected_key_is_an_error_with_the_command_to_type(asked):
    said = "the endpoint rejects the API key that its rank was started with: Unauthorized"
    fleet, spec = asked(failing("unauthorized", said))
    with pytest.raises(NotServing) as caught:
        Conversation(fleet, spec, group=None, max_tokens=8).ask("hi", lambda *_: None)
    assert caught.value.message == said
    assert caught.value.hint.startswith("sparkcluster restart INVENTORY")
    (group,) = status(fleet, see(fleet, spec))["groups"]
    assert group["why"] == f"{said}; sparkcluster restart INVENTORY restarts it with the inventory's key"


def test_without_a_users_limit_an_answer_may_fill_the_context(asked):
    long = failing("too-long", "Input length (600) exceeds model's maximum context length (512).")
    done = {"done": {**DONE["done"], "finish_reason": "length", "usage": {"completion_tokens": 500}}}
    fleet, spec = asked(lambda request: long if request["max_tokens"] else done)
    conversation = Conversation(fleet, spec, group=None, max_tokens=None)
    assert "context of the model" in cut(conversation.ask("hi", lambda *_: None))
    limits = [request["max_tokens"] for program, request in fleet.hosts["alpha"].requests if program == "ask"]
    assert limits == [REASONING_TOKENS, None]
    with pytest.raises(PromptTooLong, match=r"does not fit in the model's context: .* length \(512\)"):
        Conversation(*asked(long), group=None, max_tokens=None).ask("hi", lambda *_: None)


def test_the_request_has_the_fields_that_the_running_playbook_sets_for_clients(asked):
    told = {
        "temperature": 0.3, "top_p": 0.8, "top_k": 40, "max_tokens": 7000, "chat_template_kwargs": {"thinking": True}
    }  # fmt: skip
    fleet, spec = asked(DONE, playbook={"request": {**told, "note": "no tools"}, "verify": {"temperature": 1}})
    Conversation(fleet, spec, group=None, max_tokens=None).ask("hi", lambda *_: None)
    Conversation(fleet, spec, group=None, max_tokens=9).ask("hi", lambda *_: None)
    sent = [request for program, request in fleet.hosts["alpha"].requests if program == "ask"]
    assert [{key: each[key] for key in told} for each in sent] == [told, {**told, "max_tokens": 9}]


@pytest.mark.parametrize(
    ("finish", "hint"),
    [
        ("length", "the answer was cut off at the token limit; --max-tokens N "),
        ("stop", "write in args of the playbook: reasoning-parser: "),
    ],
)
def test_reasoning_without_content_is_not_an_answer(asked, finish, hint):
    end = {**DONE["done"], "content": "", "reasoning": "They say hi.", "finish_reason": finish}
    fleet, spec = asked([{"reasoning": "They say hi."}, {"done": end}])
    shown = []
    with pytest.raises(EmptyAnswer, match="the answer is empty: ") as caught:
        Conversation(fleet, spec, group=None, max_tokens=30).ask("hi", lambda _, text: shown.append(text))
    assert caught.value.hint.startswith(hint)
    assert "".join(shown) == "They say hi.\n", "the error is on a separate line"
    assert status(fleet, see(fleet, spec))["state"] == "serving", "a token of any kind is a sign of life"


def test_an_embedding_model_gets_no_question(asked):
    fleet, spec = asked(DONE, playbook={"args": {"runner": "pooling"}})
    with pytest.raises(UsageError, match="serves a model for embeddings, which generates no text") as caught:
        Conversation(fleet, spec, group=None, max_tokens=8).ask("hi", lambda *_: None)
    assert caught.value.hint.endswith("/v1/embeddings")
    assert messages(fleet) == []
