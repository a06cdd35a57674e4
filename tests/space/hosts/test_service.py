"""A keeper that is run as a service is restarted while processes use it: it takes its place back; no touch is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import numpy as np
import pytest

from openshelf.space import read_hosts
from openshelf.space.hosts import start_keeper
from tests.processes import State
from tests.space.hosts.harness import worker
from tests.space.hosts.harness.cluster import Cluster, Host

ROUNDS = 6
SOON = 30.0


class Service:
    """`openshelf keeper` of one host, as a service manager runs it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.listed = read_hosts(host.cluster.file)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = start_keeper.argv(self.host.directory, self.listed, self.host.number, detach=False)
        with open(self.host.directory / f"keeper@{self.host.address}.log", "ab") as log:
            self.process = subprocess.Popen(
                command, env={**os.environ, **self.host.environment}, stdout=log, stderr=log, start_new_session=True
            )

    def serves(self) -> bool:
        """It holds the place."""
        assert self.process is not None
        assert self.process.poll() is None, self.host.cluster.keeper_texts()
        lock = self.host.directory / f"keeper@{self.host.address}.lock"
        holder = lock.read_text().strip() if lock.exists() else ""
        return holder == str(self.process.pid) and self.host.keepers() == [self.process.pid]

    def wait(self) -> None:
        deadline = time.monotonic() + SOON
        while not self.serves():
            assert time.monotonic() < deadline, self.host.cluster.keeper_texts()
            time.sleep(0.02)

    def end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(SOON)


@pytest.fixture
def service(loopback: Cluster) -> Iterator[Service]:
    if type(loopback) is not Cluster:
        pytest.skip("a service of a file of hosts; that of hosts that agree is told its space")
    made = Service(loopback[0])
    yield made
    if made.process and made.process.poll() is None:
        made.end(signal.SIGKILL)


def _make(state: State) -> None:
    state["space"].put("a", np.zeros(worker.WORDS, "uint64"))


def _count(state: State, place: int, seconds: float) -> int:
    """Adds one to a word of its own by plain loads and stores, again and again; how often."""
    view = worker.view(state, "a")
    counted = first = int(view[place])
    begun = time.monotonic()
    while counted == first or time.monotonic() - begun < seconds:
        assert int(view[place]) == counted
        counted += 1
        view[place] = counted
    return counted - first


def _word(state: State, place: int) -> int:
    return int(worker.view(state, "a")[place])


def _look_up(state: State, seconds: float) -> int:
    """Looks a name up and asks whether it is there, again and again; how often."""
    begun, rounds = time.monotonic(), 0
    while not rounds or time.monotonic() - begun < seconds:
        assert state["space"]["a"].shape == (worker.WORDS,)
        assert "a" in state["space"]
        rounds += 1
    return rounds


def test_a_service_takes_over_from_the_keeper_that_processes_started(loopback: Cluster, service: Service) -> None:
    here, there = loopback[0].peer(), loopback[1].peer()
    here.call(worker.enter, loopback[0].url())
    there.call(worker.enter, loopback[1].url())
    here.call(_make)
    assert there.call(_count, 1, 0.05) > 0
    on_demand = loopback[0].keepers()
    service.start()
    service.wait()
    assert service.process is not None
    assert on_demand != [service.process.pid]
    assert here.call(_count, 0, 0.05) > 0
    second = Service(loopback[0])
    second.start()
    assert second.process is not None
    assert second.process.wait(SOON) != 0  # of two services the first stays
    assert service.serves()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_a_service_is_restarted_under_loads_and_stores(
    loopback: Cluster, service: Service, how: signal.Signals
) -> None:
    service.start()
    service.wait()
    peers = [loopback[0].peer(), loopback[1].peer()]
    for number, peer in enumerate(peers):
        peer.call(worker.enter, loopback[number].url())
    peers[0].call(_make)
    for peer in peers:
        assert peer.call(_word, 0) == 0  # it has its view before the first end
    totals = [0, 0]
    for round in range(ROUNDS):
        for number, peer in enumerate(peers):
            peer.start(_count, number, 0.6)
        time.sleep(0.1)
        service.end(how)
        time.sleep(0.15 * (round % 3))  # at once, and after processes have started one of their own
        service.start()
        for number, peer in enumerate(peers):
            totals[number] += peer.finish(SOON)
        service.wait()
    for peer in peers:
        assert [peer.call(_word, number) for number in range(2)] == totals


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_a_name_is_found_while_the_service_of_its_host_is_restarted(
    loopback: Cluster, service: Service, how: signal.Signals
) -> None:
    """By who has asked that host before, and by who opens the space just then and never heard of it."""
    service.start()
    service.wait()
    home, looking, newcomers = loopback[0].peer(), loopback[1].peer(), [loopback[1].peer() for _ in range(3)]
    home.call(worker.enter, loopback[0].url())
    home.call(_make)
    home.kill()  # nobody but the service serves it
    looking.call(worker.enter, loopback[1].url())
    assert looking.call(_look_up, 0.0) == 1
    for newcomer in newcomers:
        looking.start(_look_up, 0.5)
        service.end(how)
        newcomer.call(worker.enter, loopback[1].url())
        newcomer.start(_look_up, 0.0)
        time.sleep(0.1)
        service.start()
        assert newcomer.finish(SOON) == 1
        assert looking.finish(SOON) > 0
        service.wait()
