"""The peer, llama.cpp: builds it in its own environment, and drives it turn by turn.

    python bench/peer.py            # builds the environment, 3 to 10 minutes; prints its Python

$WKVM_BENCH_PEER names an environment that exists already.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from checkpoints import default_folder
from numpy.typing import NDArray

HERE = Path(__file__).parent
PACKAGES = ["llama-cpp-python==0.3.36", "gguf==0.19.0", "numpy"]


def default_environment() -> Path:
    return Path(os.environ.get("WKVM_BENCH_PEER") or default_folder() / "peer")


def build(environment: Path) -> None:
    """Compile llama.cpp for this very CPU, from the source package."""
    if environment.exists():
        sys.exit(f"{environment} exists already; remove it to build the peer anew")
    venv.create(environment, with_pip=True)
    subprocess.run(
        [
            environment / "bin/python", "-m", "pip", "install",
            "--no-binary", "llama-cpp-python", *PACKAGES,
        ],
        check=True,
        env=os.environ | {"CMAKE_ARGS": "-DGGML_NATIVE=ON"},
    )  # fmt: skip


def python_of(environment: Path) -> Path:
    python = environment / "bin/python"
    if not python.exists():
        sys.exit(
            f"no peer in {environment}: run `python bench/peer.py`, "
            "or name another environment in WKVM_BENCH_PEER"
        )
    return python


def gguf_file(environment: Path, folder: Path, shape: str, file_type: str) -> Path:
    """The GGUF file of a shape and type (F16, BF16, Q8_0), written by the peer if need be."""
    command: list[str | Path] = [
        python_of(environment), HERE / "write_gguf.py", shape, file_type, "--dir", folder,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"could not write the {file_type} file:\n{done.stderr}")
    return Path(done.stdout.splitlines()[-1])


class Peer:
    """llama.cpp with one loaded model, in a process of its own that computes only when asked."""

    def __init__(self, environment: Path, path: Path) -> None:
        self._process = subprocess.Popen(
            [python_of(environment), HERE / "peer_worker.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self._ask(do="load", path=str(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()  # closes its input: it ends

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit("the peer died; its last words are above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def logits(self, tokens: Sequence[int], threads: int = 1) -> NDArray[np.float32]:
        """float32 [V] after the last of `tokens`, from an empty state."""
        answer = self._ask(do="logits", tokens=list(tokens), threads=threads)
        return np.frombuffer(base64.b64decode(answer["logits"]), np.float32)

    def prefill(self, tokens: Sequence[int], threads: int) -> float:
        """Seconds for one batch of all tokens."""
        return float(self._ask(do="prefill", tokens=list(tokens), threads=threads)["seconds"])

    def decode(self, tokens: Sequence[int], threads: int) -> float:
        """Seconds for the tokens one by one, logits after each."""
        return float(self._ask(do="decode", tokens=list(tokens), threads=threads)["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the peer in its own environment.")
    parser.add_argument("--peer", type=Path, default=default_environment())
    args = parser.parse_args()
    build(args.peer)
    print(python_of(args.peer))


if __name__ == "__main__":
    main()
