"""The command line as people meet it: a process with arguments, streams and an exit status."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import checkpoint_files
import pytest
import vocabularies

import wkvm
from wkvm._engine import WEIGHT_DTYPES, isa_list
from wkvm.cli.doctor import memory_bytes
from wkvm.cli.dtypes import DTYPES, Dtype
from wkvm.cli.main import COMMANDS
from wkvm.hypervisor.sampling import exempt_tokens

COMMAND = [sys.executable, "-m", "wkvm"]
PROMPT = "Once upon a time there were 3 states."
Finished = subprocess.CompletedProcess[bytes]


def run(*arguments: str | bytes | Path, stdin: bytes = b"", **environment: str) -> Finished:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        env=os.environ | environment,
        timeout=120,
        check=False,
    )


def output_of(*arguments: str | bytes | Path, stdin: bytes = b"") -> bytes:
    """Standard output of a command that must succeed and say nothing else."""
    finished = run(*arguments, stdin=stdin)
    assert (finished.returncode, finished.stderr) == (0, b"")
    return finished.stdout


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory) -> Path:
    return vocabularies.write_small(tmp_path_factory.mktemp("vocabulary") / "vocabulary.txt")


@pytest.fixture
def options(checkpoint, vocabulary) -> list[str | Path]:
    """What every call of generate needs here."""
    return ["--model", checkpoint("r7-s128"), "--vocab", vocabulary, "--threads", "1"]


def generate(options, *arguments, stdin: bytes = b"") -> bytes:
    return output_of(
        "generate", *options, "--seed", "7", "--max-tokens", "40", *arguments, stdin=stdin
    )


def generate_json(options, *arguments) -> dict:
    return json.loads(generate(options, PROMPT, "--json", *arguments))


# ---- where a prompt comes from


def test_a_prompt_is_the_same_from_every_source(options, tmp_path):
    file = tmp_path / "prompt"
    file.write_text(PROMPT)
    expected = generate(options, PROMPT)
    assert expected
    assert generate(options, "--prompt", PROMPT) == expected
    assert generate(options, "--prompt-file", file) == expected
    assert generate(options, "--prompt-file", "-", stdin=PROMPT.encode()) == expected
    assert generate(options, "-", stdin=PROMPT.encode()) == expected
    assert generate(options, stdin=PROMPT.encode()) == expected


def test_a_prompt_is_taken_to_the_last_byte(options, tmp_path):
    file = tmp_path / "prompt"
    file.write_bytes("\ufeffa\r\n\0 b \n\n".encode())
    result = json.loads(generate(options, "--prompt-file", file, "--json"))
    vocabulary = wkvm.Tokenizer.from_file(options[3])
    assert result["stats"]["prompt_tokens"] == len(vocabulary.encode_bytes(file.read_bytes()))


def test_a_prompt_that_looks_like_an_option_comes_after_two_dashes(options):
    assert generate(options, "--", "--help") == generate(options, "--prompt=--help")


# ---- what comes out


def test_the_text_is_what_a_session_generates(options, checkpoint):
    model = wkvm.load(checkpoint("r7-s128"), vocab=options[3])
    session = model.session()
    session.feed(PROMPT)
    pieces = list(session.stream(40, seed=7, exempt=exempt_tokens(model.tokenizer), logprobs=2))
    result = generate_json(options, "--logprobs", "2")
    assert result["text"] == "".join(piece.text for piece in pieces)
    assert result["tokens"] == [piece.token for piece in pieces if piece.token is not None]
    assert [entry["logprob"] for entry in result["logprobs"]] == [
        piece.logprob for piece in pieces if piece.token is not None
    ]
    assert all(len(entry["top"]) == 2 for entry in result["logprobs"])


def test_json_holds_the_same_text_and_what_led_to_it(options):
    result = generate_json(options)
    assert result["text"].encode() == generate(options, PROMPT)
    assert result["reason"] == "length"
    assert result["stop"] is None
    assert result["seed"] == 7
    assert "logprobs" not in result
    assert result["stats"]["generated_tokens"] == len(result["tokens"]) == 40
    assert result["stats"]["peak_memory_bytes"] > 1 << 20
    assert 0 < result["stats"]["first_token_seconds"] < result["stats"]["generation_seconds"] + 60


def test_statistics_go_to_standard_error(options):
    finished = run("generate", *options, PROMPT, "--seed", "7", "--max-tokens", "40", "--stats")
    assert finished.returncode == 0
    assert finished.stdout == generate(options, PROMPT)
    names = [line.split("  ")[0] for line in finished.stderr.decode().splitlines()]
    assert names == ["engine", "load", "prompt", "generation", "first token", "peak memory"]


def test_without_a_seed_the_one_that_was_drawn_reproduces_the_text(options):
    arguments = ("generate", *options, PROMPT, "--max-tokens", "40", "--json")
    first, second = (json.loads(output_of(*arguments)) for _ in range(2))
    assert first["seed"] != second["seed"]
    assert first["tokens"] != second["tokens"]
    again = json.loads(output_of(*arguments, "--seed", str(first["seed"])))
    assert again["tokens"] == first["tokens"]


def test_a_stop_string_ends_the_text_before_itself(options):
    text = generate_json(options)["text"]
    stop = text[9:12]
    result = generate_json(options, "--stop", "never said", "--stop", stop)
    assert result["text"] == text[: text.index(stop)]
    assert (result["reason"], result["stop"]) == ("stop", stop)


def test_no_tokens_give_no_text(options):
    result = json.loads(output_of("generate", *options, PROMPT, "--max-tokens", "0", "--json"))
    assert (result["text"], result["tokens"], result["reason"]) == ("", [], "length")
    assert result["stats"]["first_token_seconds"] is None


def test_the_end_of_text_ends_it_unless_it_is_ignored(options):
    always_0 = ("--logit-bias", "0=1000")
    assert generate_json(options, *always_0)["reason"] == "eos"
    result = generate_json(options, *always_0, "--ignore-eos", "--presence-penalty", "0")
    assert result["tokens"] == [0] * 40
    assert (result["text"], result["reason"]) == ("", "length")


def test_sampling_options_reach_the_sampler(options, checkpoint):
    model = wkvm.load(checkpoint("r7-s128"), vocab=options[3])
    exempt = exempt_tokens(model.tokenizer)
    plain = {"top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "penalty_decay": 1.0}
    results = set()
    for flags, given in (
        ("--temperature 0.5", {"temperature": 0.5}),
        ("--temperature 0", {"temperature": 0.0}),
        ("--top-p 0.3", {"top_p": 0.3}),
        ("--top-k 9", {"top_k": 9}),
        ("--min-p 0.2", {"min_p": 0.2}),
        ("--presence-penalty 2", {"presence_penalty": 2.0}),
        ("--frequency-penalty 2", {"frequency_penalty": 2.0}),
        (
            "--frequency-penalty 9 --penalty-decay 0.5",
            {"frequency_penalty": 9, "penalty_decay": 0.5},
        ),
        ("--repetition-penalty 1.5", {"repetition_penalty": 1.5}),
        ("--logit-bias 98=3 --logit-bias 99=-3.5", {"logit_bias": {98: 3.0, 99: -3.5}}),
        ("--ban 98 --ban 99", {"banned": range(98, 100)}),
        ("--seed 8", {"seed": 8}),
        ("--order openai", {"order": "openai", "exempt": (), **plain}),
        ("--order openai --top-k 2", {"order": "openai", "exempt": (), **plain, "top_k": 2}),
    ):
        session = model.session()
        session.feed(PROMPT)
        pieces = session.stream(40, **({"seed": 7, "exempt": exempt} | given))
        tokens = [piece.token for piece in pieces if piece.token is not None]
        assert generate_json(options, *flags.split())["tokens"] == tokens
        results.add(tuple(tokens))
    assert len(results) == 14


def test_options_of_the_engine_reach_the_engine(options, checkpoint, vocabulary):
    result = generate_json(options, "--quantize", "int8")
    assert result["stats"]["dtype"] == "int8"
    assert result["stats"]["threads"] == 1
    assert generate_json(options, "--dtype", "int8")["tokens"] == result["tokens"]
    assert generate_json(options, "--dtype", "fp32")["stats"]["dtype"] == "fp32"


def test_policy_options_reach_the_engine(checkpoint, vocabulary):
    model = checkpoint("x128-6p2")
    options = ["--model", model, "--vocab", vocabulary]
    text = PROMPT * 20
    for given in (
        {"policy": "full", "kv_dtype": "fp32"},
        {"policy": "moba", "moba_chunk_size": 16, "moba_topk": 2},
        {"policy": "window", "window_sinks": 2, "window_size": 24},
        {"policy": "memory", "memory_keep_tokens": 9},
        {"policy": "memory", "memory_keep_ratio": 0.29},
    ):
        session = wkvm.load(model, vocab=vocabulary, **given).session()
        session.feed(text)  # in one call, which matters to the policy memory
        tokens = [piece.token for piece in session.stream(20, temperature=0.0, top_p=1.0)]
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        result = json.loads(
            generate(options, text, *flags, "--temperature=0", "--max-tokens=20", "--json")
        )
        assert result["stats"]["prompt_tokens"] > 2 * 256
        assert result["tokens"] == [token for token in tokens if token is not None]


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--prompt", "a", "b"], 2, "given twice"),
        (["--prompt", "a", "--prompt-file", "b"], 2, "given twice"),
        (["a", "--prompt-file", "b"], 2, "give it once"),
        (["--max-tokens", "-1", "a"], 2, "--max-tokens"),
        (["--policy", "sparse", "a"], 2, "--policy"),
        (["--dtype", "bf16", "--quantize", "int8", "a"], 2, "--quantize"),
        (["--logit-bias", "7:1", "a"], 2, "ID=VALUE"),
        (["--logit-bias", "x=1", "a"], 2, "ID=VALUE"),
        (["--logprobs", "1", "a"], 2, "--json"),
        (["--nonsense", "a"], 2, "--nonsense"),
        ([""], 1, "PROMPT is empty"),
        ([], 1, "standard input is empty"),
        ([b"a\xffb"], 1, "PROMPT is not UTF-8: byte 0xff at offset 1"),
        (["--prompt", b"\xff"], 1, "--prompt is not UTF-8"),
        (["--prompt-file", "/nowhere/x"], 1, "/nowhere/x"),
        (["--prompt-file", "/"], 1, "cannot read /"),
        (["--temperature", "-1", "a"], 1, "temperature"),
        (["--temperature", "nan", "a"], 1, "temperature"),
        (["--logit-bias", "7=inf", "a"], 1, "logit_bias"),
        (["--ban", "-1", "a"], 1, "banned"),
        (["--ban", "512", "a"], 1, "512"),
        (["--seed", "-1", "a"], 1, "seed"),
        (["--threads", "0", "a"], 1, "threads"),
        (["--stop", "", "a"], 1, "stop string"),
        (["--stop", b"\xff", "a"], 1, "--stop is not UTF-8"),
        (["--window-size", "9", "a"], 1, "window_size"),
        (["--vocab", "/nowhere/v", "a"], 1, "/nowhere/v"),
        (["--vocab", "world", "a"], 1, "vocabulary"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(options, arguments, status, message):
    finished = run("generate", *options, *arguments)
    assert (finished.returncode, finished.stdout) == (status, b"")
    assert re.fullmatch(rf"error: [^\n]*{re.escape(message)}[^\n]*\n", finished.stderr.decode())


def test_wrong_usage_says_where_the_help_is():
    for arguments, command in (
        (["generate", "--nonsense"], "wkvm generate"),
        (["nonsense"], "wkvm"),
    ):
        finished = run(*arguments)
        assert finished.returncode == 2
        assert finished.stderr.decode().endswith(f"See: {command} --help\n")


def test_a_prompt_file_that_is_not_utf8_is_named_with_the_offset(options, tmp_path):
    file = tmp_path / "latin1.txt"
    file.write_bytes("café".encode("latin-1"))
    finished = run("generate", *options, "--prompt-file", file)
    assert finished.returncode == 1
    assert finished.stderr.decode() == (
        f"error: {file} is not UTF-8: byte 0xe9 at offset 3; convert it to UTF-8 first\n"
    )


def test_a_file_that_is_no_checkpoint_is_named(options, vocabulary):
    finished = run("generate", "--model", vocabulary, "a")
    assert finished.returncode == 1
    assert re.fullmatch(rf"error: [^\n]*{vocabulary}[^\n]*\n", finished.stderr.decode())


def test_a_full_cache_keeps_the_text_and_says_so(checkpoint, vocabulary):
    options = ["--model", checkpoint("x128-6p2"), "--vocab", vocabulary, "--policy", "full"]
    finished = run("generate", *options, "--max-cache-len", "64", PROMPT, "--ignore-eos")
    assert finished.returncode == 1
    assert finished.stdout
    assert re.fullmatch(r"error: [^\n]*64[^\n]*\n", finished.stderr.decode())

    as_json = run(
        "generate", *options, "--max-cache-len", "64", PROMPT, "--ignore-eos", "--json", "--stats"
    )
    assert as_json.returncode == 1
    result = json.loads(as_json.stdout)
    *statistics, error = as_json.stderr.decode().splitlines()
    assert error == f"error: {result['error']}"
    assert statistics[3].endswith("ended by error")
    assert (result["reason"], result["stop"]) == ("error", None)
    n_prompt = result["stats"]["prompt_tokens"]
    # The token that did not fit was drawn, and its text is there.
    assert len(result["tokens"]) == result["stats"]["generated_tokens"] == 64 - n_prompt + 1
    again = run(
        "generate", *options, "--max-cache-len", "64", PROMPT, "--ignore-eos",
        "--seed", str(result["seed"]),
    )  # fmt: skip
    assert again.stdout.decode() == result["text"]


# ---- interruptions


def start(*arguments: str | Path) -> subprocess.Popen[bytes]:
    """A process that heeds Ctrl-C, even where these tests run in a shell's background."""
    return subprocess.Popen(
        ["env", "--default-signal=INT", *COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_ctrl_c_keeps_the_text_and_the_statistics(options):
    endless = ("--max-tokens", "1000000000", "--ignore-eos", "--stats", "--seed", "7")
    process = start("generate", *options, PROMPT, *endless)
    began = process.stdout.read(40)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (began + rest).startswith(generate(options, PROMPT, "--ignore-eos")[:40])
    assert re.search(rb"\ngeneration .* ended by interrupted\n", errors)
    assert b"Traceback" not in errors


def test_ctrl_c_before_the_first_token_is_quiet(options, tmp_path):
    fifo = tmp_path / "prompt"
    os.mkfifo(fifo)
    process = start("generate", *options, "--prompt-file", fifo)
    with fifo.open("wb"):  # returns once the process has opened it too
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130


def test_a_reader_that_leaves_ends_it_quietly(options):
    endless = ("--max-tokens", "1000000000", "--ignore-eos")
    process = start("generate", *options, PROMPT, *endless)
    process.stdout.read(20)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 1


def test_an_output_that_cannot_be_written_is_said_in_one_line(options):
    for arguments in (["generate", *options, "a"], ["info", options[1]], ["--help"]):
        with open("/dev/full", "wb") as full:
            finished = subprocess.run(
                [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, check=False
            )
        assert finished.returncode == 1
        assert finished.stderr == b"error: cannot write the output: No space left on device\n"


def patched(patch: str, *arguments: str) -> Finished:
    """The program, after `patch` has changed wkvm.cli.tokenize, which is called `tokenize`."""
    program = f"""
import importlib
tokenize = importlib.import_module("wkvm.cli.tokenize")
def fail(error):
    raise error
{patch}
from wkvm.cli.main import main
main()
"""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, timeout=120, check=False
    )


def test_another_error_of_the_system_is_not_blamed_on_the_output():
    patch = "tokenize.read_input = lambda *_: fail(FileNotFoundError(2, 'No such file', '/x/y'))"
    finished = patched(patch, "tokenize", "a")
    assert (finished.returncode, finished.stdout) == (1, b"")
    assert finished.stderr == b"error: [Errno 2] No such file: '/x/y'\n"


def test_too_little_memory_is_said_in_one_line():
    finished = patched("tokenize.read_input = lambda *_: fail(MemoryError())", "tokenize", "a")
    assert (finished.returncode, finished.stdout) == (1, b"")
    assert re.fullmatch(rb"error: out of memory[^\n]*\n", finished.stderr)


def test_an_input_that_cannot_be_read_is_said_in_one_line(tmp_path):
    with (tmp_path / "file").open("wb") as write_only:
        finished = subprocess.run(
            [*COMMAND, "tokenize", "-"], stdin=write_only, capture_output=True, check=False
        )
    assert (finished.returncode, finished.stdout) == (1, b"")
    assert re.fullmatch(rb"error: cannot read standard input: [^\n]+\n", finished.stderr)


def test_bars_are_for_terminals_and_leave_the_text_alone(options):
    terminal, end = pty.openpty()
    with open(terminal, "rb", buffering=0) as screen:
        process = subprocess.Popen(
            [*COMMAND, "generate", *options, PROMPT * 20, "--seed", "7", "--max-tokens", "40"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=end,
        )
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the process has left its terminal
            while True:
                shown += screen.read(1 << 16)
        text, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert text == generate(options, PROMPT * 20)
    assert b"reading the prompt" in shown


# ---- the program as a whole


def test_the_version_is_the_package_s():
    assert output_of("--version").decode() == f"wkvm {wkvm.__version__}\n"


def test_the_help_lists_every_command_with_its_first_line():
    help_text = " ".join(output_of("--help").decode().split())
    assert output_of().split() == output_of("--help").split()
    for name, line in COMMANDS.items():
        assert f"{name} {line}" in help_text
        assert line in " ".join(output_of(name, "--help").decode().split())


def test_the_help_says_how_a_shell_writes_a_line_break():
    assert r"$'\n\nUser:'" in " ".join(output_of("generate", "--help").decode().split())


def test_commands_take_the_types_that_the_engine_has():
    assert set(DTYPES) == set(WEIGHT_DTYPES)
    assert get_args(Dtype) == ("auto", *DTYPES)


def test_the_help_waits_for_neither_numpy_nor_the_engine():
    finished = subprocess.run(
        [sys.executable, "-X", "importtime", *COMMAND[1:], "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "wkvm.cli.main" in finished.stderr
    assert not re.search(r"numpy|wkvm\._engine|rich", finished.stderr)


def test_a_converted_checkpoint_gives_the_same_text(options, checkpoint, tmp_path):
    target = tmp_path / "converted.safetensors"
    assert output_of("convert", checkpoint("r7-s128"), target, "--dtype", "int8") == b""
    facts = json.loads(output_of("info", target, "--json"))
    assert (facts["kind"], facts["dtype"], facts["family"]) == ("wkvm packed", "int8", "rwkv7")
    converted = ["--model", target, *options[2:]]
    assert generate(converted, PROMPT) == generate(options, PROMPT, "--quantize", "int8")


@pytest.mark.parametrize("name", ["r7-s128", "x128-6p2"])
def test_info_shows_the_lora_ranks(checkpoint, tmp_path, name):
    weights = checkpoint_files.read(checkpoint(name))
    ranks = {
        pair: [next(t[1][1] for n, t in weights.items() if n.endswith(f"blocks.1.att.{pair}1"))]
        for pair in "wavg"
    }
    assert json.loads(output_of("info", checkpoint(name), "--json"))["lora_ranks"] == ranks
    line = ", ".join(f"{pair} {rank}" for pair, (rank,) in ranks.items())
    assert re.search(rf"\nLoRA ranks +{line}\n", output_of("info", checkpoint(name)).decode())
    output_of("convert", checkpoint(name), tmp_path / "packed")
    assert json.loads(output_of("info", tmp_path / "packed", "--json"))["lora_ranks"] is None


def test_blocks_that_never_run_are_noted_on_standard_error(checkpoint, fixtures, tmp_path):
    path = checkpoint("x64-5p2-quirk")
    note = b"note: 1 left-over RWKV block of the file never runs, as in the official code\n"
    converted = run("convert", path, tmp_path / "packed")
    assert (converted.returncode, converted.stdout, converted.stderr) == (0, b"", note)
    for model in (path, tmp_path / "packed"):
        finished = run("generate", "--model", model, PROMPT, "--seed", "7", "--max-tokens", "9")
        assert (finished.returncode, finished.stderr) == (0, note)
        assert finished.stdout


def test_tokens_and_text_go_both_ways():
    assert output_of("tokenize", "Hello world") == b"33155 40213\n"
    assert output_of("tokenize", "--decode", "33155 40213") == b"Hello world"


def test_the_doctor_names_the_machine_and_finds_it_healthy(monkeypatch):
    monkeypatch.delenv("WKVM_ISA", raising=False)
    facts = json.loads(output_of("doctor", "--json"))
    assert facts["problems"] == []
    assert facts["isa_list"] == facts["self_check"]["isa_list"] == isa_list()
    assert {"exp", "int8 matrices", "time mix", "attention"} <= set(facts["self_check"]["kernels"])
    assert facts["isa"] == isa_list()[0]
    assert 0 < facts["memory_available_bytes"] <= facts["memory_bytes"]
    text = output_of("doctor").decode()
    assert f"instruction set  {isa_list()[0]}, of" in text
    assert f"the same bits for {', '.join(facts['self_check']['kernels'])}" in text


def test_the_doctor_reports_a_forced_set(monkeypatch):
    monkeypatch.setenv("WKVM_ISA", "scalar")
    facts = json.loads(output_of("doctor", "--json"))
    assert (facts["isa"], facts["WKVM_ISA"]) == ("scalar", "scalar")
    finished = run("doctor", WKVM_ISA="mmx")
    assert finished.returncode == 1
    assert re.search(rb"\nerror: [^\n]*mmx", finished.stdout)


def test_the_doctor_counts_the_sessions_that_fit(checkpoint):
    for name in ("r7-s128", "x128-6p2"):
        facts = json.loads(output_of("doctor", "--json", "--model", checkpoint(name)))
        model = facts["model"]
        left = facts["memory_available_bytes"] - model["weights_bytes"]
        assert model["empty_sessions"] * model["empty_session_bytes"] <= left
        assert (model["empty_sessions"] + 1) * model["empty_session_bytes"] > left
        assert model["full_sessions"] <= model["empty_sessions"]
        assert (model["max_cache_len"] is None) == (name == "r7-s128")


def test_the_doctor_finds_the_kernel_that_computes_wrongly():
    patch = """
from wkvm.cli import doctor
exact = doctor._kernels.time_mix
def wrong(*, isa, **arrays):
    y, state = exact(isa=isa, **arrays)
    return (y, state) if isa == "scalar" else (y, state * 2)
doctor._kernels.time_mix = wrong
"""
    finished = patched(patch, "doctor")
    assert finished.returncode == 1
    assert re.search(rb"\nerror: [^\n]* disagree on time mix: ", finished.stdout)


def write_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MEMINFO = {"proc/meminfo": "MemTotal:  8000 kB\nMemFree:  10 kB\nMemAvailable:  6000 kB\n"}
KIB = 1024


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (8000, 6000)),
        ({"proc/self/cgroup": "0::/\n"}, (8000, 6000)),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": f"{100 * KIB}\n",
            },
            (8000, 6000),
        ),
        (  # its own limit is the smaller one, but the one above it has less left
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": f"{3000 * KIB}\n",
                "sys/fs/cgroup/a/b/memory.current": f"{500 * KIB}\n",
                "sys/fs/cgroup/a/memory.max": f"{4000 * KIB}\n",
                "sys/fs/cgroup/a/memory.current": f"{3900 * KIB}\n",
                "sys/fs/cgroup/other/memory.max": "1\n",
                "sys/fs/cgroup/other/memory.current": "0\n",
            },
            (3000, 100),
        ),
        (
            {
                "proc/self/cgroup": "9:cpu,cpuacct:/a\n4:memory:/a/b\n0::/a/b\n",
                "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": f"{(2**63 - 4096)}\n",
                "sys/fs/cgroup/memory/a/b/memory.usage_in_bytes": "4096\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{2000 * KIB}\n",
                "sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{2001 * KIB}\n",
            },
            (2000, 0),
        ),
        (  # a container whose cgroup's name is that of the machine, mounted as the root
            {
                "proc/self/cgroup": "4:memory:/docker/0123\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{1000 * KIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{300 * KIB}\n",
            },
            (1000, 700),
        ),
    ],
    ids=["none", "root", "unlimited", "version 2", "version 1", "container"],
)
def test_the_doctor_counts_the_memory_that_its_cgroups_leave(tmp_path, files, expected):
    write_files(tmp_path, MEMINFO | files)
    assert memory_bytes(tmp_path) == tuple(n * KIB for n in expected)


def test_commands_report_a_missing_file_alike(tmp_path):
    for arguments in (
        ["info", tmp_path / "x"],
        ["convert", tmp_path / "x", tmp_path / "y"],
        ["doctor", "--model", tmp_path / "x"],
    ):
        finished = run(*arguments)
        assert finished.returncode == 1
        assert str(tmp_path / "x") in (finished.stderr + finished.stdout).decode()
