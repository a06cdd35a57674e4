"""What the machine forbids is said in words that tell what to change."""

from __future__ import annotations

import importlib.metadata
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import openshelf
from openshelf import Space
from openshelf.errors import BadInput, UnknownName
from openshelf.space import new_hosts_file
from tests.conftest import needs_root
from tests.elf import sanitizer

CREATE = "import openshelf; openshelf.Space.create('demo', '16MiB')"
OPEN = "import openshelf; openshelf.Space.open('shelf')"
few_addresses = pytest.mark.skipif(sanitizer() is not None, reason="the sanitizer's shadow takes more addresses")


@few_addresses
@pytest.mark.parametrize("code", [CREATE, OPEN], ids=["create", "open"])
def test_a_limit_of_addresses_is_named(space: Space, home: Path, code: str) -> None:
    limit = 64 << 30
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert "NoRoom: this process may have 64 GiB of addresses (ulimit -v)" in done.stderr
    assert (
        "the space reserves 128 GiB: raise that limit, or make the space with a smaller reserve= (at least 32 GiB)"
        in done.stderr
    )
    assert sorted(path.name for path in home.iterdir()) == [".lock", "shelf"]


@few_addresses
def test_a_space_with_a_small_reserve_fits_a_limit_of_addresses(home: Path) -> None:
    limit = 48 << 30
    code = "import openshelf; openshelf.Space.create('demo', '16MiB', reserve='32GiB')['a'] = [1]"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )


@needs_root
@pytest.mark.parametrize("there", [False, True], ids=["absent", "there"])
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, there: bool) -> None:
    inside = f"mkdir -m 700 {tmp_path}/spaces && touch {tmp_path}/spaces/.lock && " if there else ""
    mount = f"mount -t tmpfs tmpfs {tmp_path} && {inside}mount -o remount,ro {tmp_path} && "
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{mount}exec {sys.executable} -c "{CREATE}"'],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENSHELF_DIR": f"{tmp_path}/spaces"},
    )
    assert "openshelf.errors.NotPermitted: " in done.stderr
    assert "Read-only file system" in done.stderr
    assert "OPENSHELF_DIR" in done.stderr.splitlines()[-1]


def test_a_tilde_is_the_home_of_the_user(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    Space.create("demo", "1MiB", backing="~/data").close()
    assert len(list((tmp_path / "data").iterdir())) == 1
    Space.create("demo", "1MiB", backing="~/data", exist_ok=True).close()
    Space.create("tiered", "32MiB", flash="~/flash:64MiB").close()
    assert (tmp_path / "flash").exists()
    assert new_hosts_file("~/hosts.yaml", ["127.0.0.1:7400"]).path == tmp_path / "hosts.yaml"
    with pytest.raises(UnknownName, match=f"no hosts file {tmp_path}/none"):
        Space.open("openshelf://127.0.0.1:7400/x", hosts="~/none")
    (tmp_path / "link").symlink_to(home)
    Space.open("~/link/demo").close()
    Space.open(Path("~/link/demo")).close()
    monkeypatch.setenv("OPENSHELF_DIR", "~/spaces")
    Space.create("demo", "1MiB").close()
    assert (tmp_path / "spaces" / "demo").exists()
    with pytest.raises(BadInput, match="backing='~nobody-of-this-name"):
        Space.create("other", "1MiB", backing="~nobody-of-this-name/x")


def test_the_version_is_the_installed_one() -> None:
    assert openshelf.__version__ == importlib.metadata.version("openshelf")
