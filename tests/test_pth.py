"""PyTorch .pth files are read exactly, without torch, without running them, in bounded memory."""

import pickle
import random
import struct
import subprocess
import sys
import textwrap
import zipfile

import checkpoint_files
import numpy as np
import pth_files
import pytest
from opened import read_all
from pth_files import View, call, dict_, global_, integer, program, text, tuple_

from wkvm.errors import FileError, FormatError, UnsupportedError, WkvmError
from wkvm.formats.open import open_checkpoint

REFUSED = (FormatError, UnsupportedError)
DATA = np.arange(24, dtype=np.float32).tobytes()  # of a storage of 24 float32
GOOD = View("f32", "0", 24, (4, 6))


def one_line(error):
    assert str(error)
    assert "\n" not in str(error)
    return str(error)


# ---------------------------------------------------------------- right files


@pytest.mark.parametrize("name", ["r7-s128", "x192-4p1"])
def test_golden_checkpoints_read_exactly_as_stored(checkpoint, name, request):
    if name == "x192-4p1":
        request.getfixturevalue("fixtures")
    path = checkpoint(name)
    expected = {
        name: (dtype.lower(), shape, data)
        for name, (dtype, shape, data) in checkpoint_files.read_pth(path).items()
    }
    assert expected
    assert read_all(path) == expected
    with open_checkpoint(path) as source:
        assert source.kind == "pth"
        assert source.metadata == {}


@pytest.mark.parametrize("dtype", pth_files.STORAGES)
def test_every_storage_class_is_read(tmp_path, dtype):
    data = bytes(range(5 * pth_files.SIZES[dtype]))
    path = pth_files.write(tmp_path / "m", {"t": View(dtype, "0", 5, (5,))}, {"0": data})
    assert read_all(path) == {"t": (dtype, (5,), data)}


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((6, 4), (1, 6), 0),  # transposed
        ((2, 3), (6, 1), 0),  # a corner of [4, 6]
        ((2, 3), (12, 2), 1),  # every other row and column
        ((3,), (7,), 2),  # a diagonal
        ((2, 3, 4), (1, 2, 6), 0),
        ((4, 1, 6), (6, 99, 1), 0),  # the stride of a dimension of 1 means nothing
        ((2, 2), (0, 1), 5),  # rows that share their elements
        ((), (), 23),
        ((0, 6), (6, 1), 0),
        ((5, 0), (7, 9), 24),
    ],
)
def test_views_are_read_as_numpy_would(tmp_path, shape, strides, offset):
    path = pth_files.write(
        tmp_path / "m", {"t": View("f32", "0", 24, shape, strides, offset)}, {"0": DATA}
    )
    steps = tuple(4 * stride for stride in strides)
    values = np.frombuffer(DATA, np.float32)[offset:]
    expected = np.lib.stride_tricks.as_strided(values, shape, steps).tobytes()
    assert read_all(path) == {"t": ("f32", shape, expected)}


def test_tensors_may_share_a_storage(tmp_path):
    views = {"a": View("f32", "0", 24, (24,)), "b": View("f32", "0", 24, (6,), None, 18)}
    path = pth_files.write(tmp_path / "m", views, {"0": DATA})
    tensors = read_all(path)
    assert tensors["a"][2] == DATA
    assert tensors["b"][2] == DATA[72:]


@pytest.mark.parametrize("root", ["archive/", "model/", "a/b/", ""])
@pytest.mark.parametrize("byteorder", [b"little", None])
def test_any_root_folder_and_old_files_without_byteorder_are_read(tmp_path, root, byteorder):
    path = pth_files.write(tmp_path / "m", {"t": GOOD}, {"0": DATA}, root=root, byteorder=byteorder)
    assert read_all(path) == {"t": ("f32", (4, 6), DATA)}


