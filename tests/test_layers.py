"""The tree is the architecture: imports go down only, and the package shows what it means to show."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import openshelf

PACKAGE = Path(openshelf.__file__).parent
LAYERS = (
    "errors",
    "_core",
    "_files",
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
    "Transfer",
    "Where",
    "spaces",
}


def layer_of(module: str) -> int | None:
    """The layer of openshelf.<layer>...; None for the package itself and for anything else."""
    parts = module.split(".")
    return LAYERS.index(parts[1]) if parts[0] == "openshelf" and len(parts) > 1 else None


def imports_of(source: str, module: str) -> set[str]:
    """Modules that a file imports, relative ones resolved, those inside functions included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *filter(None, [node.module])])
            found |= {f"{base}.{name.name}" for name in node.names} if base == "openshelf" else {base}
    return found


def upward(source: str, module: str) -> set[str]:
    own = layer_of(module)
    return {
        target
        for target in imports_of(source, module)
        if own is not None and (layer := layer_of(target)) is not None and layer > own
    }


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    module = ".".join(["openshelf", *path.relative_to(PACKAGE).with_suffix("").parts])
    assert not upward(path.read_text(), module)


def test_the_layer_check_sees_an_upward_import() -> None:
    assert upward("from openshelf.cli import main", "openshelf.space._space") == {"openshelf.cli"}
    assert upward("def f():\n    from openshelf import show", "openshelf.fabric._model") == {"openshelf.show"}
    assert upward("from openshelf import _core", "openshelf.space._space") == set()
    assert upward("from ..cli import main", "openshelf.space._space") == {"openshelf.cli"}


def test_every_module_belongs_to_a_layer() -> None:
    tops = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    assert tops <= set(LAYERS)


def test_public_names_are_these() -> None:
    assert set(openshelf.__all__) == PUBLIC
    assert all(hasattr(openshelf, name) for name in PUBLIC)
