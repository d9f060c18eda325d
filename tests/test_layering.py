"""Each layer knows only the ones below it: read from the imports and the includes themselves."""

import ast
import re
import sys
from pathlib import Path

import pytest
from conftest import ROOT

# Package or module of src/wkvm -> the ones it may import. Those that stand lower stand first;
# `formats` and `text` are leaves. Nothing imports cli, but __main__ to start it.
PYTHON = {
    "errors": set(),
    "_version": set(),
    "_engine": {"errors"},
    "_kernels": {"errors"},
    "bundled": {"errors"},
    "formats": {"errors", "_engine"},
    "hub": {"errors", "formats"},
    "text": {"errors", "_engine"},
    "backends": {"errors", "_engine", "formats", "text"},
    "hypervisor": {"errors", "_engine", "bundled", "formats", "text", "backends"},
    "server": {"errors", "_engine", "formats", "text", "backends", "hypervisor", ""},
    "cli": {
        "errors",
        "_engine",
        "bundled",
        "formats",
        "hub",
        "text",
        "backends",
        "hypervisor",
        "server",
        "",
    },
    "": {"errors", "_version", "_engine", "bundled", "formats", "text", "backends", "hypervisor"},
    "__main__": {"cli"},
}
# What else, beside the standard library, these may import.
THIRD_PARTY = {
    "formats": {"numpy"},
    "hub": {"huggingface_hub"},
    "text": {"numpy", "jinja2"},
    "_engine": {"numpy", "libc", "cpython"},
}

# Folder of native/ -> the folders it may include from. "api" is include/wkvm.h.
NATIVE = {
    "include": set(),
    "kernels": {"api"},
    "core": {"api", "kernels"},
    "bindings": {"api", "kernels", "core"},
    "cli": {"api"},
    "tests": {"api", "kernels", "core"},
    "fuzz": {"api", "kernels", "core", "tests"},
    "cuda": set(),
}


def imported_modules(path: Path) -> list[str]:
    """Absolute dotted names of everything that a Python or Cython file imports, at any depth."""
    package = ["wkvm", *path.relative_to(_package_root(path)).parent.parts]
    text = path.read_text()
    names: list[str] = []
    if path.suffix == ".pyx":
        for line in text.splitlines():
            if match := re.match(r"\s*(?:from\s+([\w.]+)\s+)?c?import\s+([\w., ]+)", line):
                words = [word.split()[0] for word in match[2].split(",")]
                names += [f"{match[1]}.{word}" if match[1] else word for word in words]
        return names
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join(base + (node.module.split(".") if node.module else []))
            names += [f"{module}.{alias.name}" for alias in node.names]
    return names


def _package_root(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.name == "wkvm")


def python_violations(package: Path) -> list[str]:
    """`package` is a folder called wkvm."""
    found = []
    layers = {entry.stem for entry in package.iterdir() if entry.suffix in ("", ".py", ".pyx")}
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.pyx")]):
        layer = path.relative_to(package).parts[0].split(".")[0].replace("__init__", "")
        where = path.relative_to(package)
        if layer not in PYTHON:
            found.append(f"{where}: {layer} has no place in the table of layers")
            continue
        for name in imported_modules(path):
            first, *rest = name.split(".")
            if first == "wkvm":
                target = rest[0] if rest and rest[0] in layers else ""
                if target not in PYTHON[layer] | {layer}:
                    found.append(f"{where}: imports {name}")
            elif layer in THIRD_PARTY and first not in THIRD_PARTY[layer] | STDLIB:
                found.append(f"{where}: imports {name}")
    return found


STDLIB = set(sys.stdlib_module_names)