def test_ordered_dicts_parameters_and_their_attributes_are_read(tmp_path):
    ordered = global_("collections", "OrderedDict") + b")R"
    parameter = call(
        global_("torch._utils", "_rebuild_parameter"), GOOD.pickled(), b"\x88", ordered
    )
    attributes = dict_({"_metadata": ordered + text("") + dict_({"version": integer(1)}) + b"s"})
    body = ordered + text("t") + parameter + b"s" + attributes + b"b"
    path = pth_files.write(tmp_path / "m", program(body), {"0": DATA})
    assert read_all(path) == {"t": ("f32", (4, 6), DATA)}


def test_memoised_protocol_2_and_4_pickles_are_read(tmp_path):
    short = b"\x8c" + bytes([len("t")]) + b"t"
    stack_global = b"\x8c\x05torch\x94\x8c\x0cFloatStorage\x94\x93\x94"
    storage = tuple_(text("storage"), stack_global, text("0"), text("cpu"), integer(24)) + b"Q"
    tensor = call(
        b"\x8c\x0ctorch._utils\x8c\x12_rebuild_tensor_v2\x93",
        storage,
        b"K\x00",
        b"K\x04K\x06\x86",
        b"K\x06K\x01\x86",
        b"\x89",
        b"N",
    )
    four = b"\x80\x04\x95" + struct.pack("<Q", 0) + b"}\x94" + short + tensor + b"s."
    assert read_all(pth_files.write(tmp_path / "a", four, {"0": DATA}))["t"][2] == DATA
    twice = GOOD.pickled() + b"q\x05s" + text("u") + b"h\x05s"
    two = program(b"}q\x00", text("t"), twice)
    assert read_all(pth_files.write(tmp_path / "b", two, {"0": DATA}))["u"][2] == DATA


def test_the_alias_of_attention_blocks_is_canonical(tmp_path):
    views = {"moba.blocks.0.ln1.weight": GOOD, "rwkv.blocks.0.ln1.weight": GOOD}
    path = pth_files.write(tmp_path / "m", views, {"0": DATA})
    assert set(read_all(path)) == {"moba.0.ln1.weight", "rwkv.blocks.0.ln1.weight"}


def test_reading_a_closed_file_is_a_typed_error(tmp_path):
    path = pth_files.write(tmp_path / "m", {"t": GOOD}, {"0": DATA})
    with open_checkpoint(path) as source:
        pass
    with pytest.raises(WkvmError):
        source.read(0)


# ---------------------------------------------------------------- programs that would do harm

