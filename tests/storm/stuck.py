"""Where a process is: Python's stack, if it tells it, and what the kernel and a debugger say of its threads."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path


def where_is(pid: int) -> str:
    """A text for a failure; the process is not harmed. Python's stack goes to the process's own standard error."""
    lines = [f"process {pid}: {_read(Path(f'/proc/{pid}/cmdline')).replace(chr(0), ' ')[:200]}"]
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        state = next((line for line in _read(task / "status").splitlines() if line.startswith("State")), "gone")
        facts = [f"{name}: {_read(task / name)}" for name in ("comm", "wchan", "syscall")]
        lines.append(f"  thread {task.name}, {state}, " + ", ".join(facts))
        lines += [f"    {line}" for line in _read(task / "stack").splitlines()]
    if gdb := shutil.which("gdb"):
        command = [gdb, "-p", str(pid), "-batch", "-nx", "-ex", "thread apply all bt 30"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            lines += [line for line in done.stdout.splitlines() if line.startswith(("#", "Thread"))]
    return "\n".join(lines)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        return f"({error.strerror})"
