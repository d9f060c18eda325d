"""A conversation's state holds what was said and nothing else, and no token is ever run twice."""

import json

import numpy as np
import pytest
import vocabularies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wkvm
from wkvm.errors import (
    CacheFullError,
    FileError,
    FormatError,
    InvalidArgumentError,
    NoSlotError,
    StateMismatchError,
    WkvmError,
)
from wkvm.hypervisor.conversation import Conversation
from wkvm.text.jinja import JinjaTemplate

EOS = 0


class Script:
    """A sampler that says what it is told to, and then ends the text."""

    def __init__(self, tokens):
        self._tokens = iter(tokens)

    def sample(self, logits):
        assert np.isfinite(logits).all()
        return next(self._tokens, EOS)

    def accept(self, token):
        pass


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    """Byte b is token b + 1; some pairs are tokens too, ``.\\n`` added to them."""
    path = vocabularies.write_small(tmp_path_factory.mktemp("vocabulary") / "vocabulary.txt")
    lines = path.read_text().splitlines()
    lines[510] = "511 '.\\n' 2"
    path.write_text("\n".join(lines) + "\n")
    return wkvm.Tokenizer.from_file(path)


@pytest.fixture(scope="module")
def model(checkpoint, vocabulary):
    options = {"policy": "moba", "moba_chunk_size": 16, "moba_topk": 2, "kv_dtype": "fp32"}
    return wkvm.load(checkpoint("x128-6p2"), vocab=vocabulary, n_slots=2, **options)


@pytest.fixture(autouse=True)
def _no_slot_is_left_in_use(model):
    yield
    assert model.stats()["n_slots_used"] == 0


def tokens_of(model, text):
    """A token for each byte, so that a test says what is in a token and what is not."""
    return [byte + 1 for byte in text.encode()]


def say(conversation, tokens, ask):
    """What is shown of an answer that consists of these tokens (or, as a str, of these bytes)."""
    if isinstance(tokens, str):
        tokens = tokens_of(conversation.model, tokens)
    conversation.next_sampler = lambda: Script(tokens)
    answer = ask() if callable(ask) else conversation.ask(ask)
    shown = "".join(part.text for part in answer)
    turn = answer.node.turn
    assert shown == turn.reasoning + turn.answer
    return turn


def state_text(conversation):
    return conversation.text_of(conversation.nodes[-1].after.tokens.tolist())


def computed(model):
    return model.stats()["n_tokens"]


def logits_of(model, snapshot):
    with model.resume(snapshot) as session:
        return session.logits().tobytes()


def fresh_logits(model, tokens):
    with model.session() as session:
        return session.forward(tokens).tobytes()


# ---- what the state holds


@pytest.mark.parametrize(
    ("said", "end", "held", "shown"),
    [
        (" Blue.\n\nUser:", "stop", b" Blue.", "Blue."),
        (" Blue.\n\nUser: And", "stop", b" Blue.", "Blue."),
        (" Blue.\n\n\n \n\nUser:", "stop", b" Blue.", "Blue."),
        (" a\n\nb\n\nUsage\n\nUser:", "stop", b" a\n\nb\n\nUsage", "a\n\nb\n\nUsage"),
        (" Blue.", "eos", b" Blue.", "Blue."),
        (" Blue. \n", "eos", b" Blue.", "Blue."),
        (" Blue.\n\nUse", "eos", b" Blue.\n\nUse", "Blue.\n\nUse"),
        ("", "eos", b"", ""),
        ("\n\nUser:", "stop", b"", ""),
        (" \u00e9\u00df", "eos", " \u00e9\u00df".encode(), "\u00e9\u00df"),
    ],
)
def test_the_state_ends_where_the_answer_does(model, said, end, held, shown):
    conversation = Conversation(model)
    turn = say(conversation, said, "Hi")
    assert (turn.end, turn.said, turn.answer) == (end, held, shown)
    assert state_text(conversation) == b"User: Hi\n\nAssistant:" + held
    after = conversation.nodes[-1].after
    assert after.pending is None
    assert after.sampler == b""
    assert logits_of(model, after) == fresh_logits(model, after.tokens)
    say(conversation, " Yes.", "Why?")
    assert state_text(conversation) == (
        b"User: Hi\n\nAssistant:" + held + b"\n\nUser: Why?\n\nAssistant: Yes."
    )