EVIL = {
    "os.system": call(global_("os", "system"), text("touch {canary}")),
    "posix.system": call(global_("posix", "system"), text("touch {canary}")),
    "nt.system": call(global_("nt", "system"), text("touch {canary}")),
    "subprocess": call(global_("subprocess", "check_output"), text("touch {canary}")),
    "builtins.eval": call(global_("builtins", "eval"), text("open('{canary}', 'w')")),
    "builtins.exec": call(global_("builtins", "exec"), text("open('{canary}', 'w')")),
    "python2 eval": call(global_("__builtin__", "eval"), text("open('{canary}', 'w')")),
    "builtins.open": call(global_("builtins", "open"), text("{canary}"), text("w")),
    "io.open": call(global_("io", "open"), text("{canary}"), text("w")),
    "getattr": call(global_("builtins", "getattr"), text("a"), text("upper")),
    "import": call(global_("importlib", "import_module"), text("this")),
    "pickle.loads": call(global_("pickle", "loads"), text("x")),
    "torch.load": call(global_("torch", "load"), text("{canary}")),
    "torch.hub": call(global_("torch.hub", "load"), text("{canary}")),
    "numpy": call(global_("numpy.core.multiarray", "_reconstruct"), b"N", b"N", b"N"),
    "codecs": call(global_("_codecs", "encode"), text("x"), text("latin1")),
    "dotted": call(global_("torch._utils", "_rebuild_tensor_v2.__globals__"), b"N"),
    "dotted module": call(global_("collections.abc", "OrderedDict"), b"N"),
    "attribute of storage": call(global_("torch", "FloatStorage.from_file"), text("{canary}")),
    "another function": call(global_("torch._utils", "_rebuild_tensor"), b"N"),
    "stack global": b"\x8c\x02os\x8c\x06system\x93" + tuple_(text("touch {canary}")) + b"R",
    "stack global of objects": b"}}\x93",
    "INST": b"(" + text("touch {canary}") + b"ios\nsystem\n",
    "OBJ": b"(" + global_("os", "system") + text("touch {canary}") + b"o",
    "NEWOBJ": global_("collections", "OrderedDict") + b")\x81",
    "NEWOBJ_EX": global_("collections", "OrderedDict") + b")}\x92",
    "EXT1": b"\x82\x01",
    "EXT2": b"\x83\x01\x00",
    "EXT4": b"\x84\x01\x00\x00\x00",
    "BYTEARRAY8": b"\x96" + struct.pack("<Q", 1) + b"x",
    "NEXT_BUFFER": b"\x97",
    "PERSID": b"P0\n",
    "textual int": b"I1\n",
    "textual long": b"L1L\n",
    "long4": b"\x8b" + struct.pack("<i", 1) + b"\x01",
    "set": b"\x8f",
    "DUP": b"}2",
    "call of a tensor": GOOD.pickled() + b")R",
    "call of a string": text("os") + b")R",
    "OrderedDict of arguments": call(global_("collections", "OrderedDict"), text("x")),
    "storage called": global_("torch", "FloatStorage") + b")R",
    "storage of a function": tuple_(
        text("storage"), global_("collections", "OrderedDict"), text("0"), text("cpu"), integer(1)
    )
    + b"Q",
    "storage of a module": tuple_(text("module"), text("a"), text("0"), text("cpu"), b"N") + b"Q",
    "build on a tensor": GOOD.pickled() + b"}b",
    "tensor of a string": call(
        global_("torch._utils", "_rebuild_tensor_v2"), text("s"), integer(0), b")", b")"
    ),
    "bool as a length": call(
        global_("torch._utils", "_rebuild_tensor_v2"), b"N", b"\x88", b")", b")"
    ),
}


@pytest.mark.parametrize("where", ["value", "alone", "attribute"])
@pytest.mark.parametrize("name", EVIL)
def test_nothing_a_pickle_asks_for_is_run(tmp_path, name, where):
    canary = tmp_path / "canary"
    # The length of a string stands before it: keep it right when the path goes in.
    filler = str(canary).encode()
    evil = EVIL[name]
    for template in (b"touch {canary}", b"open('{canary}', 'w')", b"{canary}"):
        real = template.replace(b"{canary}", filler)
        evil = evil.replace(
            b"X" + struct.pack("<I", len(template)) + template,
            b"X" + struct.pack("<I", len(real)) + real,
        )
    assert b"{canary}" not in evil
    body = {
        "value": b"}" + text("t") + evil + b"s",
        "alone": evil,
        "attribute": global_("collections", "OrderedDict") + b")R" + evil + b"b",
    }[where]
    path = pth_files.write(tmp_path / "m.pth", program(body), {"0": DATA})
    with pytest.raises(FormatError, match=r"m\.pth") as info:
        open_checkpoint(path)
    one_line(info.value)
    assert not canary.exists()


def test_the_evil_pickles_would_work_elsewhere(tmp_path):
    canary = tmp_path / "canary"
    pickle.loads(program(call(global_("builtins", "open"), text(str(canary)), text("w")))).close()
    assert canary.exists()


def test_the_refused_global_is_named(tmp_path):
    path = pth_files.write(tmp_path / "m", program(EVIL["os.system"]), {})
    with pytest.raises(FormatError, match=r"os\.system.*do not trust this file"):
        open_checkpoint(path)


# ---------------------------------------------------------------- wrong pickles

