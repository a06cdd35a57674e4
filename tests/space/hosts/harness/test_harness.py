"""The hosts that tests run on do what the tests believe of them: they are apart, slow, lossy, cut, dead and gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import Died, State
from tests.space.hosts.harness import net
from tests.space.hosts.harness.cluster import Cluster, environ_of, processes_under

PORT = 7000


def _serve(state: State, address: str) -> None:
    state["listener"] = socket.create_server((address, PORT))


def _answer(state: State, nbytes: int, rounds: int) -> None:
    connection, _ = state["listener"].accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(rounds):
            connection.sendall(_receive(connection, nbytes))


def _receive(connection: socket.socket, nbytes: int) -> bytes:
    got = bytearray()
    while len(got) < nbytes:
        got += connection.recv(nbytes - len(got)) or b"?"
    return bytes(got)


def _ask(state: State, address: str, nbytes: int, rounds: int) -> float:
    """Seconds of a round trip, mean."""
    with socket.create_connection((address, PORT), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = time.monotonic()
        for number in range(rounds):
            sent = bytes([number]) * nbytes
            connection.sendall(sent)
            assert _receive(connection, nbytes) == sent
        return (time.monotonic() - start) / rounds


def _reaches(state: State, address: str) -> bool:
    try:
        socket.create_connection((address, PORT), timeout=0.2).close()
    except OSError:
        return False
    return True


def _round_trip(cluster: Cluster, nbytes: int, rounds: int) -> float:
    address = cluster[0].address.split(":")[0]
    server, client = cluster[0].peer(), cluster[1].peer()
    server.call(_serve, address)
    server.start(_answer, nbytes, rounds)
    mean = client.call(_ask, address, nbytes, rounds)
    server.finish()
    server.stop()
    client.stop()
    return float(mean)


@pytest.mark.soak
def test_delay_loss_and_rate_are_as_asked(two: Cluster) -> None:
    network = two.network
    assert network is not None
    assert _round_trip(two, 64, 20) < 0.005
    network.shape(1, delay_ms=10)
    assert 0.02 <= _round_trip(two, 64, 5) < 0.06
    network.shape(1, rate_mbit=100)  # 8 Mbit each way, a quarter of them saved up
    assert 0.1 <= _round_trip(two, 1_000_000, 4) < 0.5
    network.shape(1, loss=0.2)
    assert _round_trip(two, 64, 30) > 0.01  # what is lost is sent again, after 200 ms
    network.shape(1)
    assert _round_trip(two, 64, 20) < 0.005


def test_cut_host_is_alone_until_healed_and_parted_hosts_reach_others(three: Cluster) -> None:
    peers = [host.peer() for host in three.hosts]
    addresses = [host.address.split(":")[0] for host in three.hosts]
    for peer, address in zip(peers, addresses, strict=True):
        peer.call(_serve, address)

    def reached() -> set[str]:
        return {
            f"{here}{there}"
            for here in range(3)
            for there in range(3)
            if here != there and peers[here].call(_reaches, addresses[there])
        }

    everything = {"01", "02", "10", "12", "20", "21"}
    assert three.network is not None
    assert reached() == everything
    three[2].cut()
    assert reached() == {"01", "10"}
    three[2].heal()
    assert reached() == everything
    three.network.part((0, 1))
    assert reached() == {"02", "12", "20", "21"}
    three.network.part(())
    assert reached() == everything


def _environment(state: State) -> tuple[str, str]:
    return os.environ["OPENSHELF_DIR"], os.environ["OPENSHELF_HOSTS"]


def _start_keeper(state: State) -> int:
    """Something that looks like one from outside."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "keeper"]).pid


def _touch_nothing(state: State) -> None:
    os.write(2, b"last words")
    os.kill(os.getpid(), signal.SIGBUS)


def test_hosts_share_no_directory_and_die_whole(two: Cluster) -> None:
    one, other = two[0].peer(), two[1].peer()
    assert one.call(_environment) == (str(two[0].directory), str(two.file))
    assert other.call(_environment)[0] == str(two[1].directory)
    (two[0].directory / "shard").mkdir()
    (two[0].directory / "shard" / "data").write_text("x")
    keeper = one.call(_start_keeper)
    assert two[0].keepers() == [keeper]
    assert two[1].keepers() == []
    two[0].kill(silent=True)
    assert list(two[0].directory.iterdir()) == []
    assert two[0].keepers() == []
    with pytest.raises(Died):
        one.finish()
    assert other.call(_environment)
    assert two[0].peer().call(_environment)[0] == str(two[0].directory)


def test_how_a_process_ended_and_what_it_said_is_known(two: Cluster) -> None:
    peer = two[0].peer()
    with pytest.raises(Died) as death:
        peer.call(_touch_nothing)
    assert death.value.code == -signal.SIGBUS
    assert peer.text() == "last words"


def test_cluster_leaves_no_process_and_no_directory(network: net.Network) -> None:
    with Cluster(2, network) as cluster:
        directory = cluster.directory
        pid = cluster[0].peer().call(_start_keeper)
        assert list(processes_under(directory)) == [pid]
    assert not directory.exists()
    assert processes_under(directory) == {}


def test_the_environment_of_a_process_is_seen_from_its_first_moment() -> None:
    for number in range(200):  # without looking twice, one in five is missed
        with subprocess.Popen(["sleep", "600"], env={"NUMBER": str(number)}) as process:
            seen = environ_of(Path(f"/proc/{process.pid}"))
            process.kill()
        assert seen == f"NUMBER={number}\0".encode()


def test_next_run_clears_what_a_killed_one_left() -> None:
    root = str(Path(__file__).parents[4])
    program = f"""
import os, signal, subprocess, sys
sys.path.insert(0, {root!r})
from tests.space.hosts.harness.cluster import Cluster
if __name__ == "__main__":
    cluster = Cluster(2)
    environment = {{**os.environ, "OPENSHELF_DIR": str(cluster[0].directory)}}
    subprocess.Popen(["sleep", "600"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(cluster.directory, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    left = Path(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60).stdout.strip()
    )
    assert left.exists()
    assert len(processes_under(left)) == 1
    subprocess.run(
        [sys.executable, "-c", "from tests.space.hosts.harness.cluster import sweep; sweep()"], cwd=root, check=True
    )
    assert not left.exists()
    assert processes_under(left) == {}