def test_a_token_that_reaches_beyond_the_answer_is_left_to_the_next_prompt(model):
    conversation = Conversation(model)
    straddling = [*tokens_of(model, " Blue"), 511, *tokens_of(model, "\nUser:")]
    turn = say(conversation, straddling, "Hi")
    assert (turn.said, turn.answer) == (b" Blue.", "Blue.")
    assert state_text(conversation) == b"User: Hi\n\nAssistant: Blue"
    say(conversation, " Yes.", "Why?")
    tokens = conversation.nodes[-1].after.tokens.tolist()
    assert state_text(conversation) == (
        b"User: Hi\n\nAssistant: Blue.\n\nUser: Why?\n\nAssistant: Yes."
    )
    assert 511 in tokens  # the longest token, as the model was trained with


@pytest.mark.parametrize("limit", range(1, 12))
def test_a_limit_leaves_no_part_of_the_end_in_the_state(model, limit):
    conversation = Conversation(model, max_tokens=limit)
    turn = say(conversation, " Ja\n\nUser x", "Hi")
    assert turn.end == "length"
    kept = " Ja\n\nUser x"[:limit]
    for n in range(len("\n\nUser"), 0, -1):
        kept = kept.removesuffix("\n\nUser"[:n])
    kept = kept.rstrip()
    assert turn.said.decode() == kept
    assert state_text(conversation).decode() == "User: Hi\n\nAssistant:" + kept


def test_a_character_that_is_not_complete_is_not_in_the_state(model):
    conversation = Conversation(model, max_tokens=3)
    turn = say(conversation, [33, 0xE4 + 1, 0xBD + 1, 0xA0 + 1], "Hi")
    assert (turn.said, turn.answer) == (b"", "")
    assert state_text(conversation) == b"User: Hi\n\nAssistant:"


def test_a_stop_string_that_begins_within_itself_is_trimmed_exactly(model):
    conversation = Conversation(model, stop=["aab"])
    turn = say(conversation, " xaaab", "Hi")
    assert (turn.said, turn.end) == (b" xa", "stop")
    after = conversation.nodes[-1].after
    assert state_text(conversation) == b"User: Hi\n\nAssistant: xa"
    assert logits_of(model, after) == fresh_logits(model, after.tokens)


