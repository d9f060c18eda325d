"""The small model that comes with wkvm, so that all of it can be tried with nothing downloaded."""

from pathlib import Path

from wkvm.errors import FileError

#: Sampling options that suit it, in place of the defaults. So small a model strays where a large
#: one is merely lively, and its short sentences need their full stops and names again.
SAMPLING = {"temperature": 0.4, "presence_penalty": 0.0, "frequency_penalty": 0.0}

_PATH = Path(__file__).with_name("wkvm-story.safetensors")


def bundled_model_path() -> Path:
    """The file of the bundled model; ``MODEL_CARD.md`` beside it says what it is and can do.

    Raises:
        FileError: the installation lacks the file.
    """
    if not _PATH.is_file():
        raise FileError(
            f"the bundled model is missing from this installation ({_PATH}): reinstall wkvm, or "
            "name a checkpoint"
        )
    return _PATH
