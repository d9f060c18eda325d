"""`wkvm pull`: what is asked of the hub, what enters the cache, and what is refused."""

import hashlib
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import huggingface_hub
import pytest
from stand_in_hub import COMMIT, StandInHub

from wkvm import hub
from wkvm.errors import FileError, FormatError, InvalidArgumentError

REPO = "someone/rwkv7-tiny"
WEIGHTS = random.Random(1).randbytes(3_000_000)  # some chunks
CONFIG = b'{"model_type": "rwkv7"}\n'


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A hub with one repository of one checkpoint; this process and its children use it."""
    stand_in = StandInHub()
    stand_in.repositories[REPO] = {"README.md": b"# tiny", "tiny.pth": WEIGHTS}
    constants = huggingface_hub.constants
    template = "{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", stand_in.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{stand_in.url}/{template}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "_PAUSE", 0)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", stand_in.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    huggingface_hub.get_session()  # before threads ask for it: early versions then make several
    yield stand_in
    huggingface_hub.close_session()
    stand_in.close()


@pytest.fixture
def folder(tmp_path) -> Path:
    """Of the repository in the cache."""
    return tmp_path / "hf" / "hub" / "models--someone--rwkv7-tiny"


def fetch(file: str = "tiny.pth", revision: str = "main", name: str = REPO) -> Path:
    return hub.open_repository(name, revision).fetch(file, lambda *_: None)


def files_of(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "wkvm", *arguments],
        capture_output=True,
        env=os.environ | environment,
        timeout=120,
        check=False,
    )


# ---- the command


def test_the_printed_path_is_a_model_that_generates(server, checkpoint):
    file = checkpoint("r7-s128")
    server.repositories[REPO] = {file.name: file.read_bytes()}
    pulled = run("pull", REPO)
    assert (pulled.returncode, pulled.stderr) == (0, b"")
    path = pulled.stdout.decode().removesuffix("\n")
    facts = run("info", "--json", path)
    assert json.loads(facts.stdout)["family"] == "rwkv7"
    generated = run("generate", "--model", path, "--vocab", "bytes", "Once", "--max-tokens", "3")
    assert (generated.returncode, generated.stderr) == (0, b"")


def test_of_several_checkpoints_it_lists_the_sizes_and_says_how_to_name_one(server):
    server.repositories[REPO] = {"b.pth": WEIGHTS, "a.pth": b"x" * 1500, "README.md": b""}
    finished = run("pull", REPO)
    assert (finished.returncode, finished.stdout) == (1, b"")
    assert finished.stderr.decode().splitlines() == [
        "    1.5 kB  a.pth",
        "    3.0 MB  b.pth",
        f"error: {REPO} holds 2 checkpoints: name one, as in wkvm pull {REPO}:a.pth",
    ]
    assert run("pull", f"{REPO}:b.pth").returncode == 0


def test_a_terminal_sees_progress(server):
    terminal, theirs = pty.openpty()
    finished = subprocess.run(
        [sys.executable, "-m", "wkvm", "pull", REPO],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
        timeout=120,
        check=True,
    )
    os.close(theirs)
    seen = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert finished.stdout.endswith(b"/tiny.pth\n")
    assert "checking tiny.pth" in seen
    assert "3.0/3.0 MB" in seen


def test_without_the_library_the_error_says_how_to_install_it(tmp_path):
    (tmp_path / "huggingface_hub.py").write_text("raise ModuleNotFoundError('No such module')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    finished = run("pull", REPO, PYTHONPATH=path)
    assert finished.returncode == 1
    assert b"pip install 'wkvm[hub]'" in finished.stderr
    assert run("pull", "--help", PYTHONPATH=path).returncode == 0


def test_an_interrupted_pull_goes_on_where_it_was(server, folder):
    server.stall_after = 1 << 20
    process = subprocess.Popen(
        [sys.executable, "-m", "wkvm", "pull", REPO],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert server.stalled.wait(60)
    partial = folder / "blobs" / f"{sha256(WEIGHTS)}.wkvm.incomplete"
    while not (partial.exists() and partial.stat().st_size == 1 << 20):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert b"what has arrived is kept: pull again to go on" in err
    server.stall_after = None
    assert fetch().read_bytes() == WEIGHTS
    assert server.bodies(WEIGHTS) == [None, f"bytes={1 << 20}-"]


# ---- the cache


def test_files_enter_the_cache_as_the_library_finds_them(server, folder):
    path = fetch()
    assert path == folder / "snapshots" / COMMIT / "tiny.pth"
    assert path.read_bytes() == WEIGHTS
    assert files_of(folder) == [
        f"blobs/{sha256(WEIGHTS)}",
        "refs/main",
        f"snapshots/{COMMIT}/tiny.pth",
    ]
    found = huggingface_hub.try_to_load_from_cache(
        REPO, "tiny.pth", cache_dir=huggingface_hub.constants.HF_HUB_CACHE
    )
    assert found == str(path)


def test_what_the_library_has_cached_is_not_received_again(server, folder):
    cache = huggingface_hub.constants.HF_HUB_CACHE
    theirs = huggingface_hub.hf_hub_download(REPO, "README.md", cache_dir=cache)
    assert Path(theirs).parent == folder / "snapshots" / COMMIT
    blob = folder / "blobs" / sha256(WEIGHTS)
    blob.write_bytes(WEIGHTS)
    Path(theirs).with_name("tiny.pth").symlink_to(os.path.relpath(blob, Path(theirs).parent))
    assert fetch().read_bytes() == WEIGHTS
    assert server.bodies(WEIGHTS) == []


def test_a_second_pull_receives_nothing(server):
    assert fetch() == fetch()
    assert server.bodies(WEIGHTS) == [None]


def test_a_new_commit_receives_only_what_has_changed(server):
    first = fetch()
    server.commit = "f" * 40
    server.repositories[REPO]["other.pth"] = b"other"
    second = fetch()
    assert second.parent.name == "f" * 40
    assert second.resolve() == first.resolve()
    assert fetch("other.pth").read_bytes() == b"other"
    assert server.bodies(WEIGHTS) == [None]


def test_a_cached_file_of_another_size_is_received_anew(server, folder):
    fetch()
    (folder / "blobs" / sha256(WEIGHTS)).write_bytes(WEIGHTS[:-1])
    assert fetch().read_bytes() == WEIGHTS


def test_a_disk_without_links_holds_the_file_itself(server, folder, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert fetch().read_bytes() == WEIGHTS
    assert files_of(folder) == ["refs/main", f"snapshots/{COMMIT}/tiny.pth"]
    fetch()
    assert server.bodies(WEIGHTS) == [None]


def test_two_pulls_at_once_receive_the_file_once(server):
    paths = []
    threads = [threading.Thread(target=lambda: paths.append(fetch())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 4
    assert server.bodies(WEIGHTS) == [None]


def test_a_tag_and_a_commit_name_a_revision(server, folder):
    assert fetch(revision="v1/tag") == fetch(revision=COMMIT)
    assert files_of(folder / "refs") == ["v1/tag"]


# ---- the transfer


def test_a_cut_connection_goes_on_with_the_bytes_that_lack(server):
    server.cuts = [1_000_000, 0, 500_000]
    assert fetch().read_bytes() == WEIGHTS
    assert server.bodies(WEIGHTS) == [
        None,
        "bytes=1000000-",
        "bytes=1000000-",
        "bytes=1500000-",
    ]


def test_a_connection_that_stays_broken_is_given_up_and_gone_on_with_later(server):
    server.cuts = [700_000] + [0] * hub._MAX_FAILURES
    with pytest.raises(FileError, match=r"tiny.pth broke off at 700,000 of 3,000,000 bytes"):
        fetch()
    n = len(server.bodies(WEIGHTS))
    assert fetch().read_bytes() == WEIGHTS
    assert server.bodies(WEIGHTS)[n:] == ["bytes=700000-"]


def test_a_hub_that_knows_no_ranges_begins_anew(server):
    server.cuts = [1_000_000]
    server.ranges = False
    assert fetch().read_bytes() == WEIGHTS


@pytest.mark.parametrize("file", ["tiny.pth", "config.json"])
@pytest.mark.parametrize("cut", [None, 1])
def test_a_corrupted_byte_is_found_and_what_arrived_removed(server, folder, file, cut):
    data = bytearray({"tiny.pth": WEIGHTS, "config.json": CONFIG}[file])
    server.repositories[REPO][file] = bytes(data)
    data[len(data) // 2] ^= 1
    server.served[file] = bytes(data)
    if cut is not None and file == "tiny.pth":
        server.cuts = [cut]
    with pytest.raises(FormatError, match=f"{file} arrived with .* pull again"):
        fetch(file)
    assert files_of(folder) == []
    server.served.clear()
    assert fetch(file).read_bytes() == server.repositories[REPO][file]


def test_a_body_longer_than_the_list_says_is_not_kept(server, folder):
    server.served["tiny.pth"] = WEIGHTS + b"!" * 2_000_000
    with pytest.raises(FormatError, match=r"larger than the 3,000,000 bytes"):
        fetch()
    assert all(path.stat().st_size == 0 for path in (folder / "blobs").iterdir())


def test_more_than_the_disk_has_is_not_begun(server, folder, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 2_999_999))
    with pytest.raises(FileError, match=r"needs 0\.00 GB more .* HF_HOME"):
        fetch()
    assert server.bodies(WEIGHTS) == []
    assert files_of(folder) == []


def test_what_has_arrived_needs_no_room_again(server, monkeypatch):
    server.cuts = [1_000_000] + [0] * hub._MAX_FAILURES
    with pytest.raises(FileError, match="broke off"):
        fetch()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 2_000_000))
    assert fetch().read_bytes() == WEIGHTS


def test_a_cache_that_cannot_be_written_is_named(server, folder):
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    with pytest.raises(FileError, match=r"cannot put tiny.pth into the cache .*rwkv7-tiny: Not a"):
        fetch()


def test_progress_counts_the_bytes_of_the_file(server):
    seen = []
    server.cuts = [1_000_000]
    hub.open_repository(REPO).fetch("tiny.pth", lambda *step: seen.append(step))
    received = [done for what, done, _ in seen if what == "tiny.pth"]
    assert received == sorted(received)
    assert received[-1] == len(WEIGHTS)
    assert seen[-1] == ("checking tiny.pth", len(WEIGHTS), len(WEIGHTS))


def test_xet_is_never_used(server):
    fetch()
    assert not any("xet" in request.path for request in server.requests)


# ---- what belongs to a checkpoint


INDEX = {
    "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
}
SHARDED = {
    "model-00001-of-00002.safetensors": b"first",
    "model-00002-of-00002.safetensors": b"second!",
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    "config.json": CONFIG,
    "modeling_rwkv7.py": b"import os",
    "pytorch_model.bin": b"a pickle",
}


def test_an_index_brings_its_shards_and_the_config(server, folder):
    server.repositories[REPO] = SHARDED
    (index,) = hub.open_repository(REPO).checkpoints()
    assert (index.name, index.size) == ("model.safetensors.index.json", 12)
    path = fetch(index.name)
    assert path.name == index.name
    assert sorted(p.name for p in path.parent.iterdir()) == sorted(SHARDED.keys())[:4]


def test_an_index_in_a_folder_brings_what_lies_beside_it(server):
    server.repositories[REPO] = {f"sub/{name}": data for name, data in SHARDED.items()}
    (index,) = hub.open_repository(REPO).checkpoints()
    path = fetch(index.name)
    assert [(path.parent / name).read_bytes() for name in sorted(SHARDED)[:2]] == [
        CONFIG,
        b"first",
    ]


def test_one_safetensors_file_brings_the_config_and_no_code(server):
    server.repositories[REPO] = {
        "model.safetensors": b"weights",
        "config.json": CONFIG,
        "hf_rwkv_tokenizer.py": b"import os",
    }
    path = fetch("model.safetensors")
    assert sorted(p.name for p in path.parent.iterdir()) == ["config.json", "model.safetensors"]


def test_a_repository_without_a_checkpoint_says_so(server):
    server.repositories[REPO] = {"pytorch_model.bin": b"a pickle", "README.md": b""}
    assert hub.open_repository(REPO).checkpoints() == []
    finished = run("pull", REPO)
    assert finished.returncode == 1
    assert b"holds no checkpoint" in finished.stderr


@pytest.mark.parametrize("name", ["modeling_rwkv7.py", "pytorch_model.bin", "x.pkl", "a.pt"])
def test_code_and_other_pickles_are_not_fetched(server, name):
    server.repositories[REPO][name] = b"import os"
    with pytest.raises(InvalidArgumentError, match="not of a kind that wkvm fetches"):
        fetch(name)


# ---- strangers' names


TRICKS = [
    "../up.pth",
    "a/../../up.pth",
    "/etc/absolute.pth",
    "a//b.pth",
    "./a.pth",
    "a\\b.pth",
    "a\nb.pth",
    "a\0b.pth",
    "\x1b[2Jb.pth",
]


@pytest.mark.parametrize("name", TRICKS)
def test_a_listed_name_that_is_no_plain_path_is_refused(server, tmp_path, name):
    server.repositories[REPO][name] = b"x"
    with pytest.raises(FormatError, match="not a plain relative path") as caught:
        fetch()
    assert str(caught.value).isprintable()
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("name", TRICKS)
def test_an_asked_name_that_is_no_plain_path_is_refused(server, name):
    with pytest.raises(InvalidArgumentError, match="not a plain relative path"):
        fetch(name)


@pytest.mark.parametrize(
    "shard", ["../x.safetensors", "/x.safetensors", "x.pth", "a/b.safetensors"]
)
def test_an_index_that_names_anything_but_a_shard_beside_it_is_refused(server, shard):
    index = {"weight_map": {"a": shard}}
    server.repositories[REPO] = SHARDED | {
        "model.safetensors.index.json": json.dumps(index).encode()
    }
    with pytest.raises(FormatError, match=r"not the plain name of a .safetensors file"):
        fetch("model.safetensors.index.json")


def test_an_index_that_names_a_missing_shard_is_refused(server):
    server.repositories[REPO] = {k: v for k, v in SHARDED.items() if "00002-of" not in k}
    with pytest.raises(FormatError, match=r"names the shard model-00002-of-00002.safetensors"):
        fetch("model.safetensors.index.json")


@pytest.mark.parametrize("revision", ["../../x", "/x", "", "a\nb"])
def test_a_revision_that_is_no_plain_path_is_refused(server, revision):
    with pytest.raises(InvalidArgumentError, match="cannot be a revision"):
        fetch(revision=revision)
    assert server.requests == []


@pytest.mark.parametrize("name", ["a/b/c", "../x", "", "a b", "--a", "someone/x.git"])
def test_a_name_that_is_no_repository_is_refused(server, name):
    with pytest.raises(InvalidArgumentError, match="OWNER/NAME"):
        fetch(name=name)
    assert server.requests == []


@pytest.mark.parametrize(
    "claim",
    [
        {"lfs": {"size": 3, "sha256": "../../x", "pointerSize": 1}},
        {"lfs": {"size": -1, "sha256": "0" * 64, "pointerSize": 1}},
        {"lfs": {"size": "3", "sha256": "0" * 64, "pointerSize": 1}},
        {"lfs": {"size": 3, "sha256": "0" * 40, "pointerSize": 1}},
        {"lfs": {"size": 3}},
        {"lfs": None, "blobId": None},
        {"lfs": None, "blobId": "../../x"},
        {"lfs": None, "size": None},
        {"lfs": [1]},
    ],
)
def test_a_list_with_a_wrong_checksum_or_size_is_refused(server, folder, claim):
    server.claims["tiny.pth"] = claim
    with pytest.raises(FormatError, match="not a hub's answer"):
        fetch()
    assert not folder.exists()


@pytest.mark.parametrize("commit", ["main", "../../x", "", None, "0" * 39])
def test_a_list_without_a_commit_is_refused(server, folder, commit):
    server.commit = commit
    with pytest.raises(FormatError, match="not a hub's answer"):
        fetch()
    assert not folder.exists()


# ---- what the hub refuses


def test_a_repository_that_is_not_there_is_named(server):
    with pytest.raises(FileError, match=r"no http://.*/someone/other, or it is private.*HF_TOKEN"):
        fetch(name="someone/other")


def test_a_revision_that_is_not_there_is_named(server):
    with pytest.raises(FileError, match="has no revision v9"):
        fetch(revision="v9")


def test_a_file_that_is_not_there_is_named(server):
    with pytest.raises(InvalidArgumentError, match=r"has no file other.pth at revision main"):
        fetch("other.pth")


def test_a_file_that_has_gone_meanwhile_says_pull_again(server):
    repository = hub.open_repository(REPO)
    del server.repositories[REPO]["tiny.pth"]
    with pytest.raises(FileError, match="pull again"):
        repository.fetch("tiny.pth", lambda *_: None)


@pytest.mark.parametrize("token", [None, "secret"])
def test_a_gated_repository_says_where_to_ask(server, monkeypatch, token):
    server.gated.add(REPO)
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(FileError, match=rf"is gated: ask for access at {server.url}/{REPO}"):
        fetch()


def test_a_private_repository_takes_the_token_and_no_other_place_sees_it(server, monkeypatch):
    server.private.add(REPO)
    with pytest.raises(FileError, match="or it is private"):
        fetch()
    monkeypatch.setenv("HF_TOKEN", "secret")
    server.requests.clear()
    assert fetch().read_bytes() == WEIGHTS
    seen = {request.path.startswith("/cdn/"): request.authorization for request in server.requests}
    assert seen == {False: "Bearer secret", True: None}


def test_the_token_of_a_login_is_used(server, tmp_path):
    server.private.add(REPO)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("secret\n")
    assert fetch().read_bytes() == WEIGHTS


def test_a_wrong_token_is_named(server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(FileError, match=r"refuses access \(401\).*HF_TOKEN"):
        fetch()


def test_too_many_requests_says_later(server):
    server.status = 429
    with pytest.raises(FileError, match="answers 429; try later"):
        fetch()


def test_an_answer_that_is_no_hubs_is_said(server, monkeypatch):
    page = b"<html>Please log in</html>"
    monkeypatch.setattr(json, "dumps", lambda _: page.decode())
    with pytest.raises(FormatError, match="not a hub's answer"):
        fetch()


# ---- without a network


def go_offline(monkeypatch, server, how):
    constants = huggingface_hub.constants
    if how == "offline mode":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    elif how == "unknown host":
        monkeypatch.setattr(constants, "ENDPOINT", "http://no-such-host.invalid")
    elif how == "nobody there":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    else:
        server.status = 503


WAYS = {
    "offline mode": "HF_HUB_OFFLINE is set",
    "unknown host": "no way to http://no-such-host.invalid",
    "nobody there": "no way to http://127.0.0.1:1",
    "broken hub": "answers 503",
}


@pytest.mark.parametrize("how", WAYS)
def test_without_a_network_the_cache_serves(server, monkeypatch, how):
    server.repositories[REPO] = SHARDED
    path = fetch("model.safetensors.index.json")
    go_offline(monkeypatch, server, how)
    repository = hub.open_repository(REPO)
    assert WAYS[how] in repository.offline
    assert [file.name for file in repository.checkpoints()] == ["model.safetensors.index.json"]
    assert repository.fetch("model.safetensors.index.json", lambda *_: None) == path
    assert fetch("model.safetensors.index.json", revision=COMMIT) == path
    with pytest.raises(FileError, match=f"other.pth is not in the cache .*{WAYS[how]}"):
        fetch("other.pth")
    with pytest.raises(FileError, match=f"{WAYS[how]}.* has no revision v1/tag"):
        fetch(revision="v1/tag")


@pytest.mark.parametrize("how", WAYS)
def test_without_a_network_and_a_cache_the_error_says_both(server, monkeypatch, how):
    go_offline(monkeypatch, server, how)
    with pytest.raises(FileError, match=f"{WAYS[how]}.*pull it once"):
        fetch()


def test_an_incomplete_cache_does_not_serve(server, monkeypatch):
    server.repositories[REPO] = SHARDED
    path = fetch("model.safetensors.index.json")
    path.with_name("model-00002-of-00002.safetensors").unlink()
    go_offline(monkeypatch, server, "offline mode")
    with pytest.raises(FileError, match=r"model-00002-of-00002.safetensors is not in the cache"):
        fetch("model.safetensors.index.json")


def test_a_cached_branch_that_points_out_of_the_cache_is_refused(server, folder, monkeypatch):
    fetch()
    (folder / "refs" / "main").write_text("../../../..")
    go_offline(monkeypatch, server, "offline mode")
    with pytest.raises(FileError, match="has no revision main"):
        fetch()


def test_the_command_says_that_it_uses_the_cache(server):
    path = fetch()
    finished = run("pull", REPO, HF_HUB_OFFLINE="1")
    assert finished.stdout.decode() == f"{path}\n"
    assert finished.stderr == b"note: HF_HUB_OFFLINE is set; using what is cached\n"
