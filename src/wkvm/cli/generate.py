"""``wkvm generate``: a prompt in, its continuation out, as it comes."""

import json
import os
import secrets
import sys
from dataclasses import fields
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from threading import Event
from time import perf_counter
from typing import Annotated, Any, Literal

import typer

from wkvm.bundled import SAMPLING
from wkvm.cli.info import note_bundled, note_left_over
from wkvm.cli.inputs import STANDARD_INPUT, decode, read_input
from wkvm.cli.loading import KvType, MatrixType, MaxCacheLen, Policy, Threads, Vocab
from wkvm.cli.terminal import given, interruptible, progress
from wkvm.cli.tuning import (
    AdapterAlpha,
    AdapterInit,
    AdapterPath,
    StateLayout,
    StatePath,
    chosen_adapter,
    chosen_state,
)
from wkvm.errors import InvalidArgumentError, WkvmError
from wkvm.hypervisor.generation import Generation, Piece
from wkvm.hypervisor.model import load
from wkvm.hypervisor.sampling import SamplingOptions
from wkvm.text.chat import NEXT_TURN, is_chat, with_line_breaks

_PROMPT_CHUNK = 256  # tokens that run between two looks at Ctrl-C


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue; -: standard input.")
    ] = None,
    *,
    model: Annotated[
        Path | None,
        typer.Option(
            help="A checkpoint: .safetensors, shard index, .pth, or folder; else the small one "
            "that comes with wkvm."
        ),
    ] = None,
    vocab: Vocab = None,
    adapter: AdapterPath = None,
    adapter_alpha: AdapterAlpha = None,
    adapter_init: AdapterInit = None,
    state: StatePath = None,
    state_layout: StateLayout = "auto",
    prompt_text: Annotated[str | None, typer.Option("--prompt", help="As the argument.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="Read the prompt, as it is, from a file; -: standard input.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=0, help="Stop after this many tokens.")] = 400,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            help="Stop before this text; else, in a chat, before the next User: turn. May be "
            "repeated. For line breaks bash needs $'\\n\\nUser:'."
        ),
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the token that ends a text.")
    ] = False,
    dtype: MatrixType = "auto",
    quantize: Annotated[
        Literal["int8"] | None, typer.Option(help="The same as --dtype int8.")
    ] = None,
    threads: Threads = None,
    policy: Policy = "moba",
    max_cache_len: MaxCacheLen = None,
    kv_dtype: KvType = "fp16",
    moba_chunk_size: Annotated[
        int | None, typer.Option(help="moba: tokens in a block; else the file's, or 2048.")
    ] = None,
    moba_topk: Annotated[
        int | None, typer.Option(help="moba: blocks that a query sees; else the file's, or 3.")
    ] = None,
    window_sinks: Annotated[
        int | None, typer.Option(help="window: first positions that stay; else 4.")
    ] = None,
    window_size: Annotated[
        int | None, typer.Option(help="window: last positions that are seen; else 2048.")
    ] = None,
    memory_keep_tokens: Annotated[
        int | None, typer.Option(help="memory: positions that are kept; else 128.")
    ] = None,
    memory_keep_ratio: Annotated[
        float | None, typer.Option(help="memory: share of the prompt that is kept instead.")
    ] = None,
    order: Annotated[
        Literal["rwkv", "openai"],
        typer.Option(
            help="rwkv: cut, then temperature, and the defaults below; openai: temperature, then "
            "cut, and no cut or penalty by default."
        ),
    ] = "rwkv",
    temperature: Annotated[
        float | None, typer.Option(help="0: the most probable token; else 1.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Keep this much probability; else 0.85, openai 1 (all).")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep this many tokens; else 0 (all).")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Keep this share of the best token's; else 0 (all).")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Off the logit of a used token; else 0.2, openai 0.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="The same, for each use; else 0.2, openai 0.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Divides the logit of a used token; else 1 (off).")
    ] = None,
    penalty_decay: Annotated[
        float | None, typer.Option(help="What a step leaves of a count; else 0.996, openai 1.")
    ] = None,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=VALUE", help="Add to a token's logit. May be repeated."),
    ] = None,
    ban: Annotated[
        list[int] | None,
        typer.Option(metavar="ID", help="Never generate this token. May be repeated."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same text; else a new one.")
    ] = None,
    logprobs: Annotated[
        int | None, typer.Option(help="With --json: log-probabilities, and those of the best N.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end instead of the text.")
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="End with speed and memory, on standard error.")
    ] = False,
) -> None:
    """Continue a prompt, and print the text as it comes.

    Ctrl-C ends it with what there is. The bundled model's defaults in RWKV's order are its own:
    temperature 0.4 and no penalties.
    """
    if quantize is not None and dtype not in ("auto", quantize):
        raise typer.BadParameter(f"--dtype says {dtype}; give one.", param_hint="--quantize")
    if logprobs is not None and not as_json:
        raise typer.BadParameter("only --json prints them; add it.", param_hint="--logprobs")
    text = _read_prompt(prompt, prompt_text, prompt_file)
    stops = [decode(os.fsencode(string), "--stop") for string in stop or ()]
    if not stops and is_chat(text):
        stops = [NEXT_TURN]
    suited = SAMPLING if model is None and order == "rwkv" else {}
    chosen = suited | given(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        penalty_decay=penalty_decay,
        logprobs=logprobs,
        logit_bias=dict(_bias(entry) for entry in logit_bias or ()),
        banned=ban or (),
        seed=secrets.randbits(32) if seed is None else seed,
    )
    options = SamplingOptions.openai(**chosen) if order == "openai" else SamplingOptions(**chosen)
    sampling = {
        field.name: getattr(options, field.name)
        for field in fields(options)
        if field.name != "exempt"  # left to the session, which knows the vocabulary
    }

    tuned = chosen_adapter(adapter, adapter_alpha, adapter_init)
    init_state = chosen_state(state, state_layout)

    began = perf_counter()
    with progress() as show:
        loaded = load(
            model,
            dtype=quantize or dtype,
            kv_dtype=kv_dtype,
            policy=policy,
            max_cache_len=max_cache_len,
            n_slots=1,
            threads=threads,
            vocab=vocab,
            adapter=tuned,
            progress=lambda done, total: show("packing weights", done, total),
            **given(
                moba_chunk_size=moba_chunk_size,
                moba_topk=moba_topk,
                window_sinks=window_sinks,
                window_size=window_size,
                memory_keep_tokens=memory_keep_tokens,
                memory_keep_ratio=memory_keep_ratio,
            ),
        )
        tokens = loaded.tokenizer.encode(text)
        session = loaded.session(init_state)
        generation = session.stream(max_tokens, stop=stops, ignore_eos=ignore_eos, **sampling)
        ready = perf_counter()
        # What the policy "memory" keeps depends on where a prompt is cut; nothing else does.
        chunk = len(tokens) if policy == "memory" else _PROMPT_CHUNK
        for start in range(0, len(tokens), chunk):
            session.forward(tokens[start : start + chunk], "none")
            show("reading the prompt", min(start + chunk, len(tokens)), len(tokens))
    if model is None:
        note_bundled(loaded.info["n_params"], "--model FILE")
    note_left_over(loaded.info["n_unused"])
    read = perf_counter()
    pieces, first, error = _follow(generation, echo=not as_json)
    ended = perf_counter()

    reason = "error" if error else generation.reason or "interrupted"
    facts = {
        "isa": loaded.isa,
        "threads": loaded.threads,
        "dtype": loaded.info["dtype"],
        "load_seconds": ready - began,
        "prompt_tokens": len(tokens),
        "prompt_seconds": read - ready,
        "generated_tokens": generation.n_tokens,
        "generation_seconds": ended - read,
        "first_token_seconds": None if first is None else first - ready,
        "peak_memory_bytes": getrusage(RUSAGE_SELF).ru_maxrss * 1024,  # Linux counts KiB
    }
    if as_json:
        result: dict[str, Any] = {
            "text": "".join(piece.text for piece in pieces),
            "tokens": [piece.token for piece in pieces if piece.token is not None],
            "reason": reason,
            "stop": generation.stop,
            "seed": sampling["seed"],
            "stats": facts,
        }
        if error is not None:
            result["error"] = str(error)
        if logprobs is not None:
            result["logprobs"] = [_logprobs(piece) for piece in pieces if piece.token is not None]
        print(json.dumps(result))
    if stats:
        print(_as_text(facts, reason), file=sys.stderr)
    if error is not None:
        raise error
    if reason == "interrupted":
        raise typer.Exit(130)


