import http.server
import json
import os
import sys

WORDS = ["12 * 17 ", "is ", "204."]
flags = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
served = {"tokens": 0}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/metrics":
            self.answer(b"canned_tokens %d\ncanned_running 0\ncanned_waiting 0\n" % served["tokens"])
        else:
            self.answer(json.dumps({"data": [{"id": flags["--as"]}]}).encode())

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = os.environ.get("CANNED_KEY")
        if key and self.headers.get("Authorization") != "Bearer " + key:
            self.answer(b'{"error": {"message": "no key"}}', 401)
            return
        if request["model"] != flags["--as"]:
            self.answer(b'{"error": {"message": "no such model"}}', 404)
            return
        served["tokens"] += len(WORDS)
        chunks = [{"choices": [{"delta": {"content": word}}]} for word in WORDS]
        chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": len(WORDS)}})
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        self.answer("".join([*lines, "data: [DONE]\n\n"]).encode())

    def answer(self, body, status=200):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)


print("canned is ready")
http.server.ThreadingHTTPServer((flags["--listen"], int(flags["--at"])), Handler).serve_forever()
