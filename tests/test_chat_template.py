"""What a model is asked, to the byte, and what of its answer is shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wkvm.errors import FileError, FormatError, InvalidArgumentError
from wkvm.text.answer import AnswerBytes
from wkvm.text.jinja import JinjaTemplate
from wkvm.text.reasoning import Part, ReasoningSplitter, joined, opened, split
from wkvm.text.template import WORLD, Turn


def turn(user, said, thinking="off"):
    reasoning, answer = split(said, opened(WORLD.prompt("", (), user, thinking)))
    return Turn(user, thinking, said, reasoning, answer, "stop")


# (system, earlier turns, question, thinking) -> the prompt. Written by hand from the templates and
# `clean_txt` in BlinkDL/RWKV-LM, RWKV-v7/RWKV7-G1x-templates.txt.
CONVERSATIONS = [
    ("", [], "Hi", "off",
     b"User: Hi\n\nAssistant:"),
    ("Be short.", [], "Hi", "off",
     b"System: Be short.\n\nUser: Hi\n\nAssistant:"),
    ("", [turn("Hi", b" Hello.")], "Why?", "off",
     b"User: Hi\n\nAssistant: Hello.\n\nUser: Why?\n\nAssistant:"),
    ("Be short.", [turn("Hi", b" Hello."), turn("1+1?", b" 2")], "Why?", "off",
     b"System: Be short.\n\nUser: Hi\n\nAssistant: Hello.\n\nUser: 1+1?\n\nAssistant: 2\n\n"
     b"User: Why?\n\nAssistant:"),
    ("", [], "1+1?", "on",
     b"User: 1+1?\n\nAssistant: <think"),
    ("", [], "1+1?", "fast",
     b"User: 1+1?\n\nAssistant: <think>\n</think"),
    ("", [], "1+1? (think a bit)", "on",
     b"User: 1+1? (think a bit)\n\nAssistant: <think"),
    ("Be\r\n\r\nshort. ", [], "\n a\r\n\r\n\r\nb\n\n\nc\n  \n", "off",
     b"System: Be\nshort.\n\nUser: a\nb\nc\n\nAssistant:"),
    ("", [turn("1+1?", b">\nOne and one.\n</think>\n\n2", "on")], "And 2+2?", "on",
     b"User: 1+1?\n\nAssistant: <think>\nOne and one.\n</think>\n\n2\n\n"
     b"User: And 2+2?\n\nAssistant: <think"),
    ("S\xfc\xdf", [turn("\u4f60\u597d", b">\n\n\xe5\xa5\xbd", "fast")], "a\n\nAssistant: b", "off",
     b"System: S\xc3\xbc\xc3\x9f\n\nUser: \xe4\xbd\xa0\xe5\xa5\xbd\n\n"
     b"Assistant: <think>\n</think>\n\n\xe5\xa5\xbd\n\nUser: a\nAssistant: b\n\nAssistant:"),
]  # fmt: skip


@pytest.mark.parametrize(("system", "turns", "user", "thinking", "expected"), CONVERSATIONS)
def test_a_prompt_is_the_official_one(system, turns, user, thinking, expected):
    assert WORLD.prompt(WORLD.clean(system), turns, WORLD.clean(user), thinking) == expected


def test_an_answer_ends_before_the_next_question():
    assert WORLD.stop == ("\n\nUser:",)


# ---- reasoning


@pytest.mark.parametrize(
    ("prompt", "said", "reasoning", "answer"),
    [
        (b"Assistant:", b" Blue.", "", "Blue."),
        (b"Assistant: <think", b">\n a <b>\nc\n</think>\n\nBlue.", "a <b>\nc", "Blue."),
        (b"Assistant: <think>\n</think", b">\n\nBlue.", "", "Blue."),
        (b"Assistant:", b" <think>a</think> b", "a", "b"),
        (b"Assistant: <think", b"", "", ""),
        (b"Assistant: <think>\n</think", b"", "", ""),
        (b"Assistant: <think", b">", "", ""),
        (b"Assistant: <think", b">a</thi", "a</thi", ""),
        (b"Assistant: <think", b"ing> about", "", "<thinking> about"),
        (b"Assistant:", b" a <think>b</think>", "", "a <think>b</think>"),
        (b"<think>\n", b"a</think>b", "a", "b"),
        (b"<think>\n\n</think>\n\n", b"b", "", "b"),
        (b"<think> it over\n\nAssistant:", b" b", "", "b"),
        (b"Assistant: <think", b">a\xff</think>b\xe4", "a\ufffd", "b\ufffd"),
    ],
)
def test_reasoning_is_what_stands_between_the_tags(prompt, said, reasoning, answer):
    assert split(said, opened(prompt)) == (reasoning, answer)


@given(
    st.sampled_from(["", "<think", "<think>\n</think"]),
    st.sampled_from(["", "<think>", ">\n", ">a</think>"]),
    st.lists(st.text(alphabet="a <>/think\n", max_size=8), max_size=6),
)
@settings(max_examples=200, deadline=None)
def test_reasoning_is_the_same_however_the_text_is_cut(opening, begin, pieces):
    splitter = ReasoningSplitter(opening)
    parts: list[Part] = []
    for piece in (begin, *pieces):
        parts += splitter.push(piece)
    parts += splitter.finish()
    assert all(part.text for part in parts)
    assert joined(parts) == split("".join((begin, *pieces)).encode(), opening)


# ---- the end of an answer


def pushed(stop, *pieces):
    answer = AnswerBytes(stop)
    return [answer.push(piece) for piece in pieces], answer


def test_what_may_be_the_end_of_an_answer_waits():
    shown, answer = pushed(["\n\nUser:"], b" Blue", b".", b"\n\n", b"Us", b"er", b":")
    assert shown == [" Blue", ".", "", "", "", ""]
    assert (answer.matched, answer.n_certain) == (True, 6)


def test_what_was_no_end_comes_whole():
    shown, answer = pushed(["\n\nUser:"], b"a", b"\n\nUs", b"age: ", b"\xe4\xbd", b"\xa0", b" \n")
    assert shown == ["a", "", "\n\nUsage:", "", " \u4f60", ""]
    assert (answer.matched, bytes(answer.data[answer.n_certain :])) == (False, b" \n")


def test_the_end_of_a_text_leaves_no_stop_string_half_begun():
    _, answer = pushed(["<|end|>"], b"1 <", b"")
    assert answer.n_certain == 1
    assert answer.finish() == " <"
    assert answer.n_certain == 3


def test_bytes_that_are_no_text_are_shown_as_such():
    shown, answer = pushed([], b"a\xff", b"\xe4", b"b")
    assert shown == ["a\ufffd", "", "\ufffdb"]
    assert answer.n_certain == 4


@pytest.mark.parametrize("stop", ["abc", [""], [b"a"], [None]])
def test_a_stop_string_that_is_none_is_refused(stop):
    with pytest.raises(InvalidArgumentError, match="stop"):
        AnswerBytes(stop)


# ---- templates in Jinja

CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' + ('<think>\\n' if enable_thinking else '') }}
{%- endif %}
"""
WORLD_JINJA = """\
{%- for message in messages -%}
{{ {'system': 'System', 'user': 'User', 'assistant': 'Assistant'}[message.role] -}}
: {{ message.content }}{{ '\\n\\n' -}}
{%- endfor -%}
{% if add_generation_prompt %}Assistant:{% endif %}"""


