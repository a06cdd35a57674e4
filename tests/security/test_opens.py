"""Nothing opens a file by name but the two functions that look at what they got; every other place gives a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import openshelf

PACKAGE = Path(openshelf.__file__).parent
NATIVE = Path(__file__).parents[2] / "native"

NAMED = "the caller names the file, to be read or written as by any other program"
OFFLOAD = "tests/security has the attacks of offload's own functions"
KERNEL = "the kernel's"
PACKAGED = "comes with the package"
# Whatever opens files, and why that cannot be used by somebody who prepared one. How many: a new one needs a reason.
EXCEPTIONS = {
    "_files.py": (4, "this is the function, folders, what is only locked, and the kernel's"),
    "_keeper.py": (1, KERNEL),  # /dev/null
    "cli/__init__.py": (3, "the kernel's, and what is open already"),
    "cli/top.py": (1, KERNEL),
    "cli/fabric/fit.py": (2, NAMED),
    "cli/fabric/__init__.py": (2, NAMED),
    "cli/plan.py": (1, NAMED),
    "cli/twin/__init__.py": (1, NAMED),
    "cli/twin/serve.py": (2, NAMED),
    "fabric/include.py": (1, NAMED),
    "fabric/wiring/media.py": (1, PACKAGED),
    "fabric/calibration/csv_tables.py": (1, NAMED),
    "fabric/calibration/nccl.py": (1, NAMED),
    "fabric/probe/run.py": (1, KERNEL),
    "fabric/probe/disk.py": (1, KERNEL),
    "fabric/probe/memory.py": (4, KERNEL),
    "fabric/wiring/protocols.py": (1, PACKAGED),
    "fabric/wiring/wires.py": (1, PACKAGED),
    "show/serving.py": (1, NAMED),
    "show/trace.py": (1, NAMED),
    "show/twin_trace.py": (1, NAMED),
    "show/tour/orders.py": (2, "in a private temporary directory"),
    "show/tour/two_hosts.py": (1, "in a private temporary directory"),
    "space/hosts/start_keeper.py": (1, KERNEL),
    "space/create/backing.py": (1, KERNEL),
    "space/create/registry.py": (
        3,
        "the kernel's, and a folder of which only the name is looked at",
    ),
    "space/space.py": (2, KERNEL),
    "space/devices/host.py": (1, KERNEL),
    "tables/checkpoint.py": (2, NAMED),
    "tables/files.py": (4, NAMED),
    "twin/chakra.py": (2, NAMED),
    "cli/twin/train.py": (1, NAMED),
    "twin/ops/accelerators.py": (1, PACKAGED),
    "twin/ops/fit.py": (1, NAMED),
    "twin/ops/laws.py": (1, PACKAGED),
    "twin/ops/table.py": (1, NAMED),
    "twin/ops/transformer.py": (1, NAMED),
    "workloads/train/constants.py": (2, PACKAGED),
    "twin/serve/law.py": (1, PACKAGED),
    "twin/serve/model.py": (1, "in the package"),
    "twin/serve/sweep.py": (2, NAMED),
}
THEIRS = ("offload/", "adapters/")  # whose own tests have their attacks
METHODS = {"read_text", "read_bytes", "write_text", "write_bytes"}


def opens(source: str) -> int:
    """How many calls of a file open files by name."""
    count = 0
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name):
            count += called.id == "open"
        elif isinstance(called, ast.Attribute):
            of_os = isinstance(called.value, ast.Name) and called.value.id in ("os", "io", "builtins")
            mode = (
                bool(node.args)
                and isinstance(node.args[0], ast.Constant)
                and node.args[0].value in ("rb", "wb", "r", "w", "a", "r+b")
            )
            count += called.attr in METHODS or (called.attr == "open" and (of_os or mode))
    return count


def test_python_opens_files_in_one_place_or_for_a_reason() -> None:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if not name.startswith(THEIRS) and (count := opens(path.read_text())):
            found[name] = count
    assert found == {name: count for name, (count, _) in EXCEPTIONS.items()}


def test_the_search_sees_what_it_looks_for() -> None:
    assert opens("open('x')\nos.open(p, 0)\np.open('rb')\np.read_text()\nSpace.open(name)\nwire.open()") == 4


def test_native_code_opens_files_in_one_place() -> None:
    calls = re.compile(r"(?<![\w>.])(::open(at2?)?|open64|openat|::creat|f(re)?open|shm_open)\(|std::[io]?fstream\b")
    of_the_kernel = ("/dev/userfaultfd", "/proc/self/smaps")
    found = set()
    for path in NATIVE.glob("*/*.[ch]pp"):
        if any(calls.search(line) and not any(name in line for name in of_the_kernel) for line in path.open()):
            found.add(path.name)
    assert found == {"trusted.cpp"}
