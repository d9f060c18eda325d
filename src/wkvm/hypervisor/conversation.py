"""A conversation: turns, each with the state in which it ended.

What a state holds at the end of a turn is one rule for every end (a stop string, token 0, the
limit, an interrupt): the tokens that lie wholly within the answer, as ``AnswerBytes`` trims it. So
it never holds blanks at the answer's end, or a part of what ended it. A token that reaches beyond,
``.\\n`` say, is not in the state either: the next prompt is encoded from where the state's text
ends, with what that token had of the answer.

The past is never computed again: a turn goes on from the last snapshot whose text is the beginning
of its prompt. If there is none, because the system text has changed or the template rewrites
earlier turns, it runs the prompt from the first token on.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self, get_args

from wkvm.errors import CacheFullError, FormatError, InvalidArgumentError, StateMismatchError
from wkvm.formats.write import check_target
from wkvm.hypervisor.generation import END_OF_TEXT
from wkvm.hypervisor.sampling import SamplingOptions
from wkvm.hypervisor.transcript import Transcript, beside
from wkvm.text.answer import AnswerBytes
from wkvm.text.reasoning import Part, ReasoningSplitter, joined, opened
from wkvm.text.template import WORLD, Template, Thinking, Turn

if TYPE_CHECKING:
    from wkvm._engine import Sampler
    from wkvm.formats.init_state import InitState
    from wkvm.hypervisor.model import Model
    from wkvm.hypervisor.session import Session
    from wkvm.hypervisor.snapshot import Snapshot

_PROMPT_CHUNK = 256  # tokens that run between two looks at an interrupt


@dataclass(frozen=True)
class Cost:
    """What a turn took.

    Attributes:
        prompt_tokens: run before the answer; 0 if the prompt's state was at hand.
        prompt_seconds: for those.
        answer_tokens: sampled, those of a stop string included.
        answer_seconds: for those.
    """

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    answer_tokens: int = 0
    answer_seconds: float = 0.0


@dataclass(frozen=True)
class Node:
    """A turn, the state at its end (None: not known since it was loaded), and what it took."""

    turn: Turn
    after: "Snapshot | None"
    cost: Cost


@dataclass(frozen=True)
class Asked:
    """The state after a prompt: another answer to it begins here."""

    base: "Snapshot | None"
    prompt: bytes
    state: "Snapshot"


class Conversation:
    """Turns with a model.

    It takes a slot only while an answer is generated: one for it, and one for the state before what
    may turn out to be its end. Between turns it is a list of values, so a branch costs nothing.

    Attributes:
        model: the model.
        template: makes the prompts.
        init_state: what the first turn begins with in place of zeros, as state tuning made it.
        stop: strings that end an answer; the template's unless others were given.
        max_tokens: the limit of an answer; None: none.
        sampling: how an answer's tokens are chosen. Every answer starts the penalties' counts
            anew; with a seed, the n-th one starts from the seed + n.
        nodes: the turns so far.
        asked: the last prompt's state.
    """

    def __init__(
        self,
        model: "Model",
        template: Template = WORLD,
        *,
        system: str = "",
        thinking: Thinking = "off",
        init_state: "InitState | None" = None,
        stop: Sequence[str] | None = None,
        max_tokens: int | None = None,
        sampling: SamplingOptions | None = None,
    ) -> None:
        """A conversation without a turn yet.

        Raises:
            InvalidArgumentError: an option out of range, or the model has no tokenizer.
            StateMismatchError: the initial state is one of another model.
        """
        AnswerBytes(template.stop if stop is None else stop)  # refuses what is none
        if max_tokens is not None and max_tokens < 1:
            raise InvalidArgumentError(f"max_tokens is {max_tokens!r}; it must be at least 1")
        options = SamplingOptions() if sampling is None else sampling
        if options.order == "rwkv" and not options.exempt:
            options = replace(options, exempt=model.exempt_tokens)
        self.model = model
        self.template = template
        if init_state is not None:
            init_state.require(model.info)
        self.init_state = init_state
        self.stop = tuple(template.stop if stop is None else stop)
        self.max_tokens = max_tokens
        self.sampling = options
        self._n_vocab = model.tokenizer.vocab_size
        self._n_answers = 0
        self._system = ""
        self._thinking: Thinking = "off"
        self.nodes: tuple[Node, ...] = ()
        self.asked: Asked | None = None
        self.system = system
        self.thinking = thinking

    @property
    def system(self) -> str:
        """The system text; another one makes the next turn run the whole conversation again."""
        return self._system

    @system.setter
    def system(self, text: str) -> None:
        self._system = self.template.clean(_checked_text("the system text", text))

    @property
    def thinking(self) -> Thinking:
        """The mode of the next question: "off", "fast" or "on"."""
        return self._thinking

    @thinking.setter
    def thinking(self, mode: Thinking) -> None:
        if mode not in get_args(Thinking):
            raise InvalidArgumentError(
                f"thinking is {mode!r}; it must be one of {', '.join(get_args(Thinking))}"
            )
        self._thinking = mode

    # ---- turns

    def ask(self, message: str) -> "Answer":
        """Ask a question.

        Returns:
            The answer, which is generated as one iterates over it. The turn is part of the
            conversation once it has ended; on an error, everything stays as it was.

        Raises:
            InvalidArgumentError: the message is blank, or no valid Unicode.
        """
        return Answer(self, self.nodes, self._cleaned(message), self.thinking)

    def again(self) -> "Answer":
        """Another answer to the last question, in the mode of the next one, in place of its turn.

        Raises:
            InvalidArgumentError: there is no turn.
        """
        return Answer(self, self.nodes[:-1], self._node(len(self.nodes)).turn.user, self.thinking)

    def edit(self, number: int, message: str) -> "Answer":
        """Ask another question in place of turn `number`, from 1, and all that follow.

        Raises:
            InvalidArgumentError: there is no such turn; as ``ask``.
        """
        self._node(number)
        return Answer(self, self.nodes[: number - 1], self._cleaned(message), self.thinking)

    def undo(self) -> Turn:
        """Take the last turn back, and return it.

        Raises:
            InvalidArgumentError: there is no turn.
        """
        last = self._node(len(self.nodes))
        self.nodes = self.nodes[:-1]
        return last.turn

    def branch(self) -> "Conversation":
        """Another conversation with the same past, which from here on goes its own way."""
        twin = Conversation(
            self.model,
            self.template,
            system=self.system,
            thinking=self.thinking,
            init_state=self.init_state,
            stop=self.stop,
            max_tokens=self.max_tokens,
            sampling=self.sampling,
        )
        twin.nodes, twin.asked, twin._n_answers = self.nodes, self.asked, self._n_answers
        return twin

    def _node(self, number: int) -> Node:
        if not self.nodes:
            raise InvalidArgumentError("there is no turn yet: ask something first")
        if not 1 <= number <= len(self.nodes):
            raise InvalidArgumentError(
                f"there is no turn {number}: name one of 1 to {len(self.nodes)}"
            )
        return self.nodes[number - 1]

    def _cleaned(self, message: str) -> str:
        cleaned = self.template.clean(_checked_text("the message", message))
        if not cleaned:
            raise InvalidArgumentError("the message is empty: say something")
        return cleaned

    def next_sampler(self) -> "Sampler":
        """The sampler of the next answer."""
        options = self.sampling
        if options.seed is not None:
            options = replace(options, seed=(options.seed + self._n_answers) % (1 << 64))
        self._n_answers += 1
        return self.model.new_sampler(options)

    def text_of(self, tokens: Sequence[int]) -> bytes:
        """The bytes of tokens; none of an id beyond the vocabulary, which a head may have."""
        return self.model.tokenizer.decode_bytes([t for t in tokens if t < self._n_vocab])

    # ---- files

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the state at the end to `path`, as ``Session.save``, and the turns to `path`.json.

        Args:
            path: the file to make.
            overwrite: replace files that exist.

        Raises:
            InvalidArgumentError: there is no turn, or the last one's state is not known: others
                followed it in a loaded conversation.
            FileError: the system refuses, or a file exists.
        """
        after = self._node(len(self.nodes)).after
        if after is None:
            raise InvalidArgumentError("the state of the last turn is not known: ask something")
        turns = tuple(node.turn for node in self.nodes)
        transcript = Transcript(
            after.id, self.template.name, _id(self.init_state), self.system, turns
        )
        check_target(beside(path), overwrite)
        after.save(path, overwrite=overwrite)
        transcript.save(path, overwrite=overwrite)

    @classmethod
    def load(
        cls, path: str | Path, model: "Model", template: Template = WORLD, **options: Any
    ) -> Self:
        """Go on with a conversation that ``save`` wrote.

        Only the state at its end is in the file: a turn after ``undo`` or ``edit`` runs the
        conversation again.

        Args:
            path: of the state.
            model: the one that the state belongs to.
            template: the one that the conversation was led with.
            options: as for a new conversation, without ``system``.

        Raises:
            StateMismatchError: another model, policy, KV type or initial state.
            FormatError: a file is damaged, the two do not belong together, or another template.
            FileError, NoSlotError: as ``Model.resume``.
        """
        transcript = Transcript.load(path, template)
        with model.resume(path) as session:
            after = session.snapshot()
        conversation = cls(model, template, system=transcript.system, **options)
        if transcript.init_state != _id(conversation.init_state):
            raise StateMismatchError(
                f"the conversation in {path} began with "
                f"{_shown(transcript.init_state)}, this one with "
                f"{_shown(_id(conversation.init_state))}: load it with the same (--state)"
            )
        if after.parent != transcript.state:
            raise FormatError(f"{beside(path)} belongs to another state than {path}")
        *earlier, last = transcript.turns
        conversation.nodes = (
            *(Node(turn, None, Cost()) for turn in earlier),
            Node(last, after, Cost()),
        )
        return conversation


