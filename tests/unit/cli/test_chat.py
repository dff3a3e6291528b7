"""The chat on a real terminal, with a real ask program and an endpoint that streams."""

from __future__ import annotations

from tests.unit.on_terminal import COMMAND, OnTerminal

# Answers with the roles of the conversation; "slow" starts and takes long, "long" does not fit.
PROGRAM = (
    COMMAND
    + """
import argparse, contextlib, http.server, json, threading, time
from sparkcluster.cli import chat, common
from sparkcluster.endpoint.find import Endpoint
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.local import LocalHost
from sparkcluster.inspect.ask import Conversation
from sparkcluster.spec.playbook import Playbook

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
    inventory=types.SimpleNamespace(cluster="pair", nodes=nodes), inventory_path="pair.yaml",
    playbook=Playbook.model_validate({"name": "tiny", "model": {"path": "/tiny"}}),
)
chat.load_spec = lambda args: spec
common.connect_fleet = lambda *_: Fleet({"here": LocalHost("here")})
args = argparse.Namespace(inventory="pair.yaml", group=None, max_tokens=7, system=sys.argv[1] if len(sys.argv) > 1 else None)
as_command(lambda: chat.chat(args))
"""
)


def say(chatting, text, answer):
    chatting.until(">>> ")
    chatting.type(f"{text}\n")
    chatting.until(answer)


def test_a_conversation_continues_and_ctrl_c_ends_only_the_answer():
    with OnTerminal(PROGRAM, "be brief") as chatting:
        say(chatting, "hello", "[system user]")
        say(chatting, "slow", "[system user assistant user] ")
        chatting.type("\x03")
        say(chatting, "and now", "[system user assistant user assistant user]")
        say(chatting, "/clear", "")
        say(chatting, "\x1b[A\x1b[A", "and now")  # the line before, from the history of the conversation
        chatting.until("[system user]")
        chatting.until(">>> ")
        chatting.type("\x04")
        assert chatting.end() == 0


def test_a_message_that_does_not_fit_the_context_is_an_error_with_a_way_to_continue():
    with OnTerminal(PROGRAM) as chatting:
        say(chatting, "cut", "--max-tokens")
        say(chatting, "long", "the prompt does not fit")
        chatting.until("/clear starts a new conversation")
        say(chatting, "/exit", "")
        assert chatting.end() == 0
