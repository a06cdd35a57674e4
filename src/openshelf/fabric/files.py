"""Where fabrics are: the user's own file, presets that come with the package, and any path."""

from __future__ import annotations

import os
from pathlib import Path

from openshelf.errors import BadInput, UnknownName
from openshelf.fabric.fields import nearest

PRESETS = Path(__file__).parent / "presets"
ENVIRONMENT = "OPENSHELF_FABRIC"


def local_path() -> Path:
    """Where `openshelf probe` writes for this user: the config folder of the XDG convention."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    # The convention: a relative path here is to be ignored.
    folder = Path(config) if os.path.isabs(config) else Path.home() / ".config"
    return folder / "openshelf" / "local.yaml"


def presets() -> list[str]:
    """Names of the fabrics that come with the package."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def find(name: str | os.PathLike[str]) -> Path:
    """The file of a fabric; raises UnknownName, with what to do, if there is none."""
    if not isinstance(name, str | os.PathLike):
        raise BadInput(f"a fabric is a path, the name of a preset, or 'local', got {name!r:.60}")
    if isinstance(name, str) and name == "local":
        override = os.environ.get(ENVIRONMENT, "")
        if override and override != "local":
            return find(override)
        path = local_path()
        if not path.exists():
            raise UnknownName(
                f"this machine is not measured yet: {str(path)!r} does not exist. Run `openshelf probe` "
                f"(under a minute) to write it, set {ENVIRONMENT} to a fabric's YAML file, or load a preset: "
                f"{', '.join(presets())}"
            )
        return path
    text = os.fspath(name)
    if not isinstance(name, str) or "/" in text or text.endswith((".yaml", ".yml")):
        if not os.path.exists(text):
            raise UnknownName(f"there is no fabric file {text!r}; `openshelf probe --output {text}` would write one")
        return Path(text)
    if text in presets():
        return PRESETS / f"{text}.yaml"
    known = ["local", *presets()]
    raise UnknownName(
        f"there is no fabric named {text!r}; expected {', '.join(known)}, or a path with a slash or .yaml"
        f"{nearest(text, known)}"
    )
