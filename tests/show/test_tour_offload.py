"""The tour's chapter on offload where there is no torch; with it, tests/cli/test_commands.py runs the whole tour."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
    assert "pip install torch" in json.loads(done.stdout)["offload"]["skipped"]
    assert "Left out" in done.stderr
    assert "openshelf tour --chapter offload" in done.stderr, "how to get it"


def test_plan_without_torch_is_one_line() -> None:
    done = without_torch("plan", "model.py", "--budget", "1MiB")
    assert done.returncode == 1
    assert "pip install torch" in done.stderr
    assert done.stderr.count("\n") == 1


def steps(*arguments: str, environment: Path) -> str:
    """What make would do in an environment that is not there yet."""
    command = ["make", "--dry-run", "--no-print-directory", f"VENV={environment}", "tour", *arguments]
    return subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True).stdout


def test_make_tour_brings_torch_and_shows_its_progress_unless_it_is_to_be_light(tmp_path: Path) -> None:
    (install,) = (line for line in steps(environment=tmp_path).splitlines() if "torch|highspy" in line)
    assert "pip install -r" in install, "without -q, which hides the progress"
    assert "torch|" not in steps("LIGHT=1", environment=tmp_path)