WRONG_PICKLES = {
    "empty": b"",
    "no stop": b"\x80\x02}",
    "only stop": b".",
    "stack underflow": program(b"R"),
    "tuple of too few": program(b"K\x01\x86"),
    "tuple over a mark": program(b"K\x01(K\x02\x86"),
    "mark without end": program(b"("),
    "items without a mark": program(b"}u"),
    "odd items": program(b"}(", text("a"), b"u"),
    "item of a list": program(b"]", text("a"), b"Ns"),
    "append to a dict": program(b"}Na"),
    "appends to a tuple": program(b")(Ne"),
    "memo of nothing": program(b"q\x00"),
    "memo never put": program(b"h\x07"),
    "memo never put, long": program(b"j\xff\xff\xff\x7f"),
    "unknown opcode": program(b"\xfe"),
    "protocol 9": b"\x80\x09}.",
    "truncated string": b"\x80\x02X\xff\xff\xff\x7fabc",
    "truncated int": b"\x80\x02J\x01",
    "truncated global": b"\x80\x02ctorch\nFloat",
    "global without module": program(b"c\n\n"),
    "not utf-8": program(b"X\x01\x00\x00\x00\xff"),
    "persistent id of one": program(text("storage"), b"Q"),
    "persistent id of four": program(tuple_(text("storage"), b"N", b"N", b"N"), b"Q"),
    "key is a number": program(
        tuple_(
            text("storage"), global_("torch", "FloatStorage"), integer(0), text("cpu"), integer(24)
        ),
        b"Q",
    ),
    "key of a dict is an int": program(b"}", integer(1), GOOD.pickled(), b"s"),
    "key of a dict is None": program(b"}N", GOOD.pickled(), b"s"),
    "key of a dict is a list": program(b"}]", GOOD.pickled(), b"s"),
    "name twice": program(b"}", *(2 * [text("t") + GOOD.pickled() + b"s"])),
    "name with a newline": program(dict_({"a\nb": GOOD.pickled()})),
    "name with a zero byte": program(dict_({"a\0b": GOOD.pickled()})),
    "name with a surrogate": program(b"}", text("\ud800"), GOOD.pickled(), b"s"),
    "value is a number": program(dict_({"t": integer(3)})),
    "value is None": program(dict_({"t": b"N"})),
    "value is a storage": program(
        dict_(
            {
                "t": tuple_(
                    text("storage"),
                    global_("torch", "FloatStorage"),
                    text("0"),
                    text("cpu"),
                    integer(24),
                )
                + b"Q"
            }
        )
    ),
    "nested state dict": program(dict_({"model": dict_({"t": GOOD.pickled()})})),
    "a list": program(b"]"),
    "a tensor": program(GOOD.pickled()),
    "None": program(b"N"),
    "alias and canonical": program(
        dict_({"moba.blocks.0.x": GOOD.pickled(), "moba.0.x": GOOD.pickled()})
    ),
}


@pytest.mark.parametrize("name", WRONG_PICKLES)
def test_a_wrong_pickle_is_refused(tmp_path, name):
    path = pth_files.write(tmp_path / "m.pth", WRONG_PICKLES[name], {"0": DATA})
    with pytest.raises(FormatError, match=r"m\.pth") as info:
        open_checkpoint(path)
    one_line(info.value)


WRONG_VIEWS = {
    "shape too large": View("f32", "0", 24, (5, 6)),
    "offset too large": View("f32", "0", 24, (4, 6), None, 1),
    "offset far away": View("f32", "0", 24, (1,), None, 2**62),
    "stride too large": View("f32", "0", 24, (2, 2), (23, 1)),
    "stride far away": View("f32", "0", 24, (2,), (2**62,)),
    "expanded": View("f32", "0", 24, (100,), (0,)),
    "expanded beyond memory": View("f32", "0", 24, (2**40, 2**40), (0, 0)),
    "negative shape": View("f32", "0", 24, (-1,)),
    "negative stride": View("f32", "0", 24, (4, 6), (6, -1)),
    "negative offset": View("f32", "0", 24, (4,), None, -4),
    "negative storage": View("f32", "0", -24, (0,)),
    "shape beyond 64 bits": View("f32", "0", 24, (2**64,)),
    "storage beyond 64 bits": View("f32", "0", 2**70, (1,)),
    "nine dimensions": View("f32", "0", 24, (1,) * 9),
    "fewer strides than sides": View("f32", "0", 24, (4, 6), (6,)),
    "more strides than sides": View("f32", "0", 24, (4,), (6, 1)),
    "storage claims more": View("f32", "0", 25, (1,)),
    "storage claims less": View("f32", "0", 23, (1,)),
    "storage claims terabytes": View("f32", "0", 2**42, (2**42,)),
    "storage of another type": View("f16", "0", 24, (24,)),
    "missing storage": View("f32", "1", 24, (24,)),
    "storage above the archive": View("f32", "../../../../etc/passwd", 24, (24,)),
    "absolute storage": View("f32", "/etc/passwd", 24, (24,)),
    "storage is the pickle": View("u8", "../data.pkl", 24, (24,)),
    "storage without a name": View("f32", "", 24, (24,)),
}


