"""The OpenAI and Anthropic client libraries from PyPI, with a gateway in front of the real engine."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.lab.gateway import running
from tests.lab.test_several_models import REAL_POOLING, SMOLLM2, write_smollm2

pytestmark = [pytest.mark.engine, pytest.mark.full]

KEY = {"THE_KEY": "kEy-of-clients"}
# The engine's image brings both clients.
CLIENTS = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import anthropic, openai

url, key = sys.argv[1:]
client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
asked = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 12}

more = {"temperature": 0, "extra_body": {"ignore_eos": True}}

def streamed(model):
    stream = client.chat.completions.create(model=model, stream=True, **asked, **more)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

def chat(model):
    text = streamed(model)
    answer = client.chat.completions.create(model=model, **asked, **more)
    return text, answer.choices[0].message.content, answer.model

found = {"models": sorted(model.id for model in client.models.list())}
found["second"], found["chat"] = chat("second"), chat("chat")
with ThreadPoolExecutor(64) as pool:
    found["streams"] = list(pool.map(streamed, ["second"] * 64))
vectors = client.embeddings.create(model="embed", input=["Name a colour.", "Seven."]).data
found["embed"] = [len(vector.embedding) for vector in vectors]
with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0).messages.stream(model="chat", **asked) as stream:
    found["anthropic"] = stream.get_final_text()
try:
    client.chat.completions.create(model="nobody", **asked)
except openai.NotFoundError as error:
    found["refused"] = error.body["message"]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    lab = make_lab(2, engine="vllm")
    write_smollm2(lab)
    return lab


@pytest.fixture
def inventory(lab, variant):
    first, second = (spark.name for spark in lab.sparks)
    # Threads that wait for each other in a loop use both cores and starve the other engines.
    every = {"verify": {"pause_s": 0}, "env": {"OMP_NUM_THREADS": "1"}}
    models = [
        {"name": "chat", "nodes": [first], "playbook": {**every, "model": {"path": SMOLLM2}, "served_name": "chat"}},
        {
            "name": "embed",
            "nodes": [first],
            "playbook": {**every, "model": {"path": SMOLLM2}, "served_name": "embed", "args": REAL_POOLING},
        },
        {"name": "second", "nodes": [second], "playbook": {**every, "served_name": "second"}, "on_demand": {}},
    ]
    return variant(lab, models=models, gateway={}, api={"key": {"env": "THE_KEY"}})


def test_chat_embeddings_and_a_second_chat_model_answer_the_clients_of_openai_and_anthropic(lab, cli, inventory):
    first, second = lab.sparks
    cli("up", inventory, env=KEY, timeout=1500).ok()
    assert "second" not in running(lab, second)
    image = yaml.safe_load(lab.playbook.read_text())["image"]
    argv = ["docker", "run", "--rm", "--network", "host", "--entrypoint", "python3", image, "-c", CLIENTS]
    out = first.run([*argv, f"http://{first.host}:8000", KEY["THE_KEY"]], timeout_s=600).stdout
    found = json.loads(out.splitlines()[-1])
    assert {"chat", "embed", "second", "auto"} <= set(found["models"])
    for name in ("chat", "second"):
        streamed, text, model = found[name]
        assert (model, text) == (name, streamed)
        assert text
    # 64 concurrent streams, each complete
    assert found["streams"] == [found["second"][0]] * 64
    assert found["embed"][0] == found["embed"][1] > 0
    assert found["anthropic"].strip()
    assert "missing or unknown model" in found["refused"]
    assert "second" in running(lab, second)
    cli("down", inventory, env=KEY).ok()
