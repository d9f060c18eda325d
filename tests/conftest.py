"""Where the golden files are, and fixtures that every test may use."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"


def fixtures_path() -> Path | None:
    """The folder of golden files: $WKVM_FIXTURES, or ../shared/fixtures beside the checkout."""
    folder = Path(os.environ.get("WKVM_FIXTURES", ROOT.parent / "shared" / "fixtures"))
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Digests of the tests' files stay out of the user's cache; subprocesses inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_works() -> Iterator[None]:
    """A job in a script's background is born with SIGINT ignored, and its children with it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The folder of golden files; a test that needs it and does not find it says so."""
    folder = fixtures_path()
    if folder is None:
        pytest.skip("golden files not found: set WKVM_FIXTURES to their folder")
    return folder


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for checkpoints that lie compressed."""
    return tmp_path_factory.mktemp("unpacked")


@pytest.fixture(scope="session")
def checkpoint(unpacked: Path) -> Callable[[str], Path]:
    """Gives the path of a golden model's checkpoint, by its name."""
    import goldens

    return lambda name: goldens.model_path(name, unpacked)