@pytest.mark.parametrize("name", WRONG_VIEWS)
def test_a_view_beyond_its_storage_is_refused_by_name(tmp_path, name):
    path = pth_files.write(tmp_path / "m.pth", {"weight": WRONG_VIEWS[name]}, {"0": DATA})
    with pytest.raises(FormatError, match=r"m\.pth") as info:
        open_checkpoint(path)
    one_line(info.value)


# ---------------------------------------------------------------- wrong archives


def test_a_compressed_archive_is_refused_with_the_remedy(tmp_path):
    path = pth_files.write(
        tmp_path / "m", {"t": GOOD}, {"0": DATA}, compression=zipfile.ZIP_DEFLATED
    )
    with pytest.raises(FormatError, match="compressed; load and save the file with PyTorch"):
        open_checkpoint(path)


@pytest.mark.parametrize("byteorder", [b"big", b"", b"little\n", b"x" * 100])
def test_a_foreign_byte_order_is_refused(tmp_path, byteorder):
    path = pth_files.write(tmp_path / "m", {"t": GOOD}, {"0": DATA}, byteorder=byteorder)
    with pytest.raises(FormatError, match=r"byteorder|byte order"):
        open_checkpoint(path)


def test_other_zip_files_are_refused_as_such(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.zeros(3))
    with pytest.raises(FormatError, match="not a PyTorch checkpoint"):
        open_checkpoint(tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "two", "w") as archive:
        archive.writestr("a/data.pkl", b"")
        archive.writestr("b/data.pkl", b"")
    with pytest.raises(FormatError, match="not a PyTorch checkpoint"):
        open_checkpoint(tmp_path / "two")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_of_one_name_are_refused(tmp_path):
    path = pth_files.write(tmp_path / "m", {"t": GOOD}, {"0": DATA})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/data/0", bytes(96))
    with pytest.raises(FormatError, match="same name"):
        open_checkpoint(path)


def test_a_flipped_bit_in_a_storage_is_found(tmp_path):
    path = pth_files.write(tmp_path / "m", {"t": GOOD}, {"0": DATA})
    content = bytearray(path.read_bytes())
    content[content.index(DATA) + 50] ^= 4
    path.write_bytes(content)
    with open_checkpoint(path) as source, pytest.raises(FormatError, match="tensor t is damaged"):
        source.read(0)


def test_every_truncation_is_refused(tmp_path):
    whole = pth_files.write(tmp_path / "m", {"t": GOOD}, {"0": DATA}).read_bytes()
    path = tmp_path / "cut.pth"
    lengths = range(len(whole))
    assert len(lengths) > 200
    for length in lengths:
        path.write_bytes(whole[:length])
        with pytest.raises(REFUSED) as info:
            read_all(path)
        assert "cut.pth" in one_line(info.value)


def test_any_damage_is_a_typed_error_or_harmless(tmp_path):
    view = View("f32", "0", 24, (6, 4), (1, 6))
    whole = pth_files.write(tmp_path / "m", {"t": view, "u": GOOD}, {"0": DATA}).read_bytes()
    path = tmp_path / "damaged.pth"
    dice = random.Random(7)
    n_refused = 0
    for _ in range(1000):
        damaged = bytearray(whole)
        for _ in range(dice.choice([1, 1, 1, 2, 8])):
            place = dice.randrange(len(damaged))
            damaged[place] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
        path.write_bytes(damaged)
        try:
            for dtype, shape, data in read_all(path).values():
                assert len(data) <= len(DATA)
                assert len(data) == np.prod(shape) * {"f32": 4, "i32": 4}.get(dtype, 4)
        except (*REFUSED, FileError):
            n_refused += 1
    assert n_refused > 300


