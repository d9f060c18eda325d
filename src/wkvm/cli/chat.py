"""``wkvm chat``: a conversation in the terminal, or over a pipe."""

import os
from pathlib import Path
from typing import Annotated

import typer

from wkvm.bundled import SAMPLING
from wkvm.cli.dialogue import COMMANDS, Dialogue
from wkvm.cli.info import note_bundled, note_left_over
from wkvm.cli.inputs import decode
from wkvm.cli.lines import open_lines
from wkvm.cli.loading import KvType, MatrixType, MaxCacheLen, Policy, Threads, Vocab
from wkvm.cli.terminal import given, progress
from wkvm.cli.tuning import (
    AdapterAlpha,
    AdapterInit,
    AdapterPath,
    StateLayout,
    StatePath,
    chosen_adapter,
    chosen_state,
)
from wkvm.hypervisor.conversation import Conversation
from wkvm.hypervisor.model import load
from wkvm.hypervisor.sampling import SamplingOptions
from wkvm.text.jinja import JinjaTemplate
from wkvm.text.template import WORLD, Template, Thinking


def chat(
    *,
    model: Annotated[
        Path | None,
        typer.Option(help="A checkpoint, as for generate; else the one that comes with wkvm."),
    ] = None,
    vocab: Vocab = None,
    adapter: AdapterPath = None,
    adapter_alpha: AdapterAlpha = None,
    adapter_init: AdapterInit = None,
    state: StatePath = None,
    state_layout: StateLayout = "auto",
    template: Annotated[
        Path | None,
        typer.Option(help="A Jinja chat template; else that of RWKV's World and G1 models."),
    ] = None,
    system: Annotated[str, typer.Option(help="What the model is told first.")] = "",
    think: Annotated[
        Thinking, typer.Option(help="Reasoning before an answer; fast: an empty one.")
    ] = "off",
    load_file: Annotated[
        Path | None, typer.Option("--load", help="Go on with a conversation that /save wrote.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Cut an answer after this many tokens.")
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End an answer before this text; else as the template does. Repeatable."),
    ] = None,
    dtype: MatrixType = "auto",
    threads: Threads = None,
    policy: Policy = "moba",
    max_cache_len: MaxCacheLen = None,
    kv_dtype: KvType = "fp16",
    temperature: Annotated[
        float | None, typer.Option(help="0: the most probable token; else 1.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Keep this much probability; else 0.85.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep this many tokens; else 0 (all).")] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Off the logit of a used token; else 0.2.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="The same, for each use; else 0.2.")
    ] = None,
    penalty_decay: Annotated[
        float | None, typer.Option(help="What a step leaves of a count; else 0.996.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed and lines give the same answers.")
    ] = None,
) -> None:
    """Talk to a model, in the terminal or over a pipe.

    /help lists the commands; Ctrl-C stops an answer, Ctrl-D ends the program. From a
    pipe, every line is a message or a command. Answers go to standard output, everything else to
    standard error. The bundled model's defaults are its own: temperature 0.4 and no penalties.
    """
    lines = open_lines(f"/{name}" for name in COMMANDS)
    sampling = SamplingOptions(
        **(SAMPLING if model is None else {})
        | given(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            penalty_decay=penalty_decay,
            seed=seed,
        )
    )
    spelling: Template = WORLD if template is None else JinjaTemplate.from_file(template)
    stops = [decode(os.fsencode(string), "--stop") for string in stop or ()] or None
    tuned = chosen_adapter(adapter, adapter_alpha, adapter_init)
    init_state = chosen_state(state, state_layout)
    with progress() as show:
        loaded = load(
            model,
            dtype=dtype,
            kv_dtype=kv_dtype,
            policy=policy,
            max_cache_len=max_cache_len,
            n_slots=2,  # what one answer takes
            threads=threads,
            vocab=vocab,
            adapter=tuned,
            progress=lambda done, total: show("packing weights", done, total),
        )
    if model is None:
        note_bundled(loaded.info["n_params"], "--model FILE")
    note_left_over(loaded.info["n_unused"])

    def open_saved(file: Path) -> Conversation:
        return Conversation.load(
            file,
            loaded,
            spelling,
            thinking=think,
            init_state=init_state,
            stop=stops,
            max_tokens=max_tokens,
            sampling=sampling,
        )

    conversation = Conversation(
        loaded,
        spelling,
        system=decode(os.fsencode(system), "--system"),
        thinking=think,
        init_state=init_state,
        stop=stops,
        max_tokens=max_tokens,
        sampling=sampling,
    )
    if load_file is not None:
        conversation = open_saved(load_file)
        if system:
            conversation.system = decode(os.fsencode(system), "--system")
    Dialogue(conversation, open_saved, lines).run()