def _bias(entry: str) -> tuple[int, float]:
    token, _, bias = entry.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise typer.BadParameter(
            f"{entry!r} is not ID=VALUE, for example 261=-2.5.", param_hint="--logit-bias"
        ) from None


def _read_prompt(argument: str | None, option: str | None, file: Path | None) -> str:
    """The prompt from the one place where it was given.

    Raises:
        typer.BadParameter: it was given twice, or nowhere.
        InvalidArgumentError: it is empty.
        FileError, FormatError: it cannot be read, or is not UTF-8.
    """
    if option is None:
        data, where = read_input(argument, file, "PROMPT")
    elif argument is None and file is None:
        data, where = os.fsencode(option), "--prompt"
    else:
        raise typer.BadParameter("the prompt was given twice.", param_hint="--prompt")
    if not data:
        raise InvalidArgumentError(f"{where} is empty; give the model something to continue")
    text = decode(data, where)
    is_typed = option is not None or argument not in (None, STANDARD_INPUT)
    chat = with_line_breaks(text) if is_typed else text
    if chat != text:
        print(r"note: took each \n\n before a turn for line breaks", file=sys.stderr)
    return chat


def _follow(
    generation: Generation, *, echo: bool
) -> tuple[list[Piece], float | None, WkvmError | None]:
    """Run a generation until it ends or Ctrl-C ends it, and print its text if asked to.

    Returns:
        Its pieces, the time of the first, and the error that ended it, such as a full cache.
    """
    pieces: list[Piece] = []
    first = failure = None
    output = sys.stdout.buffer
    try:
        interrupted = Event()
        with interruptible(interrupted.set):
            for piece in generation:
                first = first or perf_counter()
                pieces.append(piece)
                if echo:
                    output.write(piece.text.encode())
                    output.flush()
                if interrupted.is_set():
                    break
    except WkvmError as error:
        failure = error
    finally:
        if echo and sys.stdout.isatty():
            output.write(b"\n")
            output.flush()
    return pieces, first, failure


