"""Measures a model by running it in wkvm: texts, questions, samples, the time to a first token."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import wkvm
from wkvm.bundled import SAMPLING
from wkvm.text.chat import NEXT_TURN

_PART = 2048  # tokens of a document that are measured from one empty state

PROMPTS = json.loads(Path(__file__).with_name("prompts.json").read_text(encoding="utf-8"))


def nats(model: wkvm.Model, text: str) -> tuple[float, int]:
    """The loss of a document and its end, and how many tokens that is.

    It is cut into parts of 2,048 tokens, each from an empty state. Before the first one goes token
    0, as between two documents of the training, before the others the last token of the one before.
    """
    tokens = [0, *model.tokenizer.encode(text), 0]
    total = 0.0
    for start in range(0, len(tokens) - 1, _PART):
        part = tokens[start : start + _PART + 1]
        session = model.session()
        logits = session.forward(part[:-1], "all").astype(np.float64)
        session.close()
        highest = logits.max(1, keepdims=True)
        sums = np.log(np.exp(logits - highest).sum(1)) + highest[:, 0]
        total += float((sums - logits[np.arange(len(part) - 1), part[1:]]).sum())
    return total, len(tokens) - 1


def bits_per_byte(model: wkvm.Model, texts: list[str]) -> float:
    """The loss of all documents, their ends included, per byte of their texts."""
    texts = [text.strip() for text in texts]
    loss = sum(nats(model, text)[0] for text in texts)
    return loss / math.log(2) / sum(len(text.encode()) for text in texts)


def greedy(model: wkvm.Model, prompt: str, n: int) -> list[int]:
    """The ``n`` tokens that are likeliest one after the other; 0 does not end them."""
    session = model.session()
    tokens = []
    logits = session.forward(model.tokenizer.encode(prompt))
    for _ in range(n):
        tokens.append(int(logits.argmax()))
        logits = session.forward(tokens[-1:])
    session.close()
    return tokens


def held_out(model: wkvm.Model, entries: dict[str, Any]) -> dict[str, Any]:
    """Bits per byte of every source and of their mixture, and the perplexity of a token."""
    bits_of, total, n_tokens = {}, 0.0, 0
    for source, entry in entries.items():
        losses = [nats(model, text) for text in entry["texts"]]
        loss = sum(value for value, _ in losses)
        bits_of[source] = loss / math.log(2) / sum(len(t.encode()) for t in entry["texts"])
        total, n_tokens = total + loss, n_tokens + sum(n for _, n in losses)
    weights = {source: entry["weight"] for source, entry in entries.items()}
    mean = sum(bits_of[s] * weights[s] for s in bits_of) / sum(weights.values())
    return {"bits_per_byte": mean, "sources": bits_of, "perplexity": math.exp(total / n_tokens)}


def answers(model: wkvm.Model, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The greedy answer to every question, and whether it has one of the words."""
    found = []
    for entry in questions:
        session = model.session()
        session.feed(f"User: {entry['question']}\n\nAssistant:")
        pieces = session.generate(max_tokens=40, temperature=0.0, stop=["\n\n"])
        answer = "".join(pieces).strip()
        session.close()
        words = re.findall(r"\w+", answer.lower())
        is_right = any(word in words for word in entry["words"])
        found.append({"question": entry["question"], "answer": answer, "right": is_right})
    return found


def samples(model: wkvm.Model, prompts: list[str]) -> list[dict[str, Any]]:
    """A continuation of every prompt, by the bundled model's sampling, seeds 0, 1, ..."""
    found = []
    for seed, prompt in enumerate(prompts):
        session = model.session()
        session.feed(prompt)
        pieces = session.generate(max_tokens=250, stop=[NEXT_TURN], seed=seed, **SAMPLING)
        found.append({"prompt": prompt, "seed": seed, "text": "".join(pieces)})
        session.close()
    return found


_FIRST_TOKEN = """
import sys, time
start = time.perf_counter()
import numpy
numpy_done = time.perf_counter()
import wkvm
wkvm.load, wkvm.Session
imported = time.perf_counter()
session = wkvm.load(sys.argv[1]).session()
session.feed("Once upon a time")
next(iter(session.generate(max_tokens=1)))
print(numpy_done - start, imported - numpy_done, time.perf_counter() - imported)
"""


def first_token_seconds(path: Path) -> tuple[float, float, float]:
    """In a new process: importing NumPy, importing wkvm, and from there to a first token.

    Of nine processes the one that took least in all.
    """
    times = []
    for _ in range(9):
        command = [sys.executable, "-c", _FIRST_TOKEN, str(path)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        numpy, imports, token = map(float, run.stdout.split())
        times.append((numpy, imports, token))
    return min(times, key=sum)
