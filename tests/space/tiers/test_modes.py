"""The same tests as a user without privileges, whose faults are for user mode only, and as if the kernel were older."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import needs_root
from tests.elf import sanitizer_environment

ROOT = Path(__file__).parents[3]
FILES = ("test_arrays.py", "test_handles.py", "test_errors.py")
WHICH = (
    "views or another_process or store or touch_of or pin_makes or pressure or forked"  # what faults have to do with
)


@needs_root
def test_arrays_as_a_user_whose_system_calls_do_not_wait() -> None:
    setting, device = Path("/proc/sys/vm/unprivileged_userfaultfd"), Path("/dev/userfaultfd")
    if not setting.exists() or setting.read_text().strip() != "0":
        pytest.skip("every user has faults of all kinds here, or nobody has")
    if shutil.which("setpriv") is None or (device.exists() and device.stat().st_mode & 0o006):
        pytest.skip("no user can be made that has faults for user mode only")
    user = pwd.getpwnam("nobody")
    home = Path(tempfile.mkdtemp(prefix="openshelf-nobody-"))
    os.chown(home, user.pw_uid, user.pw_gid)
    # It may read everything, as this installation may be in a home of somebody else's, and nothing more.
    command = ["setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
    command += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    try:
        passed = _run(command, FILES, WHICH, home, OPENSHELF_TEST_FAULTS="user")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert "PASSED tests/space/tiers/test_handles.py::test_pin_makes_bytes_fit_for_system_calls[user]" in passed


@pytest.mark.parametrize("version", ["6.1", "6.4"])
def test_arrays_as_if_the_kernel_were_older(version: str, tmp_path: Path) -> None:
    """Found once in a process: so in others."""
    which, files = ("touch_of", ("test_errors.py",)) if version == "6.4" else (WHICH, FILES)
    passed = _run([], files, which, tmp_path, OPENSHELF_TEST_FAULTS="full", OPENSHELF_FAULTS=version)
    assert "[full]" in passed or "userfaultfd gives" in passed


def _run(command: list[str], files: tuple[str, ...], which: str, home: Path, **variables: str) -> str:
    command = [*command, sys.executable, "-m", "pytest", "-rA", "-k", which, "--basetemp", str(home / "tests")]
    command += [str(ROOT / "tests" / "space" / "tiers" / name) for name in files]
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1",
        **sanitizer_environment(), **variables,
    }  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout
