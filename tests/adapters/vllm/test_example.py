"""The example runs with vLLM as its users start it: an engine in several processes. Without vLLM: test_examples.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vllm is not installed")

EXAMPLE = Path(__file__).parents[3] / "examples" / "kv_vllm.py"


def test_the_second_engine_begins_with_what_the_first_computed(home: Path) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^engine (\d): (\d+) of 500 tokens were there, .* answer (.*)$", done.stdout, re.M)
    assert [(number, cached) for number, cached, _ in lines] == [("0", "0"), ("0", "480"), ("1", "480"), ("1", "480")]
    assert [answer for *_, answer in lines[:2]] == [answer for *_, answer in lines[2:]]
