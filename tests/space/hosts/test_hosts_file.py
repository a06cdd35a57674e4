"""The hosts file: private, checked line by line, the same addresses on every host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from openshelf.errors import BadInput, NameTaken, NotPermitted, UnknownName
from openshelf.space.hosts.hosts_file import FIRST, GRANULE, LAST, default_path, new_hosts_file, read_hosts

KEY = "0123456789abcdef" * 4
GOOD = f'key: {KEY}\nhosts: ["10.0.0.1:7400", "10.0.0.2:7400"]\n'


def written(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hosts.yaml"


def test_a_good_file_is_read(file: Path) -> None:
    found = read_hosts(written(file, GOOD))
    assert found.key == bytes.fromhex(KEY)
    assert found.hosts == ("10.0.0.1:7400", "10.0.0.2:7400")
    assert found.reserve == GRANULE
    assert found.number("10.0.0.2:7400") == 1
    assert KEY not in repr(found)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o700])
def test_private_modes_are_taken(file: Path, mode: int) -> None:
    assert read_hosts(written(file, GOOD, mode)).hosts


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o620, 0o601])
def test_a_key_that_others_can_read_is_refused_with_the_remedy(file: Path, mode: int) -> None:
    written(file, GOOD, mode)
    with pytest.raises(NotPermitted, match=f"chmod 600 {file}"):
        read_hosts(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away needs root")
def test_a_file_of_another_user_is_refused(file: Path) -> None:
    os.chown(written(file, GOOD), 12345, -1)
    with pytest.raises(NotPermitted, match="belongs to user 12345"):
        read_hosts(file)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(NotPermitted, match="regular file"):
            read_hosts(path)


def test_a_missing_file_says_how_to_make_one(file: Path) -> None:
    with pytest.raises(UnknownName, match=f"openshelf hosts new {file}"):
        read_hosts(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a mapping"),
        ("- a\n", "line 1: expected a mapping"),
        ("key: [\n", "line 2, column 1: not YAML"),
        ("a: \x01", "not YAML"),
        (f"key: {KEY}\n", "line 1: 'hosts' is missing"),
        ('hosts: ["a:1"]\n', "line 1: 'key' is missing"),
        (GOOD + "hoosts: 1\n", "line 3: unknown key 'hoosts'; expected key, hosts, base, reserve"),
        (GOOD + "hosts: []\n", "line 3: 'hosts' is given twice"),
        (f'key: {KEY[:-1]}\nhosts: ["a:1"]\n', "line 1: 'key' must be 64 hex digits, these are 63 characters"),
        (f'key: {KEY[:-1]}x\nhosts: ["a:1"]\n', "line 1: 'key' must be 64 hex digits"),
        (f'key: [{KEY}]\nhosts: ["a:1"]\n', "line 1: expected a key of 64 hex digits"),
        (f'{{key: {KEY}, hosts: ["a:1"]}}\n', "on a line of their own"),
        (f"key: {KEY}\nhosts: 10.0.0.1:7400\n", "line 2: 'hosts' must be a list"),
        (f"key: {KEY}\nhosts: []\n", "line 2: expected 1 to 32 hosts, got 0"),
        (f"key: {KEY}\nhosts: [{','.join(f'h:{n + 1}' for n in range(33))}]\n", "expected 1 to 32 hosts, got 33"),
        (f"key: {KEY}\nhosts:\n- a:1\n- A:1\n", "line 4: 'A:1' is in the list twice"),
        (f"key: {KEY}\nhosts:\n- a:1\n- b\n", "line 4: 'b' is not HOST:PORT"),
        (GOOD + "reserve: much\n", "line 3: 'much' is not a size"),
        (GOOD + "reserve: 100MiB\n", "line 3: 'reserve' must be a multiple of 1 GiB"),
        (GOOD + "base: 0x10\n", "line 3: a base is an address"),
        (GOOD + "base: low\n", "line 3: a base is an address"),
    ],
)
def test_a_wrong_file_says_where_and_what_was_expected(file: Path, text: str, message: str) -> None:
    written(file, text)
    with pytest.raises(BadInput) as caught:
        read_hosts(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert KEY[:-1] not in str(caught.value)


def test_a_key_of_digits_only_is_text(file: Path) -> None:
    digits = "12345678" * 8
    assert read_hosts(written(file, GOOD.replace(KEY, digits))).key == bytes.fromhex(digits)


def test_bases_are_equal_for_everybody_and_inside_the_range(file: Path) -> None:
    found = read_hosts(written(file, GOOD))
    assert found.base_of("demo") == 0x2620_0000_0000  # a stable hash: hosts never ask each other
    for number in range(200):
        base = found.base_of(f"space-{number}")
        assert base % GRANULE == 0
        assert base >= FIRST
        assert base + len(found.hosts) * found.reserve <= LAST
    assert len({found.base_of(f"space-{number}") for number in range(200)}) > 40


def test_base_and_reserve_can_be_given(file: Path) -> None:
    one = read_hosts(written(file, GOOD + "reserve: 64GiB\nbase: 0x2500_0000_0000\n"))
    assert (one.reserve, one.base_of("x"), one.base_of("y")) == (64 << 30, 0x2500_0000_0000, 0x2500_0000_0000)
    some = read_hosts(written(file, GOOD + "base: {x: 0x2500_0000_0000}\n"))
    assert some.base_of("x") == 0x2500_0000_0000
    assert some.base_of("y") != 0x2500_0000_0000


def test_addresses_that_do_not_fit_are_refused(file: Path) -> None:
    with pytest.raises(
        BadInput, match="line 3: 'reserve' must be at least 32 GiB"
    ):  # else a host's would begin in another's
        read_hosts(written(file, GOOD + "reserve: 31GiB\n"))
    with pytest.raises(BadInput, match="do not fit"):
        read_hosts(written(file, GOOD + "reserve: 16TiB\n")).base_of("demo")
    with pytest.raises(BadInput, match="beyond 128 TiB"):
        read_hosts(written(file, GOOD + "base: 0x7fff_0000_0000\n")).base_of("demo")


def test_a_new_file_is_private_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "config" / "hosts.yaml"
    made = new_hosts_file(path, ["10.0.0.1:7400", "[fd00::1]:7400", "node3:7400"])
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_hosts(path) == made
    assert made.hosts == ("10.0.0.1:7400", "[fd00::1]:7400", "node3:7400")
    assert made.key != new_hosts_file(tmp_path / "other.yaml", ["a:1"]).key
    with pytest.raises(NameTaken, match="exists already"):
        new_hosts_file(path, ["a:1"])
    assert read_hosts(path) == made
    for wrong in (["a:1", "a:1"], ["a"]):
        with pytest.raises(BadInput):
            new_hosts_file(tmp_path / "third.yaml", wrong)
    assert not (tmp_path / "third.yaml").exists()


def test_a_file_without_hosts_is_a_key_for_those_who_agree(tmp_path: Path) -> None:
    made = new_hosts_file(tmp_path / "key.yaml", [])
    assert made.hosts == ()
    assert read_hosts(made.path, only_key=True) == made
    with pytest.raises(BadInput, match="'hosts' is missing"):
        read_hosts(made.path)


def test_the_environment_names_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OPENSHELF_HOSTS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert default_path() == tmp_path / "openshelf" / "hosts.yaml"
    monkeypatch.setenv("OPENSHELF_HOSTS", "/elsewhere/hosts.yaml")
    assert default_path() == Path("/elsewhere/hosts.yaml")
