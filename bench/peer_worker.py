"""llama.cpp behind a pipe: one JSON request a line in, one JSON answer a line out.

Runs in the peer's environment; peer.py starts it and speaks with it. Requests:

    {"do": "load", "path": GGUF}                          -> {"system": features of the build}
    {"do": "logits", "tokens": [...], "threads": n}       -> {"logits": base64 of float32 [V]}
    {"do": "prefill", "tokens": [...], "threads": n}      -> {"seconds": s}
    {"do": "decode", "tokens": [...], "threads": n}       -> {"seconds": s}

Every request after load starts from an empty state. Logits are computed for the last token only.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp

MAX_TOKENS = 512  # n_batch = n_ubatch: a prompt of this length is one batch


@llama_cpp.llama_log_callback
def silent(_level: int, _text: bytes, _data: object) -> None:
    """llama.cpp logs whole pages; the pipe carries answers only."""


class Worker:
    def __init__(self, path: str) -> None:
        model_options = llama_cpp.llama_model_default_params()
        model_options.n_gpu_layers = 0
        model = llama_cpp.llama_model_load_from_file(path.encode(), model_options)
        if not model:
            sys.exit(f"llama.cpp cannot load {path}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = 2 * MAX_TOKENS
        options.n_batch = options.n_ubatch = MAX_TOKENS
        options.n_seq_max = 1
        options.no_perf = True
        self.context = llama_cpp.llama_init_from_model(model, options)
        if not self.context:
            sys.exit(f"llama.cpp cannot make a context for {path}")
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def start(self, threads: int) -> None:
        llama_cpp.llama_set_n_threads(self.context, threads, threads)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def run(self, tokens: Sequence[int]) -> Any:
        """One batch; the last token's logits, a pointer to float32 [V]."""
        buffer = (llama_cpp.llama_token * len(tokens))(*tokens)
        batch = llama_cpp.llama_batch_get_one(buffer, len(tokens))
        status = llama_cpp.llama_decode(self.context, batch)
        if status != 0:
            sys.exit(f"llama_decode failed with status {status}")
        return llama_cpp.llama_get_logits_ith(self.context, -1)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        tokens = request["tokens"]
        self.start(request["threads"])
        match request["do"]:
            case "logits":
                raw = ctypes.string_at(self.run(tokens), 4 * self.n_vocab)
                return {"logits": base64.b64encode(raw).decode()}
            case "prefill":
                start = time.perf_counter()
                self.run(tokens)
                return {"seconds": time.perf_counter() - start}
            case "decode":
                start = time.perf_counter()
                for token in tokens:
                    self.run([token])
                return {"seconds": time.perf_counter() - start}
        sys.exit(f"unknown request {request['do']!r}")


def main() -> None:
    # Answers go out on a private copy of stdout: a library may print on the real one.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    worker: Worker | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if worker is None:
            worker = Worker(request["path"])
            answer = {
                "system": llama_cpp.llama_print_system_info().decode(),
                "version": llama_cpp.__version__,
            }
        else:
            answer = worker.answer(request)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
