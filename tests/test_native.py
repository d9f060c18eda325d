"""The native tests, built from the sources beside this file, and run by ctest.

They need CMake and Ninja, which the extra "test" brings, and a C++ compiler.
"""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from conftest import ROOT

PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])


def run(*command: str | Path) -> None:
    finished = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PATH": PATH},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout


def build_and_run(preset: str, build: Path) -> None:
    for tool in ("cmake", "ninja", os.environ.get("CXX", "c++")):
        if shutil.which(tool, path=PATH) is None:
            pytest.skip(f"the native tests need {tool}")
    run("cmake", "--preset", preset, "-B", build)
    run("cmake", "--build", build, "--parallel", "2")
    run("ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error")


@pytest.mark.timeout(600)
def test_the_native_tests_pass(tmp_path):
    build_and_run("release", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("preset", ["asan", "tsan"])
def test_the_native_tests_pass_under_sanitizers(preset, tmp_path):
    build_and_run(preset, tmp_path)
