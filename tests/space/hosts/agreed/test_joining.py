"""Hosts join a space and leave it while others work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.processes import PATIENCE
from tests.space.hosts.agreed import worker
from tests.space.hosts.harness.agreed import AgreedCluster


def test_hosts_join_one_after_the_other_and_see_what_was_there_before(hosts: AgreedCluster) -> None:
    first = hosts[0].peer()
    assert first.call(worker.join, hosts.url) == 0
    address = first.call(worker.put, "a", 1)
    first.call(worker.hold, "a")
    second = hosts[1].peer()
    assert second.call(worker.join, hosts.url) == 1
    assert second.call(worker.hold, "a") == address
    second.call(worker.store, 3, 7)  # while the first host works: its list had nobody else when it opened the space
    assert first.call(worker.read, "a") == [1, 1, 1, 7, 1, 1, 1, 1]
    third = hosts[2].peer()
    assert third.call(worker.join, hosts.url) == 2
    third.call(worker.put, "b", 3)
    assert first.call(worker.read, "b") == second.call(worker.read, "b") == [3] * 8
    assert third.call(worker.read, "a")[3] == 7
    assert first.call(worker.hosts) == {host.address: "up" for host in hosts.hosts}


def test_two_processes_that_open_the_space_first_on_a_host_join_once(hosts: AgreedCluster) -> None:
    one, other = hosts[0].peer(), hosts[0].peer()
    one.start(worker.join, hosts.url)
    assert other.call(worker.join, hosts.url) == one.finish() == 0
    assert one.call(worker.term) == other.call(worker.term) == 1


def test_a_killed_keeper_is_followed_by_one_with_the_same_term(hosts: AgreedCluster) -> None:
    one, other = hosts[0].peer(), hosts[1].peer()
    one.call(worker.join, hosts.url)
    address = one.call(worker.put, "a", 1)
    other.call(worker.join, hosts.url)
    other.call(worker.hold, "a")
    before = hosts.membership.view()
    assert hosts[0].kill_keeper() == 1
    other.call(worker.write_when_back, address, 5, 30)
    assert one.call(worker.read, "a") == [5] * 8
    assert hosts.membership.view() == before


def test_a_host_that_leaves_frees_its_names_and_gets_its_place_again(hosts: AgreedCluster) -> None:
    stays, leaves = hosts[0].peer(), hosts[1].peer()
    stays.call(worker.join, hosts.url)
    leaves.call(worker.join, hosts.url)
    leaves.call(worker.put, "a", 1)
    assert stays.call(worker.tried, worker.put, "a", 2, False)[0] == "NameTaken"
    leaves.call(worker.close)
    leaves.call(worker.remove, hosts.url)
    assert hosts.membership.view().terms[1] == 0
    stays.call(worker.put, "a", 2, False)
    assert stays.call(worker.read, "a") == [2] * 8
    assert leaves.call(worker.join, hosts.url) == 1
    assert leaves.call(worker.read, "a") == [2] * 8


def test_a_host_whose_first_process_was_killed_while_it_joined_can_be_opened(hosts: AgreedCluster) -> None:
    one = hosts[0].peer()
    one.call(worker.join, hosts.url)
    one.call(worker.put, "a", 1)
    one.kill()
    hosts[0].kill_keeper()
    (hosts.part(hosts[0]) / "hosts").unlink()  # it is written last
    another = hosts[0].peer()
    assert another.call(worker.join, hosts.url) == 0
    assert another.call(worker.read, "a") == [1] * 8


def test_a_table_over_hosts_says_that_it_needs_a_list_of_hosts(hosts: AgreedCluster) -> None:
    one = hosts[0].peer()
    one.call(worker.join, hosts.url)
    kind, text = one.call(worker.tried, worker.make_table, "t", "all")
    assert (kind, "needs a space with a hosts file" in text) == ("BadInput", True), text
    assert not one.call(worker.names)
    assert one.call(worker.make_table, "u", None) == 100


def test_nothing_secret_goes_to_etcd(hosts: AgreedCluster) -> None:
    one = hosts[0].peer()
    one.call(worker.join, hosts.url)
    one.call(worker.put, "a", 1)
    _, pairs = hosts.membership.store.read(["/openshelf/"])
    assert len([key for key in pairs if f"/{hosts.space}/" in key]) >= 4
    assert not any(hosts.key in key + pair.value for key, pair in pairs.items())


def test_the_command_shows_hosts_without_joining(hosts: AgreedCluster) -> None:
    one = hosts[0].peer()
    one.call(worker.join, hosts.url)
    before = hosts.membership.view()
    done = subprocess.run(
        [sys.executable, "-c", "from openshelf.cli import main; main()", "hosts", hosts.url, "--json"],
        env=os.environ | hosts[1].environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f'"host": "{hosts[0].address}"' in done.stdout
    assert hosts.membership.view() == before
    assert not hosts.part(hosts[1]).exists()


def test_a_keeper_that_ends_resigns(hosts: AgreedCluster) -> None:
    one, other = hosts[0].peer(), hosts[1].peer()
    one.call(worker.join, hosts.url)
    other.call(worker.join, hosts.url)
    (keeper,) = hosts[1].keepers()
    other.kill()
    os.kill(keeper, signal.SIGTERM)
    known = hosts.membership.view()
    while known.terms[1]:
        known = hosts.membership.watch(known, 30)
    assert known.terms[0] == 1


def test_the_command_joins_and_keeps_without_a_python_client(hosts: AgreedCluster) -> None:
    one = hosts[0].peer()
    one.call(worker.join, hosts.url)
    command = [sys.executable, "-c", "from openshelf.cli import main; main()", "keeper", "--space", hosts.url]
    kept = subprocess.Popen(
        [*command, "--contribute", "16MiB", "--json"],
        env=os.environ | hosts[1].environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert kept.stdout is not None
        assert f'"others": ["{hosts[0].address}"]' in kept.stdout.readline()
        assert "keeper of" in kept.stdout.readline()  # from here on SIGTERM ends it in its own way
        assert one.call(worker.put_at_home, "a", 4, hosts[1].address, 60 * PATIENCE) == hosts[1].address
        assert one.call(worker.read, "a") == [4] * 8
    finally:
        kept.terminate()
        assert kept.wait(60) == 0
