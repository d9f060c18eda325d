"""Writes the model card: the text of ``card.md``, and what was measured in its places.

python examples/train/card.py OUT MODEL_CARD.md
"""

import json
from pathlib import Path
from typing import Any


def card(out: Path, wheel_bytes: int) -> str:
    """``card.md`` with ``{name}`` filled from ``out/evaluation.json`` and ``out/log.jsonl``.

    Raises:
        KeyError: the template has a place that nothing fills.
    """
    template = Path(__file__).with_name("card.md").read_text(encoding="utf-8")
    found = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return template.format_map(places(found, log, wheel_bytes))


def places(found: dict[str, Any], log: list[dict[str, float]], wheel_bytes: int) -> dict[str, str]:
    """The text for every place of the template."""
    last, info = log[-1], found["info"]
    numpy, imports, token = found["first_token_seconds"]
    held = found["held_out"]
    dtypes = list(held)
    measures = [
        ["", *dtypes],
        ["bits per byte"] + [f"{held[d]['bits_per_byte']:.4f}" for d in dtypes],
    ]
    measures.append(["perplexity of a token"] + [f"{held[d]['perplexity']:.3f}" for d in dtypes])
    sources = [["held-out text", "bits per byte, int8"]]
    sources += [[name, f"{bits:.3f}"] for name, bits in held["int8"]["sources"].items()]
    zeros = [["squared ReLU of", "zeros"]]
    zeros += [[name, f"{share:.1%}"] for name, share in found["zeros"].items()]
    answers = [["question", "answer", ""]]
    answers += [
        [a["question"], a["answer"], "right" if a["right"] else "wrong"] for a in found["answers"]
    ]
    return {
        "digest": found["digest"],
        "n_params": f"{info['n_params']:,}",
        "n_entries": f"{found['n_entries']:,}",
        "blocks": info["block_order"],
        "width": str(info["n_embd"]),
        "heads": str(info["n_embd"] // info["head_size"]),
        "wheel": f"{wheel_bytes / 1e6:.1f} MB",
        "int8_bytes": f"{found['bytes']['int8']:,}",
        "fp16_bytes": f"{found['bytes']['fp16']:,}",
        "measures": table(measures),
        "int8_cost": f"{held['int8']['perplexity'] / held['fp32']['perplexity'] - 1:+.2%}",
        "sources": table(sources),
        "held_out_bytes": f"{found['held_out_bytes']:,}",
        "zeros": table(zeros),
        "answers": table(answers),
        "n_right": str(sum(a["right"] for a in found["answers"])),
        "samples": "\n\n".join(sample(s) for s in found["samples"]),
        "steps": f"{last['step']:,}",
        "tokens": f"{last['tokens'] / 1e6:.1f} million",
        "hours": f"{last['minutes'] / 60:.2f}",
        "train_loss": f"{last['train']:.3f}",
        "best_step": f"{found['best']['step']:,}",
        "training_bits": f"{found['best']['bits_per_byte']:.4f}",
        "first_token": f"{(numpy + imports + token) * 1e3:.0f} ms",
        "numpy": f"{numpy * 1e3:.0f} ms",
        "imports": f"{imports * 1e3:.0f} ms",
        "token": f"{token * 1e3:.0f} ms",
        "machine": f"{found['threads']} threads, {found['isa']}",
        "official": official(found.get("official")),
    }


def official(rows: list[dict[str, Any]] | None) -> str:
    """What the comparison with the official package gave."""
    if rows is None:
        return "Not compared: the package rwkv-x was not installed."
    agree = sum(row["agrees"] for row in rows)
    equal = sum(row["n_equal"] for row in rows)
    n = sum(row["n"] for row in rows)
    text = f"Of {len(rows)} prompts, {agree} agree: {equal} of {n} greedy tokens are equal."
    for row in rows:
        if row["gaps"] is not None:
            first, second = row["gaps"]
            text += (
                f" {row['prompt']!r} differs after {row['n_equal']} tokens, where the two best "
                f"logits are {first:.1e} (official) and {second:.1e} (wkvm) apart."
            )
    return text


def table(rows: list[list[str]]) -> str:
    """A Markdown table; the first row is its head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "| " + " | ".join("---" for _ in rows[0]) + " |", *lines[1:]])


def sample(found: dict[str, Any]) -> str:
    """One sample as a quotation: the prompt in bold, then what came."""
    lines = found["prompt"].strip().split("\n")
    bold = "\n".join(f"**{line}**" if line else "" for line in lines)
    text = f"{bold}{found['text'].rstrip()}"
    quoted = "\n".join(f"> {line}".rstrip() for line in text.split("\n"))
    return f"Seed {found['seed']}:\n\n{quoted}"
