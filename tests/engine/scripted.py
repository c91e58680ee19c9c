"""A real HTTP server on the loopback that answers as it is told and keeps what it was asked."""

import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DROP = "drop"  # close the connection without a word
DRIP = "drip"  # a sign now and then, never an end


@dataclass
class Asked:
    path: str
    headers: dict
    body: dict
    at: float


@dataclass
class Answer:
    status: int = 200
    body: object = field(default_factory=dict)
    headers: dict = field(default_factory=dict)


class ScriptedServer:
    """Gives `answers` one after the other and the last one for ever; a function makes one from a request."""

    def __init__(self, *answers):
        self.answers, self.asked, self.ports = list(answers), [], set()
        self.lock, self.ended = threading.Lock(), threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    outer.asked.append(Asked(self.path, dict(self.headers), body, time.monotonic()))
                    outer.ports.add(self.client_address[1])
                    answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                answer = answer(body) if callable(answer) else answer
                with contextlib.suppress(OSError):  # the client may have gone
                    outer.give(self, answer)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def give(self, handler, answer):
        if answer == DROP:
            handler.close_connection = True
            return
        if answer == DRIP:
            handler.close_connection = True
            handler.send_response(200)
            handler.end_headers()
            while not self.ended.wait(0.05):
                handler.wfile.write(b" ")
            return
        raw = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        handler.send_response(answer.status)
        for name, value in {"Content-Length": str(len(raw)), **answer.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(raw)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def chat_answer(content="Yes.", **fields):
    message = {"role": "assistant", "content": content, **fields.pop("message", {})}
    return Answer(
        body={"choices": [{"message": message, "finish_reason": "stop"} | fields.pop("choice", {})], **fields}
    )


def refusal(status, message="No.", headers=None, **fields):
    return Answer(status, {"error": {"message": message, **fields}}, headers or {})


def embeddings(body):
    """Give each text the vector (its length, 1), the last one first, as a server may."""
    rows = [
        {"object": "embedding", "index": i, "embedding": [len(text), 1]}
        for i, text in enumerate(body["input"])
    ]
    return Answer(body={"data": rows[::-1]})
