"""Streaming: the same text for every cutting of the bytes, and nothing of a stop string."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wkvm.errors import InvalidArgumentError
from wkvm.text.stream import TextStream


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """The pieces of `data`, cut at the given places."""
    places = sorted({place % (len(data) + 1) for place in at})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def stream(pieces: list[bytes], stop: list[str]) -> tuple[str, str | None]:
    """All text that comes out, and the stop string that ended it."""
    out = TextStream(stop)
    text = "".join(out.push(piece) for piece in pieces) + out.flush()
    return text, out.matched


def whole(text: str, stop: list[str]) -> tuple[str, str | None]:
    """What must come out."""
    found = sorted((text.find(s), len(s), s) for s in stop if s in text)
    return (text[: found[0][0]], found[0][2]) if found else (text, None)


# Bytes that begin, continue and break UTF-8 sequences of every length.
awkward = st.lists(
    st.sampled_from(
        [b"a", b"\x80", b"\xbf", b"\xc0", b"\xc3", b"\xe0", b"\xa0", b"\xe4", b"\xbd", b"\xed",
         b"\xf0", b"\x9f", b"\x98", b"\xf4", b"\x8f", b"\xff", "é".encode(), "😀".encode()]
    )
).map(b"".join)  # fmt: skip
places = st.lists(st.integers(0, 100), max_size=12)
little_text = st.text("abc", max_size=24)
stops = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


@given(st.one_of(st.binary(), awkward), places)
@example("a😀".encode()[:-1], [1, 2, 3])
def test_any_cutting_of_any_bytes_gives_the_text_of_the_whole(data, at):
    assert stream(cut(data, at), []) == (data.decode("utf-8", "replace"), None)


@given(little_text, places, stops)
@example("abab", [1, 2, 3], ["bab", "aba"])
@example("aabc", [], ["abd", "b"])
@example("abcab", [2], ["bcb", "c"])
def test_any_cutting_gives_the_text_before_the_first_stop_string(text, at, stop):
    assert stream(cut(text.encode(), at), stop) == whole(text, stop)


@given(awkward, places, st.lists(st.text("aé😀\ufffd", min_size=1, max_size=3), max_size=3))
def test_stop_strings_and_awkward_bytes_together(data, at, stop):
    assert stream(cut(data, at), stop) == whole(data.decode("utf-8", "replace"), stop)


@given(little_text, stops)
def test_text_is_held_back_only_while_it_may_become_a_stop_string(text, stop):
    out, given_out = TextStream(stop), ""
    for i in range(len(text)):
        given_out += out.push(text[i].encode())
        if out.matched is not None:
            break
        seen = text[: i + 1]
        possible = [
            k
            for k in range(len(seen))
            if any(len(seen) - k < len(s) and s.startswith(seen[k:]) for s in stop)
        ]
        assert given_out == seen[: min(possible, default=len(seen))]


def test_a_character_waits_for_its_last_byte():
    out = TextStream()
    assert [out.push(bytes([byte])) for byte in "é😀a".encode()] == ["", "é", "", "", "", "😀", "a"]
    assert out.flush() == ""


def test_an_unfinished_character_is_replaced_at_the_end():
    out = TextStream()
    assert out.push(b"a\xf0\x9f") == "a"
    assert out.flush() == "\ufffd"


def test_a_stop_string_may_span_tokens():
    out = TextStream(["\n\nUser:"])
    assert [out.push(piece) for piece in (b"Hi", b"\n", b"\nUs", b"e", b"r", b":")] == [
        "Hi", "", "", "", "", ""
    ]  # fmt: skip
    assert out.matched == "\n\nUser:"
    assert out.push(b" more") == ""
    assert out.flush() == ""


def test_text_that_did_not_become_a_stop_string_comes_out():
    out = TextStream(["\n\nUser:"])
    assert out.push(b"a\n\nUse") == "a"
    assert out.push(b"ful") == "\n\nUseful"
    assert out.push(b"\n\n") == ""
    assert out.flush() == "\n\n"
    assert out.matched is None


def test_the_stop_string_that_begins_first_counts():
    assert stream([b"xabcd"], ["bc", "abcd"]) == ("x", "abcd")
    assert stream([b"xabce"], ["bc", "abcd"]) == ("xa", "bc")
    assert stream([b"xabc"], ["bc", "abcd"]) == ("xa", "bc")
    assert stream([b"xabc"], ["abc", "ab"]) == ("x", "ab")


def test_an_empty_stop_string_is_refused():
    with pytest.raises(InvalidArgumentError, match="empty"):
        TextStream(["a", ""])


def test_a_single_string_is_no_list_of_stop_strings():
    with pytest.raises(InvalidArgumentError, match="stop is a str; give a list of strings"):
        TextStream("User:")
    with pytest.raises(InvalidArgumentError, match="stop is a int; give a list of strings"):
        TextStream(7)


@pytest.mark.parametrize("stop", [[b"User:"], ["a", 7], [None], b"User:"])
def test_a_stop_string_that_is_no_string_is_refused(stop):
    with pytest.raises(InvalidArgumentError, match="must be a str"):
        TextStream(stop)


def test_a_long_stop_string_costs_constant_time_per_character():
    n = 20_000  # a quadratic search would take minutes
    out = TextStream(["a" * n + "b"])
    given_out = "".join(out.push(b"a" * 100) for _ in range(3 * n // 100))
    assert given_out == "a" * (2 * n)
    assert out.push(b"b") == ""
    assert out.matched is not None
