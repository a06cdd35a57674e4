"""The tree is the architecture: imports go down only, into what a package shows, and each layer exists."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import openshelf
from tests.imports import imports_of

PACKAGE = Path(openshelf.__file__).parent
ROOT = Path(__file__).parents[1]
LAYERS = (
    "errors",
    "_core",
    "_files",
    "_sizes",
    "_texts",
    "_dtypes",
    "membership",
    "_keeper",
    "fabric",
    "space",
    "twin",
    "offload",
    "kv",
    "tables",
    "workloads",
    "adapters",
    "show",
    "cli",
)
# Packages inside a layer that show names of their own. Everything else below a layer is that layer's business.
ROOMS = ("create", "hosts", "locality")  # of space, low to high
SHOWN = (
    "adapters.ray",
    "adapters.torchrec",
    "adapters.transformers",
    "adapters.vllm",
    "fabric.topologies",
    "show.tour",
    "twin.ops",
    "twin.serve",
    "workloads.train",
)

PUBLIC = {
    "Array",
    "Atomic",
    "Barrier",
    "Channel",
    "Counter",
    "Fabric",
    "Folder",
    "KVPool",
    "Layout",
    "Lock",
    "OpenshelfError",
    "Space",
    "Table",
    "Transfer",
    "Where",
    "spaces",
}


def layer_of(module: str) -> int | None:
    """The layer of openshelf.<layer>...; None for the package itself and for anything else."""
    parts = module.split(".")
    return LAYERS.index(parts[1]) if parts[0] == "openshelf" and len(parts) > 1 else None


def upward(source: str, module: str) -> set[str]:
    own = layer_of(module)
    return {
        target
        for target in imports_of(source, module)
        if own is not None and (layer := layer_of(target)) is not None and layer > own
    }


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def deep(source: str, module: str) -> set[str]:
    """Modules inside other layers that a file imports, where it should import a name that the layer shows."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            base = node.module or ""
            inside = {f"{base}.{name.name}" for name in node.names if f"{base}.{name.name}" not in _named(base)}
            found |= {base} | {name for name in inside if is_module(name)}
    own = module.split(".")[:2]
    return {
        target
        for target in found
        if target.startswith("openshelf.")
        and target.count(".") > 1
        and target.split(".")[:2] != own
        and target.removeprefix("openshelf.") not in SHOWN
    }


def _named(package: str) -> set[str]:
    """What a package shows: such a name may be a module's name too, and means what is shown."""
    path = PACKAGE.parent.joinpath(*package.split("."), "__init__.py")
    if not package.startswith("openshelf") or not path.exists():
        return set()
    found = [
        ast.literal_eval(node.value)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return {f"{package}.{name}" for names in found for name in names}  # not imported: it may need an extra


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")

USERS = sorted(path for folder in ("bench", "examples") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    module = ".".join(["openshelf", *path.relative_to(PACKAGE).with_suffix("").parts])
    assert not upward(path.read_text(), module)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_other_layers_are_used_by_the_names_that_they_show(path: Path) -> None:
    module = ".".join(["openshelf", *path.relative_to(PACKAGE).with_suffix("").parts])
    assert not deep(path.read_text(), module)


@pytest.mark.parametrize("path", USERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_benchmarks_and_examples_use_shown_names_only(path: Path) -> None:
    assert not deep(path.read_text(), "")
    private = {name for name in imports_of(path.read_text(), "") if name.startswith("openshelf._")}
    assert private <= {"openshelf._core"}


def upstairs(source: str, room: str) -> set[str]:
    """Rooms of space above this one that a file of it imports."""
    rooms = {target.split(".")[2] for target in imports_of(source, "") if target.startswith("openshelf.space.")}
    return rooms & set(ROOMS[ROOMS.index(room) + 1 :])


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_of_space_import_lower_rooms_only(room: str) -> None:
    files = sorted((PACKAGE / "space" / room).glob("*.py"))
    assert files
    assert not {path.name: found for path in files if (found := upstairs(path.read_text(), room))}
    assert upstairs("from openshelf.space.locality import base", "hosts") == {"locality"}


def test_the_layer_check_sees_an_upward_import() -> None:
    assert upward("from openshelf.cli import main", "openshelf.space.space") == {"openshelf.cli"}
    assert upward("def f():\n    from openshelf import show", "openshelf.fabric.model") == {"openshelf.show"}
    assert upward("from openshelf import _core", "openshelf.space.space") == set()
    assert upward("from ..cli import main", "openshelf.space.space") == {"openshelf.cli"}


def test_the_layer_check_sees_a_deep_import() -> None:
    space = "openshelf.space"
    assert deep(f"from {space}.hosts.cluster import Cluster", "openshelf.kv.pool") == {f"{space}.hosts.cluster"}
    assert deep(f"def f():\n    import {space}.array", "openshelf.kv.pool") == {f"{space}.array"}
    assert deep(f"from {space} import array", "openshelf.kv.pool") == {f"{space}.array"}
    assert deep(f"from {space}.devices import dirty", "openshelf.kv.pool") == {
        f"{space}.devices",
        f"{space}.devices.dirty",
    }
    assert deep("from openshelf.fabric import probe", "openshelf.kv.pool") == set()  # a function, and a folder
    assert deep(f"from {space}.array import Array", f"{space}.folder") == set()
    assert deep("from openshelf.fabric.topologies import ring", "") == set()


def test_every_layer_is_there() -> None:
    assert not [layer for layer in LAYERS if layer != "_core" and not is_module(f"openshelf.{layer}")]
    assert not [package for package in SHOWN if not is_module(f"openshelf.{package}")]


def test_every_module_belongs_to_a_layer() -> None:
    tops = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    assert tops <= set(LAYERS)


@pytest.mark.parametrize("package", [layer for layer in LAYERS if not layer.startswith("_")] + list(SHOWN))
def test_a_package_shows_what_it_says(package: str) -> None:
    if package in ("adapters.ray", "adapters.torchrec", "adapters.vllm"):
        pytest.importorskip(package.removeprefix("adapters."))
    shown = import_module(f"openshelf.{package}")
    assert not [name for name in getattr(shown, "__all__", ()) if not hasattr(shown, name)]


def test_public_names_are_these() -> None:
    assert set(openshelf.__all__) == PUBLIC
    assert all(hasattr(openshelf, name) for name in PUBLIC)


def test_a_process_that_uses_a_space_reads_little_else() -> None:
    """Many processes are started: each would read the fabric, pools and tables for nothing."""
    code = (
        "import sys, openshelf\n"
        "print(*(name for name in ('fabric', 'kv', 'tables') if f'openshelf.{name}' in sys.modules))\n"
        "assert set(openshelf.__all__) <= set(dir(openshelf))\n"
        "from openshelf import *\n"
        "assert openshelf.kv.KVPool is KVPool and openshelf.fabric.Fabric is Fabric and openshelf.tables.Table is Table"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("", "")
