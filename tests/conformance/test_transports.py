"""The contract of transports.py, asked of every implementation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from openshelf.errors import BadInput, Closed, HostLost, Refused
from tests.conformance.transports import TRANSPORTS, Connection, Transport

KEY = bytes(range(32))
OTHER_KEY = bytes(32)


@pytest.fixture(params=TRANSPORTS, ids=lambda transport: transport.name)
def wire(request: pytest.FixtureRequest) -> Transport:
    chosen: Transport = request.param
    return chosen


@pytest.fixture
def pair(wire: Transport) -> Iterator[tuple[Connection, Connection]]:
    listener = wire.listen(KEY)
    with ThreadPoolExecutor(1) as pool:
        dialing = pool.submit(wire.connect, "127.0.0.1", listener.port, KEY)
        there = listener.accept(10)
        here = dialing.result()
    assert there is not None
    yield here, there
    for end in (here, there, listener):
        end.close()


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_frames_of_all_sizes_arrive_in_order(wire: Transport, pair: tuple[Connection, Connection]) -> None:
    here, there = pair
    sizes = [0, 1, 15, 16, 17, 4096, 65_536, 262_144, wire.largest_frame]
    rng = np.random.default_rng(1)
    payloads = [rng.bytes(size) for size in sizes]

    def send_all() -> None:
        for number, payload in enumerate(payloads):
            here.send(number, 2**64 - 1 - number, payload)

    sender = in_thread(send_all)
    for number, payload in enumerate(payloads):
        assert there.receive(10) == (number, 2**64 - 1 - number, payload)
    sender.join()
    there.send(65_535, 0, memoryview(payloads[4]))
    assert here.receive(10) == (65_535, 0, payloads[4])


def test_a_frame_over_the_largest_is_refused_and_the_connection_goes_on(
    wire: Transport, pair: tuple[Connection, Connection]
) -> None:
    here, there = pair
    with pytest.raises(BadInput):
        here.send(1, 1, bytes(wire.largest_frame + 1))
    here.send(1, 2, b"small")
    assert there.receive(10) == (1, 2, b"small")


def test_bytes_go_straight_from_and_into_arrays(pair: tuple[Connection, Connection]) -> None:
    here, there = pair
    source = np.arange(10_000, dtype=np.int64)
    target = np.zeros(10_001, dtype=np.int64)
    here.send(3, 4, source.data)
    with pytest.raises(BadInput, match="80000 bytes"):
        there.receive_into(bytearray(79_999), 10)
    assert there.receive_into(target.data, 10) == (3, 4, 80_000)
    assert (target[:-1] == source).all()
    assert target[-1] == 0
    with pytest.raises((TypeError, BufferError)):
        there.receive_into(b"not writable", 0)


def test_both_ends_send_and_receive_at_once(pair: tuple[Connection, Connection]) -> None:
    payload = np.random.default_rng(2).bytes(262_144)

    def send_all(end: Connection) -> None:
        for number in range(50):
            end.send(1, number, payload)

    def receive_all(end: Connection) -> bool:
        return all(end.receive(30) == (1, number, payload) for number in range(50))

    with ThreadPoolExecutor(4) as pool:
        sending = [pool.submit(send_all, end) for end in pair]
        receiving = [pool.submit(receive_all, end) for end in pair]
        assert all(done.result() for done in receiving)
        for done in sending:
            done.result()


def test_waiting_ends_when_its_time_is_over(wire: Transport, pair: tuple[Connection, Connection]) -> None:
    for timeout in (0, 0.05, 0.25):
        start = time.monotonic()
        assert pair[0].receive(timeout) is None
        assert pair[0].receive_into(bytearray(1), 0) is None
        assert timeout <= time.monotonic() - start < timeout + 2
    listener = wire.listen(KEY)
    assert listener.accept(0.05) is None
    listener.close()


def test_other_threads_run_while_one_waits(pair: tuple[Connection, Connection]) -> None:
    got: list[object] = []
    waiting = in_thread(lambda: got.append(pair[0].receive(30)))
    pair[1].send(1, 1, b"from the thread that would be kept out")
    waiting.join(10)
    assert got == [(1, 1, b"from the thread that would be kept out")]


def test_what_was_sent_before_closing_arrives_and_then_the_host_is_lost(pair: tuple[Connection, Connection]) -> None:
    here, there = pair
    here.send(1, 1, b"last words")
    here.close()
    here.close()
    assert there.receive(10) == (1, 1, b"last words")
    with pytest.raises(HostLost) as caught:
        there.receive(10)
    assert caught.value.host == there.peer
    with pytest.raises(Closed):
        here.receive(0)
    with pytest.raises(Closed):
        here.send(1, 1, b"")


def test_closing_wakes_who_waits(wire: Transport, pair: tuple[Connection, Connection]) -> None:
    caught: list[BaseException] = []
    listener = wire.listen(KEY)

    def wait(call: Callable[[], object]) -> None:
        try:
            call()
        except Closed as error:
            caught.append(error)

    waiting = [in_thread(lambda: wait(pair[0].receive)), in_thread(lambda: wait(listener.accept))]
    time.sleep(0.1)
    pair[0].close()
    listener.close()
    for thread in waiting:
        thread.join(5)
    assert len(caught) == 2


def test_a_dialer_with_another_key_gets_nothing_and_keeps_nobody_out(wire: Transport) -> None:
    listener = wire.listen(KEY)
    with ThreadPoolExecutor(2) as pool:
        stranger = pool.submit(wire.connect, "127.0.0.1", listener.port, OTHER_KEY, 5)
        assert listener.accept(0.5) is None
        with pytest.raises((HostLost, Refused)):
            stranger.result()
        friend = pool.submit(wire.connect, "127.0.0.1", listener.port, KEY, 5)
        there = listener.accept(5)
        assert there is not None
        friend.result().send(1, 1, b"hello")
        assert there.receive(5) == (1, 1, b"hello")
    listener.close()


def test_nobody_there_is_a_lost_host(wire: Transport) -> None:
    listener = wire.listen(KEY)
    port = listener.port
    listener.close()
    with pytest.raises(HostLost, match=f"127.0.0.1:{port}") as caught:
        wire.connect("127.0.0.1", port, KEY, 2)
    assert caught.value.host == f"127.0.0.1:{port}"


def test_a_key_of_another_length_is_bad_input(wire: Transport) -> None:
    with pytest.raises(BadInput, match="32 bytes"):
        wire.listen(b"short")
    with pytest.raises(BadInput, match="32 bytes"):
        wire.connect("127.0.0.1", 1, b"", 1)