def _logprobs(piece: Piece) -> dict[str, Any]:
    top = piece.top_logprobs or {}
    return {
        "token": piece.token,
        "logprob": piece.logprob,
        "top": [{"token": token, "logprob": logprob} for token, logprob in top.items()],
    }


def _as_text(facts: dict[str, Any], reason: str) -> str:
    """The statistics for people, a line each."""

    def counted(n: int, what: str) -> str:
        return f"{n} {what}" + ("" if n == 1 else "s")

    def speed(n: int, seconds: float) -> str:
        rate = f", {n / seconds:.1f} tokens/s" if n else ""
        return f"{counted(n, 'token')} in {seconds:.3f} s{rate}"

    first = facts["first_token_seconds"]
    lines = {
        "engine": f"{facts['isa']}, {counted(facts['threads'], 'thread')}, {facts['dtype']}",
        "load": f"{facts['load_seconds']:.3f} s",
        "prompt": speed(facts["prompt_tokens"], facts["prompt_seconds"]),
        "generation": speed(facts["generated_tokens"], facts["generation_seconds"])
        + f", ended by {reason}",
        "first token": "none" if first is None else f"{first:.3f} s after the load",
        "peak memory": f"{facts['peak_memory_bytes'] / 2**20:.0f} MiB",
    }
    return "\n".join(f"{name:<11}  {value}" for name, value in lines.items())