def native_violations(native: Path) -> list[str]:
    found = []
    for path in sorted(native.rglob("*")):
        if path.suffix not in (".h", ".cc", ".cpp", ".cu", ".c"):
            continue
        where = path.relative_to(native)
        folder = where.parts[0]
        if folder not in NATIVE:
            found.append(f"{where}: {folder} has no place in the table of layers")
            continue
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.MULTILINE):
            target = resolve_include(native, path, name)
            if target is None:
                found.append(f"{where}: includes {name}, which is nowhere")
            else:
                layer = "api" if target.parts[0] == "include" else target.parts[0]
                if layer not in NATIVE[folder] | {folder}:
                    found.append(f"{where}: includes {name}")
        for name in re.findall(r"^\s*#\s*include\s*<([^>]+)>", path.read_text(), re.MULTILINE):
            if (native / name).exists() or (native / "include" / name).exists():
                found.append(f"{where}: includes our {name} as a system header")
    return found


def resolve_include(native: Path, path: Path, name: str) -> Path | None:
    for base in (path.parent, native, native / "include"):
        target = (base / name).resolve()
        if target.is_file() and target.is_relative_to(native.resolve()):
            return target.relative_to(native.resolve())
    return None


def test_python_layers_import_downwards():
    assert python_violations(ROOT / "src" / "wkvm") == []


def test_native_layers_include_downwards():
    assert native_violations(ROOT / "native") == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("formats/pth.py", "from wkvm.backends import cpu"),
        ("formats/pth.py", "from ..text import tokenizer"),
        ("formats/pth.py", "import torch"),
        ("formats/pth.py", "def f():\n    import safetensors.torch"),
        ("text/stop.py", "from wkvm import backends"),
        ("text/stop.py", "from .. import load"),
        ("backends/cpu.py", "import wkvm.hypervisor.session"),
        ("hypervisor/session.py", "from ..cli import main"),
        ("errors.py", "from wkvm import _engine"),
        ("_engine.pyx", "from wkvm.formats import pth"),
        ("_engine.pyx", "from wkvm import errors, formats"),
        ("_engine.pyx", "cimport torch"),
        ("__init__.py", "from wkvm.cli.main import main"),
        ("surprise/x.py", "import os"),
    ],
)
def test_a_planted_python_violation_is_found(tmp_path, file, line):
    package = tmp_path / "wkvm"
    for layer in ("formats", "text", "backends", "hypervisor", "cli"):
        (package / layer).mkdir(parents=True)
        (package / layer / "__init__.py").write_text("import os\nfrom wkvm import errors\n")
    (package / "errors.py").write_text("")
    (package / "_engine.pyx").write_text("cimport numpy as cnp\nfrom wkvm import errors\n")
    assert python_violations(package) == []
    target = package / file
    target.parent.mkdir(exist_ok=True)
    target.write_text(line + "\n")
    assert len(python_violations(package)) == 1


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("kernels/a.cc", '#include "core/model.h"'),
        ("kernels/a.cc", '#include "core/error.h"'),
        ("kernels/a.cc", '#include "../core/model.h"'),
        ("core/a.cc", '#include "cli/run.h"'),
        ("core/a.cc", '# include "bindings/kernels.h"'),
        ("core/a.cc", '#include "tests/check.h"'),
        ("core/a.cc", "#include <core/model.h>"),
        ("core/a.cc", '#include "core/missing.h"'),
        ("cli/a.cc", '#include "core/model.h"'),
        ("cli/a.cc", '#include "kernels/kernels.h"'),
        ("surprise/a.cc", '#include "wkvm.h"'),
    ],
)
def test_a_planted_native_violation_is_found(tmp_path, file, line):
    for header in (
        "include/wkvm.h",
        "core/error.h",
        "core/model.h",
        "cli/run.h",
        "bindings/kernels.h",
        "kernels/kernels.h",
        "tests/check.h",
    ):
        (tmp_path / header).parent.mkdir(exist_ok=True)
        (tmp_path / header).write_text("#include <cstdint>\n")
    (tmp_path / "kernels" / "b.cc").write_text('#include "kernels.h"\n#include "wkvm.h"\n')
    (tmp_path / "core" / "b.cc").write_text('#include "kernels/kernels.h"\n#include "wkvm.h"\n')
    assert native_violations(tmp_path) == []
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(line + "\n")
    assert len(native_violations(tmp_path)) == 1