def test_a_template_file_makes_the_prompt_and_names_its_end(tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text(CHATML)
    template = JinjaTemplate.from_file(file)
    assert template.stop == ("<|im_end|>",)
    prompt = template.prompt("S", [turn("a", b">x</think>b", "on")], "c", "on")
    assert prompt == (
        b"<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
        b"<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
        b"<|im_start|>assistant\n<think>\n"
    )
    assert template.prompt("", (), "c", "off").endswith(b"<|im_start|>assistant\n")


def test_the_official_template_as_a_file_gives_the_same_prompt():
    template = JinjaTemplate(WORLD_JINJA)
    assert template.stop == ("\n\nUser:",)
    for system, turns, user, _, expected in CONVERSATIONS[:4]:
        assert template.prompt(system, turns, user, "off") == expected


def test_templates_are_told_apart_by_their_source():
    assert JinjaTemplate(CHATML).name == JinjaTemplate(CHATML).name
    assert JinjaTemplate(CHATML).name != JinjaTemplate(WORLD_JINJA).name
    assert JinjaTemplate(CHATML).name != WORLD.name


@pytest.mark.parametrize(
    "source",
    [
        "{{ ",
        "{% for %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ messages[0].__class__.__base__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ 'a' * 1000000000 }}",
        "{{ 10 ** 100000000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% set n = namespace(x='abcdefgh') %}{% for i in range(20) %}{% set n.x = n.x ~ n.x %}"
        "{% endfor %}{% for i in range(9) %}{{ n.x }}{% endfor %}",
        "{{ raise_exception('no system text, please') }}",
        "{{ undefined_function() }}",
        "{{ 1 / 0 }}",
        "{{ messages[7].content.x.y }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "x" * ((1 << 20) + 1),
        "".join(f"{{% for i{n} in [1] %}}" for n in range(25)) + "{% endfor %}" * 25,
        "{% macro f(a, a) %}{% endmacro %}",
        "{{ f(a=1, a=2) }}",
        "{% break %}",
    ],
)
def test_a_template_that_fails_or_wants_out_is_refused(source):
    with pytest.raises(FormatError, match="chat template"):
        JinjaTemplate(source)


def test_what_a_template_says_cannot_steer_a_terminal():
    with pytest.raises(FormatError) as info:
        JinjaTemplate(r"{{ raise_exception('\x1b]0;title\x07\x1b[31mred') }}")
    assert str(info.value).isprintable()
    assert "red" in str(info.value)


def test_a_template_file_that_cannot_be_read_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing", "a\0b"):
        with pytest.raises(FileError, match="cannot read"):
            JinjaTemplate.from_file(path)
    (tmp_path / "x").write_bytes(b"\xff")
    with pytest.raises(FormatError, match="not UTF-8 at offset 0"):
        JinjaTemplate.from_file(tmp_path / "x")
