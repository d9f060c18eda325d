"""Makes a trained model the one that comes with wkvm, and pins what it does.

    python examples/train/publish.py OUT

Writes the model and its card into ``src/wkvm/bundled``, the curve beside this file, and
``tests/data/story/pinned.json``, which tests/test_story.py holds every later build to.
"""

import json
import shutil
import sys
from pathlib import Path

import measure
from card import card

import wkvm

ROOT = Path(__file__).resolve().parents[2]
BUNDLED, DATA = ROOT / "src" / "wkvm" / "bundled", ROOT / "tests" / "data" / "story"


def publish(out: Path) -> None:
    """Write everything that the repository holds of the model that the recipe left in ``out``."""
    exported, packed = out / "model.safetensors", out / "model-int8.safetensors"
    shutil.copyfile(packed, BUNDLED / "wkvm-story.safetensors")
    (BUNDLED / "MODEL_CARD.md").write_text(card(out), encoding="utf-8")
    shutil.copyfile(out / "curve.svg", Path(__file__).with_name("curve.svg"))
    text = (DATA / "held_out.txt").read_text(encoding="utf-8")
    models = {"fp32": wkvm.load(exported, dtype="fp32"), "int8": wkvm.load(packed)}
    pinned = {
        "bits_per_byte": {
            dtype: measure.bits_per_byte(model, text.split("<|endoftext|>"))
            for dtype, model in models.items()
        },
        "greedy": [
            {"prompt": prompt, "tokens": measure.greedy(models["int8"], prompt, 64)}
            for prompt in measure.PROMPTS["samples"]
        ],
    }
    (DATA / "pinned.json").write_text(json.dumps(pinned, indent=1) + "\n")


if __name__ == "__main__":
    publish(Path(sys.argv[1]))
