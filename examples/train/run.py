"""The recipe in one command: texts in, a model that wkvm runs out.

    python examples/train/run.py FOLDER OUT

It goes on where it was interrupted: what lies in OUT is not made again, but measured again.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import curve
import evaluate
import typer
from export import export
from measure import PROMPTS
from model import Shape
from official import compare
from prepare import prepare, read_mixture
from train import Plan, train

from wkvm.formats.convert import convert_checkpoint


def main(
    folder: Annotated[Path, typer.Argument(help="Texts, *.txt, divided by <|endoftext|>.")],
    out: Annotated[Path, typer.Argument(help="Where everything is written.")],
    *,
    mixture: Annotated[
        Path | None, typer.Option(help="Weights of the texts; else all of them alike.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training, in all.")] = 2600,
    decay_steps: Annotated[
        int, typer.Option(min=1, help="The last of them, in which the learning rate falls.")
    ] = 1100,
    batch: Annotated[int, typer.Option(min=1, help="Rows of a step.")] = 12,
    context: Annotated[int, typer.Option(min=64, help="Tokens of a row, 64 times N.")] = 512,
    n_vocab: Annotated[int, typer.Option(min=384, help="Rows of the head, 128 times N.")] = 3072,
    n_embd: Annotated[int, typer.Option(min=64, help="Width, 64 times N.")] = 256,
    n_rwkv: Annotated[int, typer.Option(min=1, help="RWKV-7 blocks.")] = 4,
    n_attn: Annotated[int, typer.Option(min=1, help="Attention blocks; divides n-rwkv.")] = 2,
    compile_model: Annotated[
        bool, typer.Option("--compile/--eager", help="Compile first: minutes, for a quarter.")
    ] = True,
    with_official: Annotated[
        bool, typer.Option("--official", help="Compare with the package rwkv-x.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the weights and of the rows.")] = 1,
) -> None:
    """Prepare, train, export, evaluate."""
    if context % 64:
        raise typer.BadParameter("must be a multiple of 64", param_hint="--context")
    if n_embd % 64 or n_rwkv % n_attn or n_vocab % 128:
        raise typer.BadParameter("a width, a number of blocks or a vocabulary does not divide")
    shape = Shape(n_vocab, n_embd, n_rwkv, n_attn, n_ffn=4 * n_embd)
    plan = Plan(steps, decay_steps, batch, context, compile=compile_model)
    if decay_steps > steps:
        raise typer.BadParameter(f"more than the {steps} steps", param_hint="--decay-steps")
    out.mkdir(parents=True, exist_ok=True)
    weights = read_mixture(mixture, folder)
    settings = {
        "folder": str(folder.resolve()),
        "mixture": {source: list(drawn) for source, drawn in weights.items()},
        "shape": {**asdict(shape), "lora": list(shape.lora)},
        "batch": batch,
        "context": context,
        "seed": seed,
    }
    check_settings(out / "settings.json", settings)
    if not (out / "tokens.npz").exists():
        try:
            prepare(folder, out, weights, n_vocab)
        except (OSError, ValueError) as error:
            raise typer.BadParameter(str(error), param_hint="FOLDER") from error
    train(out, shape, plan, weights, seed)
    curve.draw(out)
    exported, packed = out / "model.safetensors", out / "model-int8.safetensors"
    export(out / "best.pt", out / "vocab.txt", exported)
    convert_checkpoint(exported, packed, dtype="int8", overwrite=True)
    found = evaluate.evaluate(out, exported, packed)
    if with_official:
        rows = compare(exported, PROMPTS["samples"], 200)
        found["official"] = [{**row._asdict(), "agrees": row.agrees} for row in rows]
    (out / "evaluation.json").write_text(json.dumps(found, indent=1))
    for dtype, held in found["held_out"].items():
        print(f"{dtype}: {held['bits_per_byte']:.4f} bits per byte held out")
    print(f"wkvm generate --model {packed}")


def check_settings(path: Path, settings: dict[str, Any]) -> None:
    """Refuse to go on in a folder that was begun with other settings."""
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [key for key, value in settings.items() if before.get(key) != value]
        if changed:
            raise typer.BadParameter(
                f"{path.parent} was begun with another {', '.join(changed)}: name another folder",
                param_hint="OUT",
            )
    path.write_text(json.dumps(settings, indent=1), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
