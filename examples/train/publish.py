"""Makes a trained model the one that comes with wkvm, and pins what it does.

    python examples/train/publish.py OUT

Writes the model and its card into ``src/wkvm/bundled``, the curve beside this file, and into
``tests/data/story`` two texts that were held out and what tests/test_story.py holds every later
build to. The folder must come from the corpus of ``mixture.toml``.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import measure
from card import card

import wkvm

ROOT = Path(__file__).resolve().parents[2]
#: Sources whose texts are in the public domain, so that this repository can hold some of them.
FREE = ("standardebooks_children", "gutenberg_children_easy")
#: Tokens of a pinned continuation: five blocks of attention, of which a query sees three.
N_PINNED = 300
BUNDLED, DATA = ROOT / "src" / "wkvm" / "bundled", ROOT / "tests" / "data" / "story"


def publish(out: Path) -> None:
    """Write everything that the repository holds of the model that the recipe left in ``out``."""
    exported, packed = out / "model.safetensors", out / "model-int8.safetensors"
    shutil.copyfile(packed, BUNDLED / "wkvm-story.safetensors")
    (BUNDLED / "MODEL_CARD.md").write_text(card(out, wheel_bytes()), encoding="utf-8")
    shutil.copyfile(out / "curve.svg", Path(__file__).with_name("curve.svg"))
    entries = json.loads((out / "held_out.json").read_text(encoding="utf-8"))
    texts = [excerpt(entries[source]["texts"][-1]) for source in FREE]
    (DATA / "held_out.txt").write_text("\n<|endoftext|>\n".join(texts) + "\n", encoding="utf-8")
    models = {"fp32": wkvm.load(exported, dtype="fp32"), "int8": wkvm.load(packed)}
    pinned = {
        "bits_per_byte": {
            dtype: measure.bits_per_byte(model, texts) for dtype, model in models.items()
        },
        "greedy": [
            {"prompt": prompt, "tokens": measure.greedy(models["int8"], prompt, N_PINNED)}
            for prompt in measure.PROMPTS["samples"]
        ],
    }
    (DATA / "pinned.json").write_text(json.dumps(pinned) + "\n")


def excerpt(book: str) -> str:
    """The paragraphs of a book's first 20,000 characters."""
    return book[: book.rindex("\n\n", 0, 20_000)]


def wheel_bytes() -> int:
    """The size of wkvm's wheel, built anew."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        return wheel.stat().st_size


if __name__ == "__main__":
    publish(Path(sys.argv[1]))