# ---------------------------------------------------------------- memory


def claims(folder):
    """Files that claim, ask for, or unpack to more than they are."""
    write = pth_files.write
    write(folder / "memo", program(b"]r\xff\xff\xff\x7f"), {})
    write(folder / "bytes8", program(b"\x8e" + struct.pack("<Q", 1 << 40)), {})
    write(folder / "unicode8", program(b"\x8d" + struct.pack("<Q", 1 << 40)), {})
    write(folder / "unicode4", program(b"X\xff\xff\xff\xff"), {})
    write(folder / "frame", b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"}", {})
    write(folder / "long4", program(b"\x8b\xff\xff\xff\x7f"), {})
    write(folder / "lists", program(b"]" * (15 << 20)), {})
    write(folder / "marks", program(b"(" * (15 << 20)), {})
    write(folder / "nested", program(b"]" + b"]a" * 5_000), {})
    write(folder / "deep_tuples", program(b")" + b"\x85" * 450_000), {})
    write(folder / "deep_key", program(b"})" + b"\x85" * 450_000 + b"Ns"), {})
    write(folder / "deep_global", program(b")" + b"\x85" * 450_000 + text("x") + b"\x93"), {})
    write(folder / "doubling", program(b"]" + b"q\0(h\0h\0t" * 60), {})
    write(folder / "long_pickle", bytes(17 << 20), {})
    write(folder / "bomb", bytes(256 << 20), {}, compression=zipfile.ZIP_DEFLATED)
    write(folder / "sizes", {"t": View("f32", "0", 2**42, (2**42,))}, {"0": DATA})
    whole = write(folder / "directory", {"t": GOOD}, {"0": DATA}).read_bytes()
    end = whole.index(b"PK\x05\x06")
    with (folder / "directory").open("wb") as file:  # a directory of 3 GiB, most of it a hole
        file.write(whole[:end])
        file.truncate(3 << 30)
        file.seek(3 << 30)
        file.write(whole[end : 12 + end] + struct.pack("<II", (3 << 30) - 4096, 4096) + b"\0\0")
    with zipfile.ZipFile(folder / "members", "w") as archive:
        for i in range(20_000):
            archive.writestr(f"archive/data/{i}", b"")


def test_claims_do_not_become_memory(tmp_path):
    folder = tmp_path / "claims"
    folder.mkdir()
    claims(folder)
    script = textwrap.dedent("""
        import re, resource, sys
        from pathlib import Path
        from wkvm.errors import FormatError
        from wkvm.formats.open import open_checkpoint
        used = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
        limit = used + (200 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for path in sorted(Path(sys.argv[1]).iterdir()):
            try:
                open_checkpoint(path)
                print(path.name, "opened")
            except FormatError as error:
                print(path.name, "refused:", str(error)[:200])
            except BaseException as error:
                print(path.name, "FAILED:", repr(error)[:200])
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert len(lines) == len(list(folder.iterdir()))
    assert [line for line in lines if " refused: " not in line] == []


def test_a_checkpoint_is_read_in_the_memory_of_its_largest_tensor(tmp_path):
    n, size = 40, 8 << 20
    data = bytes(size)
    path = pth_files.write(
        tmp_path / "m",
        {f"t{i}": View("u8", str(i), size, (size,)) for i in range(n)},
        {str(i): data for i in range(n)},
    )
    script = textwrap.dedent("""
        import resource, sys
        from wkvm.formats.open import open_checkpoint
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        with open_checkpoint(sys.argv[1]) as source:
            source.read(0)
            before = peak()
            for i in range(len(source.tensors)):
                source.read(i)
                source.evict(i)
            print(peak() - before)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 4 * size  # of 40 * size
