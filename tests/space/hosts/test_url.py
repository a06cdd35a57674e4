"""URLs, HOST:PORT, and which host this one is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from openshelf import Space, spaces
from openshelf.errors import BadInput, UnknownName
from openshelf.space.create import registry
from openshelf.space.create.shard import Shard
from openshelf.space.hosts.hosts_file import new_hosts_file
from openshelf.space.hosts.urls import Url, host_port, is_local, own_host, parse_url, split


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("10.0.0.1:7400", "10.0.0.1:7400"),
        ("127.0.0.1:65535", "127.0.0.1:65535"),
        ("[::1]:7400", "[::1]:7400"),
        ("[FD00:0:0::1]:7400", "[fd00::1]:7400"),
        ("Node-1.rack:7400", "node-1.rack:7400"),
        (" node:1 ", "node:1"),
    ],
)
def test_a_host_has_one_form(text: str, form: str) -> None:
    assert host_port(text) == form


@pytest.mark.parametrize(
    "text",
    [
        "", "node", ":7400", "node:", "node:0", "node:65536", "node:-1", "node:x", "::1:7400", "[::1]", "[node]:7400",
        "[::1:7400", "10.0.0:7400", "10.0.0.256:7400", "no de:7400", "node/x:7400", "-node:7400", "0.0.0.0:7400",
        "[::]:7400", "224.0.0.1:7400", "[fe80::1%eth0]:7400", "node:99999999999", "nöde:7400",
    ],
)  # fmt: skip
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"HOST:PORT|no address|scope"):
        host_port(text)


def test_hosts_are_taken_apart() -> None:
    assert split("10.0.0.1:7400") == ("10.0.0.1", 7400)
    assert split("[fd00::1]:7400") == ("fd00::1", 7400)


def test_a_url_names_a_host_and_a_space() -> None:
    url = parse_url("openshelf://10.0.0.1:7400/demo")
    assert url == Url("10.0.0.1:7400", "demo")
    assert str(url) == "openshelf://10.0.0.1:7400/demo"
    assert parse_url("openshelf://[::1]:7400/demo").host == "[::1]:7400"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http://10.0.0.1:7400/demo", "is not a URL of a space"),
        ("openshelf://10.0.0.1:7400", "names no space"),
        ("openshelf://10.0.0.1:7400/", "names no space"),
        ("openshelf://10.0.0.1/demo", "is not HOST:PORT"),
        ("openshelf:///demo", "is not HOST:PORT"),
        ("openshelf://10.0.0.1:7400/de mo", "is not a name for a space"),
        ("openshelf://10.0.0.1:7400/a/b", "is not a name for a space"),
        ("openshelf://10.0.0.1:7400/demo?x=1", "is not a name for a space"),
    ],
)
def test_a_wrong_url_says_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=r"openshelf://HOST:PORT/NAME") as caught:
        parse_url(text)
    assert message in str(caught.value)


def test_loopback_is_here_and_others_are_not() -> None:
    assert is_local("127.0.0.1:7400")
    assert is_local("localhost:7400")
    assert not is_local("192.0.2.1:7400")  # TEST-NET-1: nobody's
    assert not is_local("no-such-host.invalid:7400")


def test_which_host_we_are() -> None:
    two = ("127.0.0.1:7401", "127.0.0.1:7402")
    assert own_host("127.0.0.1:7402", two) == "127.0.0.1:7402"
    far = ("192.0.2.1:7400", "127.0.0.1:7400")
    assert own_host("192.0.2.1:7400", far) == "127.0.0.1:7400"
    with pytest.raises(BadInput, match="is not in the hosts file"):
        own_host("127.0.0.1:7403", two)
    with pytest.raises(BadInput, match="name the one that is meant"):
        own_host("192.0.2.1:7400", ("192.0.2.1:7400", *two))
    with pytest.raises(BadInput, match="none of the hosts"):
        own_host("192.0.2.1:7400", ("192.0.2.1:7400",))


def test_urls_do_not_go_with_names_nor_options_of_the_one_with_the_other(home: Path) -> None:
    with pytest.raises(BadInput, match="made by opening it"):
        Space.create("openshelf://127.0.0.1:7401/demo", "16MiB")
    with pytest.raises(BadInput, match="go with a URL"):
        Space.open("demo", contribute="16MiB")


def test_one_hosts_part_is_not_opened_by_name_or_path(home: Path) -> None:
    for name in ("demo@127.0.0.1:7401", str(home / "demo@127.0.0.1:7401")):
        for call in (Space.open, Space.remove, Space.members):
            with pytest.raises(BadInput, match=r"openshelf://127.0.0.1:7401/demo"):
                call(name)


def test_removing_by_url_says_if_there_is_nothing(home: Path) -> None:
    hosts = new_hosts_file(home / "hosts.yaml", ["127.0.0.1:7401"]).path
    with pytest.raises(UnknownName, match=r"there is no space 'openshelf://127.0.0.1:7401/demo'"):
        Space.remove("openshelf://127.0.0.1:7401/demo", hosts=hosts)


def test_local_spaces_keep_away_from_the_addresses_of_all_hosts(home: Path) -> None:
    shard = Shard("demo", registry.FIRST_BASE, registry.GRAIN, ("a:1", "b:1"), 1, 65536)
    Space.create("model", "16MiB", base=registry.FIRST_BASE + registry.GRAIN).close()
    (home / "model").rename(home / shard.directory)
    shard.write(home / shard.directory)
    with Space.create("local", "16MiB") as space:
        assert space.describe()["base"] == registry.FIRST_BASE + 2 * registry.GRAIN
        space.put("a", np.zeros(1))
    assert [entry["name"] for entry in spaces()] == ["demo@b:1", "local"]
    for extra in ("units", "shadow", "escrow", "cache-0", "cache-31"):
        (home / shard.directory / extra).touch()
    registry.dispose(home / shard.directory)
    assert not list(home.glob("*demo*"))
