"""What is given to others: the sdist, and wheels of it that run README's recipes where there is no compiler.

Run by `make test-wheel`. Interpreters are those that are found: python3.11 to python3.14 on the PATH, or of pyenv.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

VARIABLE = "OPENSHELF_WHEELS"  # the folder in which all is built; without it these tests are skipped
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_WANTED = (
    "pyproject.toml",
    "CMakeLists.txt",
    "README.md",
    "LICENSE",
    "native/bind/module.cpp",
    "src/openshelf/py.typed",
)
_NOT_WANTED = re.compile(r"^(tests|bench|build|\.venv|\.git)(/|$)|^native/tests/|\.(so|pyc|o)$")

pytestmark = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"make test-wheel sets {VARIABLE}")


@functools.cache
def interpreter(version: str) -> Path:
    on_path = shutil.which(f"python{version}")
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    of_pyenv = sorted(root.glob(f"versions/{version}.*/bin/python{version}"))
    for path in [*of_pyenv, *([Path(on_path)] if on_path else [])]:
        if subprocess.run([path, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0:
            return path
    pytest.skip(f"there is no Python {version} here")


def run(command: list[str | Path], **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder(), env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-5000:]}{done.stderr[-5000:]}"
    return done.stdout


def folder() -> Path:
    return Path(os.environ[VARIABLE]).resolve()


def new_environment(version: str, name: str) -> Path:
    """The interpreter of an environment with nothing but pip."""
    path = folder() / f"{name}-{version}"
    run([interpreter(version), "-m", "venv", "--clear", path])
    return path / "bin/python"


@functools.cache
def sdist() -> Path:
    """Built with the tools of the checkout's own environment."""
    to = folder() / "dist"
    shutil.rmtree(to, ignore_errors=True)
    program = (
        f"import os; os.chdir({str(ROOT)!r}); from scikit_build_core.build import build_sdist; build_sdist({str(to)!r})"
    )
    run([sys.executable, "-c", program])
    (path,) = to.glob("openshelf-*.tar.gz")
    return path


@functools.cache
def wheel(version: str) -> Path:
    """Built from the sdist, in isolation: what the build needs, pip fetches."""
    to = folder() / f"wheel-{version}"
    shutil.rmtree(to, ignore_errors=True)
    run([new_environment(version, "build"), "-m", "pip", "wheel", "-q", "--no-deps", "-w", to, sdist()])
    (path,) = to.glob("openshelf-*.whl")
    return path


def run_recipes(python: Path, environment: dict[str, str]) -> None:
    """README's blocks, as tests/docs runs them, with what is installed."""
    spaces = folder() / f"spaces-{os.getpid()}"
    spaces.mkdir(mode=0o700, exist_ok=True)
    told = run(
        [python, ROOT / "tests/docs/run_page.py", ROOT / "README.md"],
        OPENSHELF_DIR=str(spaces),
        OPENSHELF_CACHE=str(spaces / "cache"),
        **environment,
    )
    assert re.fullmatch(r".*README\.md 3", told.strip().splitlines()[-1]), told
    shutil.rmtree(spaces)
    where = run([python, "-c", "import openshelf._core as core; print(core.__file__)"])
    assert where.startswith(str(python.parents[1])), where


def test_the_sdist_has_what_a_build_needs_and_nothing_else() -> None:
    with tarfile.open(sdist()) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert [name for name in _WANTED if name not in names] == []
    assert [name for name in names if _NOT_WANTED.search(name)] == []


@pytest.mark.parametrize("version", ["3.11"])
def test_the_sdist_is_installed_into_a_clean_environment(version: str) -> None:
    python = new_environment(version, "from-sdist")
    run([python, "-m", "pip", "install", "-q", f"openshelf[offload] @ file://{sdist()}"])
    run_recipes(python, {})


def test_the_wheel_of_the_stable_abi_uses_nothing_else() -> None:
    """Of 3.12: what every later one has. abi3audit knows the list."""
    path = wheel("3.12")
    assert re.fullmatch(r"openshelf-[0-9.]+-cp312-abi3-linux_\w+\.whl", path.name)
    with zipfile.ZipFile(path) as archive:
        assert [name for name in archive.namelist() if name.endswith(".so")] == ["openshelf/_core.abi3.so"]
    auditor = new_environment("3.12", "audit")
    run([auditor, "-m", "pip", "install", "-q", "abi3audit"])
    run([auditor, "-m", "abi3audit", "--strict", path])


@pytest.mark.parametrize("version", PYTHONS[1:])
def test_the_wheel_runs_the_recipes_where_there_is_no_compiler(version: str) -> None:
    python = new_environment(version, "empty")
    no_compiler = {"PATH": str(python.parent), "CC": "/nonexistent", "CXX": "/nonexistent"}
    for tool in ("gcc", "g++", "cc", "c++", "clang", "cmake", "ninja", "make"):
        assert shutil.which(tool, path=no_compiler["PATH"]) is None
    target = f"openshelf[offload] @ file://{wheel('3.12')}"
    run([python, "-m", "pip", "install", "-q", "--only-binary", ":all:", target], **no_compiler)
    run_recipes(python, no_compiler)
