"""The tour's chapter on offload where there is no torch; with it, tests/cli/test_commands.py runs the whole tour."""

from __future__ import annotations

import json
import subprocess
import sys

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
from openshelf.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without_torch(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *args], capture_output=True, text=True, timeout=60)


def test_chapter_is_left_out_with_a_reason() -> None:
    done = without_torch("tour", "--chapter", "offload", "--json")
    assert done.returncode == 0, done.stderr
    assert "openshelf[torch]" in json.loads(done.stdout)["offload"]["skipped"]
    assert "Left out" in done.stderr


def test_plan_without_torch_is_one_line() -> None:
    done = without_torch("plan", "model.py", "--budget", "1MiB")
    assert done.returncode == 1
    assert "openshelf[torch]" in done.stderr
    assert done.stderr.count("\n") == 1