@given(
    answers=st.lists(
        st.lists(
            st.sampled_from([11, 33, 511, *(b + 1 for b in b"\n\nUser:aU"), 257, 400, 0xE4 + 1]),
            max_size=14,
        ),
        min_size=1,
        max_size=3,
    )
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_state_is_a_beginning_of_the_official_prompt(model, answers):
    conversation = Conversation(model, thinking="fast")
    for number, answer in enumerate(answers):
        say(conversation, answer, f"Question {number}")
    turns = [node.turn for node in conversation.nodes]
    prompt = conversation.template.prompt("", turns, "Next", "off")
    rest = prompt.removeprefix(state_text(conversation))
    assert rest != prompt
    assert len(rest) <= len(b".\n\nUser: Next\n\nAssistant:")
    for node in conversation.nodes:
        assert logits_of(model, node.after) == fresh_logits(model, node.after.tokens)


# ---- what a turn costs


def test_a_turn_costs_its_own_tokens(model):
    conversation = Conversation(model, system="Be short.")
    n_state = 0
    for said, n_end in ((" Blue.\n\nUser:", 6), (" Because.", 0), (" No.\n\nUser:", 6)):
        before = computed(model)
        say(conversation, said, "Why is that?")
        node = conversation.nodes[-1]
        # of what ended the answer, all but the last token had to run before one could know
        assert computed(model) - before == len(node.after.tokens) - n_state + n_end
        assert node.cost.prompt_tokens + len(node.turn.said) + n_end == computed(model) - before
        n_state = len(node.after.tokens)


def test_undone_edited_and_repeated_turns_compute_nothing_of_the_past(model):
    conversation = Conversation(model)
    for question in ("One", "Two", "Three"):
        say(conversation, " Yes, of course.", question)
    n_prompt = conversation.nodes[1].cost.prompt_tokens

    before = computed(model)
    conversation.undo()
    say(conversation, " No.", "Drei")
    own = len(model.tokenizer.encode("\n\nUser: Drei\n\nAssistant:"))
    assert computed(model) - before == own + len(" No.")

    before = computed(model)
    say(conversation, " Maybe.", conversation.again)  # its prompt's state is at hand
    assert computed(model) - before == len(" Maybe.")
    assert conversation.nodes[-1].cost.prompt_tokens == 0

    before = computed(model)
    say(conversation, " Hm.", lambda: conversation.edit(2, "Zwo"))
    assert computed(model) - before == n_prompt + len(" Hm.")
    assert [node.turn.user for node in conversation.nodes] == ["One", "Zwo"]

    before = computed(model)
    twin = conversation.branch()
    say(twin, " A.", "Three")
    say(conversation, " B.", "Four")
    assert [node.turn.user for node in twin.nodes] == ["One", "Zwo", "Three"]
    assert [node.turn.user for node in conversation.nodes] == ["One", "Zwo", "Four"]
    assert computed(model) - before < 2 * 30
    for each in (twin, conversation):
        after = each.nodes[-1].after
        assert logits_of(model, after) == fresh_logits(model, after.tokens)


def test_undo_and_another_try_give_the_bits_of_a_fresh_run(model):
    conversation = Conversation(model)
    say(conversation, " Blue.\n\nUser:", "What color is the sky?")
    say(conversation, " No idea.\n\nUser:", "Why?")
    conversation.undo()
    say(conversation, " The air.\n\nUser:", "Why is it?")
    after = conversation.nodes[-1].after
    fresh = Conversation(model)
    say(fresh, " Blue.\n\nUser:", "What color is the sky?")
    say(fresh, " The air.\n\nUser:", "Why is it?")
    assert after.tokens.tolist() == fresh.nodes[-1].after.tokens.tolist()
    assert logits_of(model, after) == logits_of(model, fresh.nodes[-1].after)
    assert logits_of(model, after) == fresh_logits(model, after.tokens)


def test_another_answer_in_another_mode_has_that_mode_s_prompt(model):
    conversation = Conversation(model)
    say(conversation, " 2", "1+1?")
    conversation.thinking = "on"
    turn = say(conversation, ">\nOne and one.\n</think>\n2", conversation.again)
    assert (turn.reasoning, turn.answer) == ("One and one.", "2")
    assert state_text(conversation) == (
        b"User: 1+1?\n\nAssistant: <think>\nOne and one.\n</think>\n2"
    )


def test_another_system_text_runs_the_conversation_again(model):
    conversation = Conversation(model, system="A")
    say(conversation, " Yes.", "One")
    conversation.system = " B\r\n\r\nC "
    say(conversation, " No.", "Two")
    assert state_text(conversation) == (
        b"System: B\nC\n\nUser: One\n\nAssistant: Yes.\n\nUser: Two\n\nAssistant: No."
    )


def test_a_template_that_drops_the_thoughts_runs_what_it_changed_again(model):
    template = JinjaTemplate(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{{ '<think>' if enable_thinking }}{% endif %}"
    )
    conversation = Conversation(model, template, thinking="on")
    assert conversation.stop == ("<end>",)
    turn = say(conversation, "a\nb</think>2<end>", "1+1?")
    assert (turn.reasoning, turn.answer) == ("a\nb", "2")
    assert state_text(conversation) == b"<user>1+1?<end><assistant><think>a\nb</think>2"
    say(conversation, "c</think>4<end>", "2+2?")
    assert state_text(conversation) == (
        b"<user>1+1?<end><assistant>2<end><user>2+2?<end><assistant><think>c</think>4"
    )


# ---- interrupts and errors


def test_an_interrupted_answer_is_kept(model):
    conversation = Conversation(model)
    conversation.next_sampler = lambda: Script(tokens_of(model, " Blue and more"))
    answer = conversation.ask("Hi")
    for part in answer:
        if part.text.endswith("e"):
            answer.interrupt()
    turn = conversation.nodes[-1].turn
    assert (turn.end, turn.answer) == ("interrupted", "Blue")
    assert state_text(conversation) == b"User: Hi\n\nAssistant: Blue"
    say(conversation, " Yes.", "Go on")
    assert state_text(conversation).endswith(b" Blue\n\nUser: Go on\n\nAssistant: Yes.")


def test_an_interrupt_before_the_answer_changes_nothing(model):
    conversation = Conversation(model)
    say(conversation, " Yes.", "One")
    nodes = conversation.nodes
    answer = conversation.ask("Two")
    answer.interrupt()
    assert list(answer) == []
    assert (answer.node, conversation.nodes) == (None, nodes)


def test_an_answer_that_is_abandoned_changes_nothing(model):
    conversation = Conversation(model)
    conversation.next_sampler = lambda: Script([258] * 50)
    parts = iter(conversation.ask("Two"))
    next(parts)
    del parts
    assert conversation.nodes == ()


def test_a_full_cache_ends_an_answer_and_refuses_a_question(checkpoint, vocabulary):
    model = wkvm.load(checkpoint("x128-6p2"), vocab=vocabulary, n_slots=2, max_cache_len=40)
    conversation = Conversation(model)
    turn = say(conversation, " abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz", "Hi")
    after = conversation.nodes[-1].after
    assert (turn.end, len(after.tokens)) == ("full", 40)
    assert logits_of(model, after) == fresh_logits(model, after.tokens)
    nodes = conversation.nodes
    with pytest.raises(CacheFullError):
        say(conversation, "", "And now?")
    assert conversation.nodes == nodes
    conversation.undo()
    assert say(conversation, " b", "Hi").answer == "b"
    assert model.stats()["n_slots_used"] == 0


def test_an_answer_takes_two_slots(checkpoint, vocabulary):
    model = wkvm.load(checkpoint("x128-6p2"), vocab=vocabulary, n_slots=1)
    conversation = Conversation(model)
    with pytest.raises(NoSlotError):
        say(conversation, " a\n\nUser:", "Hi")
    assert (model.stats()["n_slots_used"], conversation.nodes) == (0, ())


def test_what_cannot_be_done_is_refused(model):
    conversation = Conversation(model)
    for refused in (
        conversation.undo,
        conversation.again,
        lambda: conversation.edit(1, "a"),
        lambda: conversation.save("nowhere"),
        lambda: conversation.ask(" \n "),
        lambda: conversation.ask("\ud800"),
        lambda: conversation.ask(None),
        lambda: setattr(conversation, "thinking", "hard"),
        lambda: setattr(conversation, "system", "\udfff"),
        lambda: Conversation(model, max_tokens=0),
        lambda: Conversation(model, stop="x"),
        lambda: Conversation(model, thinking="hard"),
    ):
        with pytest.raises(InvalidArgumentError):
            refused()
    say(conversation, " Yes.", "One")
    for number in (0, 2, -1):
        with pytest.raises(InvalidArgumentError, match="there is no turn"):
            conversation.edit(number, "a")


# ---- sampling


def test_a_seed_gives_the_same_answers_and_another_try_another(model):
    def run():
        conversation = Conversation(model, max_tokens=12, sampling=wkvm.SamplingOptions(seed=5))
        for ask in (lambda: conversation.ask("Hi"), lambda: conversation.ask("Ho")):
            list(ask())
        first = conversation.nodes[-1].turn.said
        list(conversation.again())
        return first, conversation.nodes[-1].turn.said

    first, second = run()
    assert first != second
    assert run() == (first, second)


def test_the_penalties_begin_anew_with_every_answer(model):
    options = wkvm.SamplingOptions(temperature=0, presence_penalty=1000.0)
    conversation = Conversation(model, max_tokens=6, sampling=options)
    list(conversation.ask("Hi"))
    first = conversation.nodes[-1]
    list(conversation.again())
    assert conversation.nodes[-1].turn == first.turn


# ---- files


@pytest.fixture
def saved(model, tmp_path):
    """A saved conversation: its path, and the conversation."""
    conversation = Conversation(model, system="Be short.", thinking="on")
    say(conversation, ">a</think> Yes.\n\nUser:", "One")
    say(conversation, [*tokens_of(model, ">b</think> No"), 0xFF + 1, 511], "T\u00fc?")
    conversation.save(tmp_path / "talk")
    return tmp_path / "talk", conversation


def test_a_saved_conversation_goes_on_with_the_same_bits(model, saved):
    path, conversation = saved
    loaded = Conversation.load(path, model)
    assert [node.turn for node in loaded.nodes] == [node.turn for node in conversation.nodes]
    assert loaded.system == "Be short."
    before = computed(model)
    say(loaded, " So.", "Three")
    n_loaded, before = computed(model) - before, computed(model)
    conversation.thinking = "off"
    say(conversation, " So.", "Three")
    assert n_loaded == computed(model) - before
    after = loaded.nodes[-1].after
    assert after.tokens.tolist() == conversation.nodes[-1].after.tokens.tolist()
    assert logits_of(model, after) == logits_of(model, conversation.nodes[-1].after)


def test_the_state_of_a_saved_conversation_is_one_that_anything_resumes(model, saved):
    path, conversation = saved
    assert logits_of(model, path) == logits_of(model, conversation.nodes[-1].after)


def test_undo_after_loading_runs_the_text_again(model, saved):
    path, conversation = saved
    loaded = Conversation.load(path, model)
    loaded.undo()
    with pytest.raises(InvalidArgumentError, match="not known"):
        loaded.save(path.with_name("other"))
    say(loaded, " Yes.", "Three")
    conversation.undo()
    conversation.thinking = "off"
    say(conversation, " Yes.", "Three")
    assert state_text(loaded) == state_text(conversation)


def test_a_file_is_replaced_only_if_that_is_asked_for(saved):
    path, conversation = saved
    with pytest.raises(FileError, match="exists"):
        conversation.save(path)
    path.unlink()
    with pytest.raises(FileError, match=r"talk\.json exists"):
        conversation.save(path)
    assert not path.exists()
    conversation.save(path, overwrite=True)
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["talk", "talk.json"]


def test_a_state_of_another_model_or_template_is_refused(checkpoint, vocabulary, model, saved):
    path, _ = saved
    other = wkvm.load(checkpoint("x128-6p2"), vocab=vocabulary, policy="full", n_slots=2)
    with pytest.raises(StateMismatchError):
        Conversation.load(path, other)
    with pytest.raises(FormatError, match="template"):
        Conversation.load(path, model, JinjaTemplate("{{ messages[-1].content }}"))


def test_a_tuned_state_is_where_every_first_turn_begins(model, saved):
    path, _ = saved
    shape = (2, 64, 64)
    blocks = tuple(np.full(shape, 0.01 * (i + 1), np.float32) for i in range(6))
    tuned = wkvm.InitState(path, "value-key", blocks, "1" * 64)
    conversation = Conversation(model, init_state=tuned)
    say(conversation, " Yes.", "One")
    plain = Conversation(model)
    say(plain, " Yes.", "One")
    after = conversation.nodes[0].after
    assert after.tokens.tolist() == plain.nodes[0].after.tokens.tolist()
    with model.session(tuned) as session:
        expected = session.forward(after.tokens).tobytes()
    assert logits_of(model, after) == expected != logits_of(model, plain.nodes[0].after)
    say(conversation, " No.", lambda: conversation.edit(1, "Two"))
    assert conversation.branch().nodes[0].after.lineage == tuned.id

    conversation.save(path, overwrite=True)
    loaded = Conversation.load(path, model, init_state=tuned)
    loaded.undo()
    say(loaded, " Yes.", "One")
    assert logits_of(model, loaded.nodes[0].after) == expected
    with pytest.raises(StateMismatchError, match="initial state 111111111111, this one with no"):
        Conversation.load(path, model)
    with pytest.raises(StateMismatchError):
        Conversation(model, init_state=wkvm.InitState(path, "value-key", blocks[1:], "1" * 64))


def broken_listings(good):
    """Bytes that are no listing of the good one's state, by what is wrong with them."""
    entries = json.loads(good)

    def changed(**changes):
        return json.dumps(entries | changes).encode()

    def turn(**changes):
        first, *others = entries["turns"]
        return changed(turns=[first | changes, *others])

    yield from {
        "empty": b"",
        "cut": good[:-5],
        "not utf-8": b"\xff" + good,
        "deep": b"[" * 100_000,
        "a list": b"[]",
        "a number": b"1" * 10_000,
        "huge": b" " * ((8 << 20) + 1),
        "version": changed(wkvm_conversation=2),
        "more": changed(more=1),
        "less": json.dumps({k: v for k, v in entries.items() if k != "system"}).encode(),
        "state of another": changed(state="0" * 64),
        "state no text": changed(state=7),
        "initial state no text": changed(init_state=None),
        "template": changed(template="jinja:" + "x" * 10_000),
        "system no text": changed(system=None),
        "system surrogate": changed(system="\ud800"),
        "no turns": changed(turns=[]),
        "turns no list": changed(turns={"a": 1}),
        "turn no object": changed(turns=["a"]),
        "turn with more": turn(more=1),
        "user no text": turn(user=["a"]),
        "user surrogate": turn(user="\udcff"),
        "thinking": turn(thinking="hard"),
        "thinking unhashable": turn(thinking=[]),
        "said no text": turn(said=0),
        "said surrogate": turn(said="\ud800"),
        "end": turn(end="bored"),
    }.items()


def test_a_broken_listing_is_refused(model, saved):
    path, _ = saved
    listing = path.with_name("talk.json")
    good = listing.read_bytes()

    def refusal(path, data):
        listing.write_bytes(data)
        try:
            Conversation.load(path, model)
        except WkvmError as error:
            return type(error)

    assert {what: refusal(path, data) for what, data in broken_listings(good)} == dict.fromkeys(
        (what for what, _ in broken_listings(good)), FormatError
    )
    listing.unlink()
    with pytest.raises(FileError, match="cannot read"):
        Conversation.load(path, model)
    listing.write_bytes(good)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(WkvmError):
        Conversation.load(path, model)


def test_a_listing_that_was_changed_by_hand_is_what_the_model_reads(model, saved):
    path, _ = saved
    listing = path.with_name("talk.json")
    listing.write_bytes(listing.read_bytes().replace(b"One", b"Eins"))
    loaded = Conversation.load(path, model)
    say(loaded, " Yes.", "Three")
    assert state_text(loaded).startswith(b"System: Be short.\n\nUser: Eins\n\n")
    assert b"T\xc3\xbc?" in state_text(loaded)
