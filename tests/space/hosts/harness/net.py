"""Hosts as network namespaces: one bridge in a namespace of its own, one link from it to every host.

The namespaces have no names: they live as long as this process or one in them holds them, so not even kill -9 leaves
any. Nothing connects them to the machine's own network, so every Network uses the same addresses. Delay, loss and rate
are made by `tc`: netem where the kernel has it; elsewhere tbf for the rate, a classifier that drops at random for the
loss, and for the delay a process in the hub that hands frames on late.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

from tests.processes import PATIENCE

_NEW_NET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class NotAllowed(Exception):
    """This machine lets us make no network namespaces; the text says why."""


def _check(result: int, what: str) -> None:
    if result:
        raise NotAllowed(f"{what}: {os.strerror(ctypes.get_errno())}")


def enter(namespace: str) -> None:
    """Moves this thread, and those it starts, into a namespace given by path."""
    handle = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(handle, _NEW_NET), "setns")
    finally:
        os.close(handle)


def _new_namespace() -> int:
    """A handle of a fresh one; a thread of its own makes it, because that thread is then in it."""
    made: list[int | Exception] = []

    def make() -> None:
        try:
            _check(_libc.unshare(_NEW_NET), "unshare(CLONE_NEWNET)")
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        except (NotAllowed, OSError) as error:
            made.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], Exception):
        raise made[0]
    return made[0]


@functools.cache
def why_not() -> str | None:
    """None, or the reason why no Network can be made here."""
    try:
        with Network(1):
            return None
    except (NotAllowed, OSError, subprocess.SubprocessError) as error:
        return f"hosts as network namespaces need root and the tools `ip` and `tc`: {error}"


@functools.cache
def _has_netem() -> bool:
    with Network(1) as network:
        try:
            network.run_in_hub("tc", "qdisc add dev h0 root netem delay 1ms")
        except subprocess.SubprocessError:
            return False
    return True


class Network:
    """`count` hosts, each with its own address; all can reach all until told otherwise."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.addresses = [f"10.77.0.{host + 1}" for host in range(count)]
        self._handles: list[int] = []
        self._relays: dict[int, subprocess.Popen[bytes]] = {}
        self._late: set[int] = set()
        self._changed: set[int] = set()
        self._parted = False
        try:
            for _ in range(count + 1):
                self._handles.append(_new_namespace())
            self._join()
        except BaseException:
            self.close()
            raise

    def _join(self) -> None:
        lines = ["link add hub type bridge mcast_snooping 0", "link set lo up", "link set hub up"]
        for host in range(self.count):
            lines += [
                f"link add h{host} type veth peer name eth0 netns {self.path(host)}",
                f"link set h{host} master hub",
                f"link set h{host} up",
            ]
        self.run_in_hub("ip", *lines)
        for host, address in enumerate(self.addresses):
            self.run(host, "ip", "link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up")

    def path(self, host: int) -> str:
        """What a process, also of another session, opens to enter the host's namespace."""
        return f"/proc/{os.getpid()}/fd/{self._handles[host]}"

    def run(self, host: int, tool: str, *lines: str) -> None:
        """Commands of `ip`, `tc` or `bridge` in a host, or in the hub for number -1."""
        command = ["nsenter", f"--net={self.path(host)}", tool, "-batch", "-"]
        try:
            subprocess.run(
                command, input="\n".join(lines).encode(), check=True, capture_output=True, timeout=20 * PATIENCE
            )
        except FileNotFoundError as error:
            raise NotAllowed(str(error)) from None
        except subprocess.CalledProcessError as error:
            raise subprocess.SubprocessError(f"{tool} {lines}: {error.stderr.decode().strip()}") from None

    def run_in_hub(self, tool: str, *lines: str) -> None:
        self.run(-1, tool, *lines)

    def _port(self, host: int) -> str:
        """The end of a host's link that is in the bridge."""
        return f"e{host}" if host in self._late else f"h{host}"

    def cut(self, host: int) -> None:
        """From now on nothing goes from or to the host; nobody is told."""
        self._changed.add(host)
        self.run_in_hub("bridge", f"link set dev {self._port(host)} state 0")

    def heal(self, host: int) -> None:
        self.run_in_hub("bridge", f"link set dev {self._port(host)} state 3")

    def part(self, hosts: tuple[int, ...]) -> None:
        """Those hosts no longer reach each other, but still all others; part(()) ends it."""
        self._parted = bool(hosts)
        self.run_in_hub(
            "bridge",
            *[f"link set dev {self._port(h)} isolated {'on' if h in hosts else 'off'}" for h in range(self.count)],
        )

    def shape(self, host: int, delay_ms: float = 0.0, loss: float = 0.0, rate_mbit: float | None = None) -> None:
        """What the link of a host is like from now on, in each direction."""
        self._changed.add(host)
        self._clear(host)
        for number, device in ((host, "eth0"), (-1, f"h{host}")):
            if _has_netem():
                rate = f" rate {rate_mbit}mbit" if rate_mbit else ""
                if delay_ms or loss or rate:
                    self.run(
                        number,
                        "tc",
                        f"qdisc add dev {device} root netem delay {delay_ms}ms loss {loss * 100}%{rate} limit 100000",
                    )
                continue
            if rate_mbit:
                line = f"qdisc add dev {device} root tbf rate {rate_mbit}mbit burst 256kb latency 200ms"
                self.run(number, "tc", line)
            if loss:
                # Loads a random number, compares it, and returns "go on" (-1) or "drop" (2).
                chance = int(loss * (2**32 - 1))
                program = f"4,32 0 0 4294963256,37 0 1 {chance},6 0 0 4294967295,6 0 0 2"
                self.run(
                    number,
                    "tc",
                    f"qdisc add dev {device} clsact",
                    f'filter add dev {device} egress bpf da bytecode "{program}"',
                )
        if delay_ms and not _has_netem():
            self._delay(host, delay_ms)

    def _clear(self, host: int) -> None:
        for number, device in ((host, "eth0"), (-1, f"h{host}")):
            for kind in ("root", "clsact"):
                with contextlib.suppress(subprocess.SubprocessError):  # there was none
                    self.run(number, "tc", f"qdisc del dev {device} {kind}")
        if host in self._late:
            self._end_relay(host)
            self.run_in_hub("ip", f"link del e{host}", f"link set h{host} master hub")
            self._late.discard(host)

    def _delay(self, host: int, delay_ms: float) -> None:
        self.run_in_hub(
            "ip",
            f"link add d{host} type veth peer name e{host}",
            f"link set h{host} nomaster",
            f"link set e{host} master hub",
            f"link set d{host} up",
            f"link set e{host} up",
        )
        self._late.add(host)
        program = str(Path(__file__).with_name("delay_line.py"))
        command = ["nsenter", f"--net={self.path(-1)}", sys.executable, "-S", program, f"h{host}", f"d{host}"]
        relay = subprocess.Popen([*command, str(delay_ms / 1000)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._relays[host] = relay
        assert relay.stdout is not None
        assert relay.stdout.readline() == b"ready\n"

    def reset(self) -> None:
        """All links as they were made."""
        for host in range(self.count):
            if host in self._changed:
                self.shape(host)
                self.heal(host)
        if self._parted:
            self.part(())
        self._changed.clear()

    def _end_relay(self, host: int) -> None:
        relay = self._relays.pop(host, None)
        if relay is not None:
            relay.kill()
            relay.communicate()

    def close(self) -> None:
        for host in list(self._relays):
            self._end_relay(host)
        while self._handles:
            os.close(self._handles.pop())

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