class Answer:
    """Iterates over the parts of one answer, as they become certain.

    Attributes:
        node: the turn with its state, once the answer has ended.
    """

    def __init__(
        self, conversation: Conversation, history: tuple[Node, ...], user: str, thinking: Thinking
    ) -> None:
        self._conversation = conversation
        self._history = history
        self._user = user
        self._thinking = thinking
        self._is_interrupted = False
        self._session: Session | None = None
        self._mark: Session | None = None  # before the token in which the uncertain end begins
        self.node: Node | None = None

    def interrupt(self) -> None:
        """End the answer at the next token; for signal handlers and other threads.

        What there is becomes the turn. Before the first token there is none, and the conversation
        stays as it was.
        """
        self._is_interrupted = True

    def __iter__(self) -> Iterator[Part]:
        """Generate the answer; once.

        Raises:
            CacheFullError: the prompt does not fit the KV cache.
            NumericError, NoSlotError, FileError: as ``Session.forward`` and ``Session.snapshot``.
            FormatError: the template fails.
        """
        try:
            yield from self._run()
        finally:
            for session in (self._session, self._mark):
                if session is not None:
                    session.close()

    def _run(self) -> Iterator[Part]:
        conversation = self._conversation
        prompt = conversation.template.prompt(
            conversation.system, [node.turn for node in self._history], self._user, self._thinking
        )
        began = perf_counter()
        n_prompt = self._read(prompt)
        if self._is_interrupted or self._session is None:
            return
        read = perf_counter()
        sampler = conversation.next_sampler()
        answer = AnswerBytes(conversation.stop)
        splitter = ReasoningSplitter(opened(prompt))
        parts: list[Part] = []
        tokens: list[int] = []
        ends: list[int] = []  # of each token, in bytes of the answer
        n_marked = 0  # tokens in the mark's state
        n_run = 0  # tokens in the session's
        logits = self._session.logits()
        while True:
            if self._is_interrupted:
                end = "interrupted"
                break
            if n_run == conversation.max_tokens:
                end = "length"
                break
            token = sampler.sample(logits)
            if token == END_OF_TEXT:
                end = "eos"
                new = splitter.push(answer.finish())
                parts += new
                yield from new
                break
            sampler.accept(token)
            begin = len(answer.data)
            new = splitter.push(answer.push(conversation.text_of((token,))))
            tokens.append(token)
            ends.append(len(answer.data))
            parts += new
            yield from new
            if answer.matched:
                end = "stop"
                break
            if answer.n_certain >= begin:  # else what is uncertain begins in an earlier token
                self._drop_mark()
                if answer.n_certain < len(answer.data):
                    self._mark, n_marked = self._session.fork(), n_run
            try:
                self._session.forward((token,), out=logits)
            except CacheFullError:
                end = "full"
                break
            n_run += 1
        new = splitter.finish()
        parts += new
        yield from new
        answered = perf_counter()

        n_kept = min(bisect_right(ends, answer.n_certain), n_run)
        if n_kept < n_run and self._mark is not None:
            self._session.close()
            self._session, self._mark = self._mark, None
            if n_marked < n_kept:  # a stop string that repeats itself, such as "aab", was awaited
                self._session.forward(tokens[n_marked:n_kept], "none")
        if self._is_interrupted and not tokens:
            return
        self.node = Node(
            Turn(
                self._user,
                self._thinking,
                bytes(answer.data[: answer.n_certain]),
                *joined(parts),
                end,
            ),
            self._session.snapshot(),
            Cost(n_prompt, read - began, len(tokens), answered - read),
        )
        conversation.nodes = (*self._history, self.node)

    def _read(self, prompt: bytes) -> int:
        """Open a session that has run the prompt; how many tokens that took."""
        conversation = self._conversation
        model = conversation.model
        base = self._base(prompt)
        asked = conversation.asked
        if asked is not None and (asked.base, asked.prompt) == (base, prompt):
            self._session = model.resume(asked.state)
            return 0
        known = b""
        if base is None:
            self._session = model.session(conversation.init_state)
        else:
            self._session = model.resume(base)
            known = conversation.text_of(base.tokens.tolist())
        tokens = model.tokenizer.encode_bytes(prompt[len(known) :])
        # What the policy "memory" keeps depends on where a prompt is cut; nothing else does.
        is_whole = model.identity.policy == "memory"
        chunk = max(1, len(tokens)) if is_whole else _PROMPT_CHUNK
        for start in range(0, len(tokens), chunk):
            if self._is_interrupted:
                return start
            self._session.forward(tokens[start : start + chunk], "none")
        conversation.asked = Asked(base, prompt, self._session.snapshot())
        return len(tokens)

    def _base(self, prompt: bytes) -> "Snapshot | None":
        """The latest state whose text is the beginning of the prompt."""
        for node in reversed(self._history):
            after = node.after
            if after is not None and prompt.startswith(
                self._conversation.text_of(after.tokens.tolist())
            ):
                return after
        return None

    def _drop_mark(self) -> None:
        if self._mark is not None:
            self._mark.close()
            self._mark = None


def _id(init_state: "InitState | None") -> str:
    return "" if init_state is None else init_state.id


def _shown(init_state: str) -> str:
    """An initial state in a message."""
    return f"the initial state {init_state[:12]}" if init_state else "no initial state"


def _checked_text(name: str, text: str) -> str:
    """Refuse what cannot be UTF-8."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{name} is {text!r}; it must be a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{name} is no valid Unicode at character {error.start}: remove it"
        ) from error
    return text
