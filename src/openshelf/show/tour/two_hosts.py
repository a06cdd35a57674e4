"""Two hosts on one machine: network namespaces joined by a cable of their own, or two ports of the loopback.

A namespace lives as long as a process is in it: a `cat` that ends when this process does, so a killed tour or
benchmark leaves no namespace behind. Each host has its own directory of spaces, so nothing is shared but the wire.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from openshelf.errors import NotPermitted

PORT = 7400


class Host(NamedTuple):
    number: int
    address: str  # host:port
    device: str  # the network interface
    enter: tuple[str, ...]  # in front of a command that shall run there
    directory: Path  # its OPENSHELF_DIR
    hosts_file: Path

    @property
    def ip(self) -> str:
        return self.address.rsplit(":", 1)[0]

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"OPENSHELF_DIR": str(self.directory), "OPENSHELF_HOSTS": str(self.hosts_file)}

    def url(self, space: str) -> str:
        return f"openshelf://{self.address}/{space}"

    def keeper_pid(self) -> int:
        """The process that listens on the keeper's socket, as the kernel tells whoever connects."""
        path = str(self.directory / f"keeper@{self.address}.sock")
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):  # which one is the keeper's affair
            with socket.socket(socket.AF_UNIX, kind) as line:
                if line.connect_ex(path) == 0:
                    pid, _, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                    return int(pid)
        raise ProcessLookupError(f"no keeper listens at {path}")

    def stop_keeper(self) -> None:
        """Ends what Space.open started there; it would end by itself, but after its directory."""
        with contextlib.suppress(OSError):
            pid = self.keeper_pid()
            os.kill(pid, signal.SIGTERM)
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                os.kill(pid, 0)
                time.sleep(0.01)
            os.kill(pid, signal.SIGKILL)


class TwoHosts(NamedTuple):
    a: Host
    b: Host
    link: str


@contextlib.contextmanager
def on_loopback(home: Path) -> Iterator[TwoHosts]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in (one, two)]
    yield from _pair(home, addresses, ("lo", "lo"), ((), ()), "loopback")


@contextlib.contextmanager
def in_namespaces(home: Path) -> Iterator[TwoHosts]:
    """Raises NotPermitted with the reason where they cannot be made."""
    holders: list[subprocess.Popen[bytes]] = []
    enters: list[tuple[str, ...]] = []
    devices = ("osf-a", "osf-b")
    try:
        for tool in ("ip", "unshare", "nsenter"):
            if shutil.which(tool) is None:
                raise NotPermitted(f"network namespaces need the command {tool!r}, which is not installed")
        for device in devices:
            # A host name of its own too: some programs take equal names for one machine.
            holder = subprocess.Popen(
                ["unshare", "--net", "--uts", "cat"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            holders.append(holder)
            _wait_inside(holder)
            enters.append(("nsenter", "--net", "--uts", "--target", str(holder.pid), "--"))
            _run(*enters[-1], "sh", "-c", f"echo {device} > /proc/sys/kernel/hostname && ip link set lo up")
        one, two = (str(holder.pid) for holder in holders)
        _run("ip", "link", "add", devices[0], "netns", one, "type", "veth", "peer", "name", devices[1], "netns", two)
        for number, (enter, device) in enumerate(zip(enters, devices, strict=True), 1):
            _run(*enter, "ip", "address", "add", f"10.77.0.{number}/24", "dev", device)
            _run(*enter, "ip", "link", "set", device, "up")
        addresses = [f"10.77.0.1:{PORT}", f"10.77.0.2:{PORT}"]
        yield from _pair(home, addresses, devices, (enters[0], enters[1]), "network namespaces")
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()


def _pair(
    home: Path,
    addresses: list[str],
    devices: tuple[str, str],
    enters: tuple[tuple[str, ...], tuple[str, ...]],
    link: str,
) -> Iterator[TwoHosts]:
    hosts_file = home / "hosts.yaml"
    hosts_file.touch(0o600)
    hosts_file.write_text(f'key: "{secrets.token_hex(32)}"\nhosts: ["{addresses[0]}", "{addresses[1]}"]\n')
    hosts = []
    for number, name in enumerate("ab"):
        directory = home / name
        directory.mkdir(mode=0o700)
        hosts.append(Host(number, addresses[number], devices[number], enters[number], directory, hosts_file))
    try:
        yield TwoHosts(hosts[0], hosts[1], link)
    finally:
        for host in hosts:
            host.stop_keeper()


def _wait_inside(holder: subprocess.Popen[bytes]) -> None:
    """Until `cat` answers, `unshare` is done."""
    assert holder.stdin
    assert holder.stdout
    assert holder.stderr
    with contextlib.suppress(BrokenPipeError):
        holder.stdin.write(b"?")
        holder.stdin.flush()
    if holder.stdout.read(1) != b"?":
        raise NotPermitted(f"no network namespace: {holder.stderr.read().decode().strip()}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotPermitted(f"no network namespaces: {' '.join(command)}: {done.stderr.strip()}")
