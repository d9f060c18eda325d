"""Tokenizers: the golden cases, the vocabulary, what is refused, and `wkvm tokenize`."""

import base64
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from wkvm.errors import FileError, FormatError, InvalidArgumentError
from wkvm.text.tokenizer import Tokenizer

WORLD = ROOT / "vocab" / "rwkv_vocab_v20230424.txt"
GOLDEN = {  # design: models.md
    "Hello world": [33155, 40213],
    " Hello": [36786],
    "你好": [10464, 11685],
    "안녕하세요": [18815, 3266, 150, 19052, 18777, 18862],
    "User: hi\n\nAssistant: <think": [24281, 59, 4571, 261, 5585, 41693, 59, 295, 35762],
    "Hello world! 123 😀 café": [33155, 40213, 34, 3485, 52, 33, 3319, 153, 129, 37946],
    "\tindented\r\nline\n": [10, 41621, 1843, 263, 26150, 11],
}


@pytest.fixture(scope="module")
def world() -> Tokenizer:
    return Tokenizer.world()


# ---- the golden files


def test_every_golden_case_encodes_and_decodes_exactly(world, fixtures):
    lines = (fixtures / "tokenizer" / "encode_cases.jsonl").read_text().splitlines()
    assert len(lines) == 568
    for case in map(json.loads, lines):
        data = base64.b64decode(case["b64"])
        assert world.encode_bytes(data) == case["ids"], case["i"]
        assert world.decode_bytes(case["ids"]) == data, case["i"]
        if case["valid_utf8"]:
            assert world.encode(data.decode()) == case["ids"], case["i"]
            assert world.decode(case["ids"]) == data.decode(), case["i"]


def test_the_vocabulary_has_the_golden_facts(world, fixtures):
    facts = json.loads((fixtures / "tokenizer" / "facts.json").read_text())
    tokens = {i: world.token_bytes(i) for i in range(65536)}
    absent = [i for i, token in tokens.items() if not token]
    assert absent == facts["absent_ids_0_65535"]
    assert world.max_id == facts["max_id"]
    assert max(map(len, tokens.values())) == facts["max_token_bytes"]
    assert all(world.encode_bytes(token) == [i] for i, token in tokens.items() if token)
    for case in facts["decode_cases"]:
        ids, expected = case["ids"], case["decodeBytes_b64"]
        if expected is not None:
            assert world.decode_bytes(ids) == base64.b64decode(expected)
        elif all(0 <= i < 65536 for i in ids):  # where the official code gives up on the list
            assert world.decode_bytes(ids) == b"".join(tokens[i] for i in ids)
        else:
            with pytest.raises(InvalidArgumentError):
                world.decode_bytes(ids)


@pytest.mark.parametrize(("text", "ids"), GOLDEN.items())
def test_golden_ids(world, text, ids):
    assert world.encode(text) == ids
    assert world.decode(ids) == text


# ---- the vocabulary


def test_the_vocabulary_file_is_the_one_that_was_published():
    published = "e6dee3d4e31b4d5c40ac99508ac6c701ceef4bed681bf2167ce9a908552bca89"
    assert hashlib.sha256(WORLD.read_bytes()).hexdigest() == published
    assert (WORLD.parent / "SHA256").read_text() == f"{published}  {WORLD.name}\n"
    assert published in (WORLD.parent / "README.md").read_text()


def test_world_is_one_object_and_equals_its_file(world):
    assert Tokenizer.world() is world
    assert Tokenizer.named("world") is world
    assert (world.vocab_size, world.max_id) == (65536, 65529)
    assert Tokenizer.from_file(WORLD).digest == world.digest
    assert Tokenizer.named(str(WORLD)).digest == world.digest


def test_line_ends_do_not_matter(world, tmp_path):
    path = tmp_path / "crlf.txt"
    path.write_bytes(WORLD.read_bytes().replace(b"\n", b"\r\n"))
    crlf = Tokenizer.from_file(path)
    assert crlf.digest == world.digest
    assert crlf.encode("\tindented\r\nline\n") == GOLDEN["\tindented\r\nline\n"]


