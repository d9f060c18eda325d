"""Every bench that needs no peer runs to its end, on models that take seconds.

What it measures is not judged here: a claim may be missed. Its checks are, and its report.
"""

import json
import math
import os
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def report_of(bench, folder, *arguments, **environment):
    """The JSON report of a bench; every number in it must be finite."""
    file = folder / "report.json"
    finished = subprocess.run(
        [sys.executable, ROOT / "bench" / f"{bench}.py", *arguments, "--json", file],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )
    assert finished.returncode in (0, 1), finished.stderr
    assert "Traceback" not in finished.stderr
    report = json.loads(file.read_text())
    assert report["results"]
    assert [n for n in numbers(report) if not math.isfinite(n)] == []
    if finished.returncode == 1:
        assert any(not claim["holds"] for claim in report["claims"])
    return report


def numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for entry in value for number in numbers(entry)]
    return [value] if isinstance(value, int | float) else []


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("bench", ["bench_decode", "bench_open", "bench_convert", "bench_step"])
def test_a_bench_runs_to_its_end(bench, models, tmp_path):
    report = report_of(bench, tmp_path, "--shape", "smoke", "--dir", models)
    assert f"bench_{report['bench']}" == bench
    assert report["shape"] == "smoke"


def test_the_bench_of_int8_runs_to_its_end(fixtures, tmp_path):
    report = report_of("bench_int8", tmp_path, WKVM_FIXTURES=str(fixtures))
    assert len(report["results"]) == 6
    for result in report["results"].values():
        assert 0 < result["mean_kl"] < 0.1
        assert 0.5 < result["top1"] <= 1
