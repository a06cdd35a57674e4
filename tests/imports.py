"""What a Python file imports, for the tests of layers and rooms."""

from __future__ import annotations

import ast


def imports_of(source: str, module: str, doors: tuple[str, ...] = ("openshelf",)) -> set[str]:
    """Modules that a file imports, relative ones resolved, those inside functions and type checks included.

    What is imported from a package in `doors` counts by its own name: it may be a module.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *filter(None, [node.module])])
            found |= {f"{base}.{name.name}" for name in node.names} if base in doors else {base}
    return found
