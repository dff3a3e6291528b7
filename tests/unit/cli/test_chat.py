"""The chat on a real terminal, with a real ask program and an endpoint that streams."""

from __future__ import annotations

import pytest

from tests.unit.on_terminal import COMMAND, OnTerminal

# Answers with the roles of the conversation; "slow" begins and goes on for long, "long" does not fit.
PROGRAM = (
    COMMAND
    + """
import argparse, contextlib, http.server, json, threading, time
from sparkcluster.cli import chat
from sparkcluster.endpoint.find import Endpoint
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.local import LocalHost
from sparkcluster.inspect.ask import Conversation

class Api(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = body["messages"][-1]["content"]
        self.send_response(400 if said == "long" else 200)
        self.end_headers()
        if said == "long":
            message = "This model's maximum context length is 100 tokens. However, you requested more."
            self.wfile.write(json.dumps({"error": {"message": message}}).encode())
            return
        roles = " ".join(message["role"] for message in body["messages"])
        with contextlib.suppress(OSError):
            for _ in range(600 if said == "slow" else 1):
                choice = {"delta": {"content": f"[{roles}] "}, "finish_reason": "length" if said == "cut" else "stop"}
                self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\\n\\n")
                time.sleep(0.1 if said == "slow" else 0)
            self.wfile.write(b"data: [DONE]\\n\\n")
    def log_message(self, *args): ...

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"
Conversation.find = lambda self: Endpoint("default", "here", url, "tiny", None)
nodes = [None]
spec = types.SimpleNamespace(
    inventory=types.SimpleNamespace(cluster="pair", nodes=nodes), inventory_path="pair.yaml"
)
chat.load_spec = lambda args: spec
chat.connect_fleet = lambda inventory: Fleet({"here": LocalHost("here")})
args = argparse.Namespace(inventory="pair.yaml", group=None, max_tokens=7, system=sys.argv[1] if len(sys.argv) > 1 else None)
as_command(lambda: chat.chat(args))
"""
)


@pytest.fixture
def chatting():
    with OnTerminal(PROGRAM) as terminal:
        terminal.until("tiny on pair")
        terminal.until(">>> ")
        yield terminal


def test_a_conversation_goes_on_and_ctrl_c_ends_the_answer_alone(chatting):
    chatting.type("hello\n")
    chatting.until("[user]")
    chatting.until(">>> ")
    chatting.type("slow\n")
    chatting.until("[user assistant user] ")
    chatting.type("\x03")
    chatting.until(">>> ")
    chatting.type("and now\n")
    chatting.until("[user assistant user assistant user]")
    chatting.until(">>> ")
    chatting.type("/clear\n")
    chatting.until(">>> ")
    chatting.type("\x1b[A\x1b[A\n")  # the line before, from the history of the conversation
    chatting.until("and now")
    chatting.until("[user]")
    chatting.until(">>> ")
    chatting.type("\x04")
    assert chatting.end() == 0


def test_ctrl_c_at_the_prompt_drops_the_line_alone(chatting):
    chatting.type("half a li")
    chatting.until("half a li")
    for _ in range(10):  # readline misses a signal between two keys (CPython looks for one only while it waits)
        chatting.type("\x03")
        if ">>> " in chatting.during(1):
            break
    chatting.type("/help\n")
    chatting.until("exit, quit, bye or Ctrl-D ends the chat")
    chatting.type("exit\n")
    assert chatting.end() == 0


def test_what_does_not_fit_is_said_with_a_way_on(chatting):
    chatting.type("long\n")
    chatting.until("the prompt and 7 tokens of answer do not fit in the model's context")
    chatting.until("hint:")
    chatting.until(">>> ")
    chatting.type("cut\n")
    chatting.until("the answer ended at the limit of 7 tokens; --max-tokens N allows more")
    chatting.until(">>> ")
    chatting.type("long\n")
    chatting.until("the conversation and 7 tokens of answer do not fit")
    chatting.until("/clear begins a new conversation")
    chatting.until(">>> ")
    chatting.type("/exit\n")
    assert chatting.end() == 0


def test_the_system_prompt_stays_when_the_conversation_begins_anew():
    with OnTerminal(PROGRAM, "be brief") as terminal:
        terminal.until(">>> ")
        for _ in range(2):
            terminal.type("hello\n")
            terminal.until("[system user]")
            terminal.until(">>> ")
            terminal.type("/clear\n")
            terminal.until(">>> ")