def test_digest_is_over_ids_and_bytes_alone(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("""7 "\\x61" 1\n2 b'\\xff' 1\n""")
    pairs = b"".join(struct.pack("<II", i, len(t)) + t for i, t in ((2, b"\xff"), (7, b"a")))
    assert Tokenizer.from_file(path).digest == hashlib.sha256(pairs).hexdigest()
    path.write_text("7 'b' 1\n2 b'\\xff' 1\n")
    assert Tokenizer.from_file(path).digest != hashlib.sha256(pairs).hexdigest()


def test_literals_mean_what_python_means_by_them(tmp_path):
    texts = [
        "'",
        '"',
        "'\"",
        "\\",
        "\n\r\t",
        "\x00\x7f\x80",
        "é",
        "你",
        "😀",
        "\u200b",
        " a b ",
        "  ",
    ]
    texts += [bytes([b]) for b in range(256) if bytes([b]) not in {b"'", b'"', b"\\"}]
    lines = [(i, t, t.encode() if isinstance(t, str) else t) for i, t in enumerate(texts, 1)]
    path = tmp_path / "v.txt"
    path.write_text("".join(f"{i} {t!r} {len(data)}\n" for i, t, data in lines))
    tokenizer = Tokenizer.from_file(path)
    assert [tokenizer.token_bytes(i) for i, _, _ in lines] == [data for _, _, data in lines]
    path.write_text("".join(f"{i} {t!a} {len(data)}\n" for i, t, data in lines))  # \u and \U
    assert Tokenizer.from_file(path).digest == tokenizer.digest


def test_a_wrong_vocabulary_is_refused_by_file_and_line(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("1 'a' 1\n2 'bc' 3\n")
    with pytest.raises(FormatError, match=r"v\.txt: line 2: the literal is 2 bytes long"):
        Tokenizer.from_file(path)
    path.write_text("1 'a' 1\n2 __import__('os') 1\n")
    with pytest.raises(FormatError, match="line 2: the literal is not a quoted"):
        Tokenizer.from_file(path)
    with pytest.raises(FormatError, match="vocabulary: line 1"):
        Tokenizer(b"\x80\x05pickle")


def test_a_missing_vocabulary_is_a_file_error(tmp_path):
    with pytest.raises(FileError, match="none"):
        Tokenizer.from_file(tmp_path / "none.txt")
    with pytest.raises(FormatError, match="is a folder"):
        Tokenizer.from_file(tmp_path)
    with pytest.raises(InvalidArgumentError, match="zero byte"):
        Tokenizer.from_file("a\0b")


def test_a_vocabulary_without_every_byte_names_the_byte_it_lacks(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("5 'ab' 2\n")
    tokenizer = Tokenizer.from_file(path)
    assert (tokenizer.vocab_size, tokenizer.max_id) == (128, 5)
    assert tokenizer.encode("abab") == [5, 5]
    with pytest.raises(InvalidArgumentError, match="byte 0x63 at position 4"):
        tokenizer.encode("ababc")


def test_byte_level_is_the_bytes():
    tokenizer = Tokenizer.byte_level()
    every = bytes(range(256))
    assert tokenizer.vocab_size == 256
    assert tokenizer.encode_bytes(every) == list(every)
    assert tokenizer.decode_bytes(list(every)) == every
    assert tokenizer.encode("é") == [0xC3, 0xA9]
    assert Tokenizer.named("bytes").digest == tokenizer.digest != Tokenizer.world().digest


# ---- encode and decode


@given(st.binary())
def test_any_bytes_come_back(data):
    world = Tokenizer.world()
    assert world.decode_bytes(world.encode_bytes(data)) == data


@given(st.text())
def test_any_text_comes_back_and_has_the_ids_of_its_bytes(text):
    world = Tokenizer.world()
    ids = world.encode(text)
    assert world.decode(ids) == text
    assert world.encode_bytes(text.encode()) == ids


@given(st.lists(st.integers(0, 65535)))
def test_decoding_joins_the_bytes_of_the_tokens(ids):
    world = Tokenizer.world()
    assert world.decode_bytes(ids) == b"".join(map(world.token_bytes, ids))


@cache
def world_tokens() -> dict[bytes, int]:
    world = Tokenizer.world()
    return {world.token_bytes(i): i for i in range(1, world.max_id + 1)}


@given(st.text(" abcdefghij.,'é", max_size=60))
def test_encoding_takes_the_longest_token_at_every_position(text):
    tokens = world_tokens()
    data, ids = text.encode(), []
    while data:
        n = next(n for n in range(min(128, len(data)), 0, -1) if data[:n] in tokens)
        ids.append(tokens[data[:n]])
        data = data[n:]
    assert Tokenizer.world().encode(text) == ids


def test_invalid_utf8_is_replaced_alone(world):
    ids = world.encode_bytes(b"a\xffb\xe4\xbdc")
    assert world.decode(ids) == "a\ufffdb\ufffdc"
    assert world.decode([229, 190, 161]) == "你"  # three tokens of one byte
    assert world.decode([0, 65530, 65535]) == ""


def test_bytes_of_any_kind_are_taken(world):
    for data in (b"Hello world", bytearray(b"Hello world"), memoryview(b"Hello world")):
        assert world.encode_bytes(data) == [33155, 40213]
    assert world.encode_bytes(b"") == world.encode("") == []


def test_ids_of_any_integer_kind_are_decoded(world):
    ids = [33155, 40213]
    for dtype in (np.uint16, np.int32, np.uint32, np.int64):
        assert world.decode(np.array(ids, dtype=dtype)) == "Hello world"
    assert world.decode(tuple(ids)) == "Hello world"
    assert world.decode([]) == ""
    assert world.token_bytes(np.int64(33155)) == b"Hello"


def test_ids_outside_the_vocabulary_are_refused(world):
    for ids in ([65536], [1, -1], [1 << 32], np.array([-1])):
        with pytest.raises(InvalidArgumentError):
            world.decode(ids)
    with pytest.raises(InvalidArgumentError, match="token id 65536 at position 2"):
        world.decode_bytes([1, 2, 65536])
    for token in (65536, -1, 1 << 40):
        with pytest.raises(InvalidArgumentError):
            world.token_bytes(token)


def test_text_that_is_not_unicode_is_refused(world):
    with pytest.raises(InvalidArgumentError, match="lone surrogate at position 2"):
        world.encode("ab\ud800")
    with pytest.raises(InvalidArgumentError, match="encode_bytes"):
        world.encode(b"ab")  # type: ignore[arg-type]


def test_lists_of_ids_are_lists_of_their_own(world):
    first, second = world.encode("Hello world"), world.encode("Hello world")
    first.append(0)
    assert second == [33155, 40213]
    assert all(type(i) is int for i in second)


def test_long_texts_in_several_threads_have_the_same_ids(world):
    shuffled = random.Random(0)
    texts = ["".join(shuffled.choices(list(GOLDEN), k=9000)) for _ in range(4)]  # beyond 64 KiB
    expected = [world.encode(text) for text in texts]
    assert all(world.decode(ids) == text for ids, text in zip(expected, texts, strict=True))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(world.encode, texts * 4)) == expected * 4


# ---- wkvm tokenize


def tokenize(*arguments: str | bytes, stdin: bytes = b"") -> bytes:
    finished = subprocess.run(
        [sys.executable, "-m", "wkvm", "tokenize", *arguments],
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (finished.returncode, finished.stderr) == (0, b"")
    return finished.stdout


def refusal(*arguments: str, stdin: bytes = b"") -> tuple[int, str]:
    finished = subprocess.run(
        [sys.executable, "-m", "wkvm", "tokenize", *arguments],
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert finished.stdout == b""
    return finished.returncode, finished.stderr.decode()


def test_the_command_takes_text_from_everywhere(tmp_path):
    file = tmp_path / "text"
    file.write_bytes(b"Hello world")
    for out in (
        tokenize("Hello world"),
        tokenize("--file", str(file)),
        tokenize(stdin=b"Hello world"),
        tokenize("-", stdin=b"Hello world"),
        tokenize("Hello world", "--vocab", str(WORLD)),
    ):
        assert out == b"33155 40213\n"
    assert tokenize("é", "--vocab", "bytes") == b"195 169\n"
    assert tokenize(os.fsencode("\udcff")) == b"256\n"  # an argument that is not UTF-8
    assert tokenize(stdin=b"") == b"\n"


def test_the_command_prints_pieces_count_and_json():
    assert (
        tokenize("Hello 你", "--pieces") == b"33155  'Hello'\n   33  ' '\n10464  '\xe4\xbd\xa0'\n"
    )
    assert tokenize("--pieces", stdin=b"\xff") == b"  256  b'\\xff'\n"
    assert tokenize("Hello world", "--count") == b"2\n"
    assert json.loads(tokenize("Hello world", "--json")) == {
        "n_tokens": 2,
        "n_bytes": 11,
        "ids": [33155, 40213],
        "text": "Hello world",
    }


def test_the_command_decodes_to_the_same_bytes():
    assert tokenize("--decode", "33155, 40213") == b"Hello world"
    every = bytes(range(256))
    assert tokenize("--decode", stdin=tokenize(stdin=every)) == every
    assert tokenize("--decode", "0 65530") == b""
    assert json.loads(tokenize("--decode", "256", "--json"))["text"] == "\ufffd"


def test_the_command_names_what_is_wrong(tmp_path):
    status, message = refusal("--decode", "33155 x1")
    assert (status, "'x1' is not a token id" in message) == (1, True)
    status, message = refusal("--decode", "65536")
    assert (status, "65536" in message) == (1, True)
    status, message = refusal("a", "--vocab", str(tmp_path / "none"))
    assert (status, "cannot open" in message) == (1, True)
    status, message = refusal("--file", str(tmp_path / "none"))
    assert (status, "No such file" in message) == (1, True)
    status, message = refusal("a", "--file", "b")
    assert (status, "give it once" in message) == (2, True)
    status, message = refusal("a", "--count", "--json")
    assert (status, "give one of them" in message) == (2, True)
