"""Guests of QEMU: hosts with kernels of their own, over the files of this machine.

A guest sees the root of this machine read-only through 9p, below an overlay in its memory: so it has the same Python,
the same environments and this checkout at the same paths, and nothing that it writes leaves it. The kernel, its modules
and a few tools come from what prepare.py unpacked. No rights are needed. Guests are emulated (TCG), for a stock
kernel does not run under every /dev/kvm: all is five to twelve times slower, and patience is ten times as long.

`-smp 1,maxcpus=2`, never `-smp 1`: where a guest can only ever have one processor, TCG leaves out the `lock` of
instructions, and atomics are not atomic in memory that two guests share.
"""

from __future__ import annotations

import functools
import gzip
import json
import lzma
import os
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

VARIABLE = "OPENSHELF_MACHINES"  # the folder that prepare.py filled; without it these tests are skipped
TREE = Path(__file__).resolve().parents[2]
PATIENCE = 10.0  # times as long as without emulation
_EARLY = ("virtio_pci", "virtio_console", "9p", "9pnet_virtio", "overlay")

_CALM = "nokaslr mitigations=off random.trust_cpu=on"
_BOOTS = 4  # on a busy machine a kernel may find that its timer does not work, and panic; then it is started again
_UP_S = 150.0

_INIT = """#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc proc /proc; $B mount -t sysfs sys /sys; $B mount -t devtmpfs dev /dev
for m in $($B cat /order); do $B insmod /m/$m || echo "insmod $m failed"; done
for part in root tools; do
  $B mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 $part /$part || $B sh
done
$B mount -t tmpfs -o size=100% up /up; $B mkdir /up/upper /up/work
$B mount -t overlay -o lowerdir=/tools:/root,upperdir=/up/upper,workdir=/up/work,xino=off over /new || $B sh
$B mkdir -p /new/lib/modules /new/proc /new/sys /new/dev
$B ln -s @MODULES@ /new/lib/modules/$($B uname -r)
for part in dev proc sys; do $B mount --move /$part /new/$part; done
$B mkdir -p /new/dev/shm /new/dev/pts
$B mount -t tmpfs -o size=100%,mode=1777 shm /new/dev/shm; $B mount -t devpts pts /new/dev/pts
$B mount -t tmpfs -o mode=755 run /new/run
exec $B switch_root /new @PYTHON@ -I -S @AGENT@
"""


def place() -> Path:
    return Path(os.environ[VARIABLE]).resolve()


def _archive(entries: list[tuple[str, int, bytes]]) -> bytes:
    """A cpio archive (newc)."""
    out = bytearray()
    for number, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        out += b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        out += b"\0" * (-len(out) % 4)
        out += data + b"\0" * (-len(data) % 4)
    return bytes(out)


def _with_dependencies(modules: Path, wanted: Sequence[str]) -> list[Path]:
    """Files of modules, in the order in which they can be loaded. What is built in has none."""
    depends = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        depends[path] = others.split()
    named = {Path(path).name.split(".")[0].replace("-", "_"): path for path in depends}
    order: list[str] = []
    for name in wanted:
        if own := named.get(name):
            order += [one for one in [*reversed(depends[own]), own] if one not in order]
    return [modules / path for path in order]


@functools.cache
def _first_files(kernel: str) -> Path:
    """The initial RAM disk: a shell and what it needs to find the root."""
    (modules,) = (place() / f"kernel-{kernel}/lib/modules").iterdir()
    folders = ("bin", "dev", "proc", "sys", "m", "root", "tools", "up", "new")
    entries = [(folder, 0o40755, b"") for folder in folders]
    entries.append(("bin/busybox", 0o100755, (place() / "tools/usr/bin/busybox").read_bytes()))
    names = []
    for path in _with_dependencies(modules, _EARLY):
        data = path.read_bytes()
        names.append(path.name.removesuffix(".xz"))
        entries.append((f"m/{names[-1]}", 0o100644, lzma.decompress(data) if path.suffix == ".xz" else data))
    text = _INIT.replace("@MODULES@", str(modules)).replace("@PYTHON@", "/usr/bin/python3")
    text = text.replace("@AGENT@", str(TREE / "tests/machines/agent.py"))
    entries += [("order", 0o100644, "\n".join(names).encode()), ("init", 0o100755, text.encode())]
    path = place() / f"run/first-files-{kernel}-{os.getpid()}.gz"
    path.write_bytes(gzip.compress(_archive(entries), 1))
    return path


class Stopped(Exception):
    """A guest ended, or gave no answer."""


class Guest:
    """One guest, up when it is entered, without power when it is left. `devices` are further arguments of QEMU."""

    def __init__(
        self,
        name: str,
        kernel: str,
        memory: str = "768M",
        processors: str = "1,maxcpus=2",
        machine: str = "q35",
        devices: Sequence[str] = (),
    ) -> None:
        self.name, self.kernel = name, kernel
        run = place() / "run"
        self._files = {kind: run / f"{name}-{os.getpid()}.{kind}" for kind in ("agent", "qmp", "serial", "qemu")}
        shared = "security_model=none,readonly=on,multidevs=remap"
        self._command = [
            "qemu-system-x86_64", "-name", name, "-accel", "tcg,thread=multi", "-cpu", "max,-la57", "-M", machine,
            "-m", memory, "-smp", processors, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-serial", f"file:{self._files['serial']}",
            "-kernel", str(place() / f"vmlinux-{kernel}"), "-initrd", str(_first_files(kernel)),
            "-append", f"console=ttyS0 quiet panic=-1 oops=panic {_CALM}",
            "-fsdev", f"local,id=root,path=/,{shared}", "-device", "virtio-9p-pci,fsdev=root,mount_tag=root",
            "-fsdev", f"local,id=tools,path={place() / 'tools'},{shared}",
            "-device", "virtio-9p-pci,fsdev=tools,mount_tag=tools",
            "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=agent",
            "-chardev", f"socket,id=agent,path={self._files['agent']},server=on,wait=off",
            "-qmp", f"unix:{self._files['qmp']},server=on,wait=off", *devices,
        ]  # fmt: skip
        self._news = threading.Condition()
        self._answers: dict[int, dict[str, Any]] = {}
        self._asked = 0
        self._gone = False

    def __enter__(self) -> Guest:
        for left in reversed(range(_BOOTS)):
            try:
                self._boot()
                break
            except BaseException as error:
                self.cut()
                if not (left and isinstance(error, Stopped)):
                    raise
        return self

    def _boot(self) -> None:
        for path in self._files.values():
            path.unlink(missing_ok=True)
        with self._files["qemu"].open("w") as log:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait_up(_UP_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()

    def cut(self) -> None:
        """The power goes."""
        self.process.kill()
        self.process.wait()

    def _wait_up(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._socket = socket.socket(socket.AF_UNIX)
        while self._socket.connect_ex(str(self._files["agent"])):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Stopped(f"{self.name} did not start: {self.said()}")
            time.sleep(0.05)
        lines = self._socket.makefile("rb")
        self._socket.settimeout(seconds)
        try:
            hello = lines.readline()
        except TimeoutError:
            hello = b""
        if b"hello" not in hello:
            raise Stopped(f"{self.name} did not come up: {self.said()}")
        self._socket.settimeout(None)
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: Any) -> None:
        try:
            for line in lines:
                answer = json.loads(line)
                with self._news:
                    self._answers[answer["id"]] = answer
                    self._news.notify_all()
        except (OSError, ValueError):  # it ended in the middle of a line
            pass
        with self._news:
            self._gone = True
            self._news.notify_all()

    def begin(self, shell: str) -> int:
        """Starts a command; `end` waits for it."""
        with self._news:
            self._asked += 1
            self._socket.sendall(json.dumps({"id": self._asked, "sh": shell}).encode() + b"\n")
            return self._asked

    def end(self, number: int, timeout: float = 600) -> tuple[int, str]:
        """Exit code and output of a command."""
        with self._news:
            self._news.wait_for(lambda: number in self._answers or self._gone, timeout)
            if number not in self._answers:
                how = "ended" if self._gone else f"did not answer within {timeout} s"
                raise Stopped(f"{self.name} {how}: {self.said()}")
            answer = self._answers.pop(number)
        return answer["code"], answer["out"]

    def run(self, shell: str, timeout: float = 600) -> str:
        """The output of a command that must succeed."""
        code, out = self.end(self.begin(shell), timeout)
        if code:
            raise AssertionError(f"{self.name}: {shell!r} ended with {code}:\n{out}")
        return out

    def python(self, script: str, *arguments: str) -> str:
        """A shell command: a file of tests/machines, run with the environment of the checkout."""
        words = " ".join(["-X", "faulthandler", f"tests/machines/{script}", *arguments])
        return f"cd {TREE}; PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=. .venv/bin/python {words} 2>&1"

    def qmp(self, command: str, **arguments: object) -> None:
        """Asks QEMU itself; qmp("set_link", name="n0", up=False) pulls a cable."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(self._files["qmp"]))
            lines = asking.makefile("rwb")
            lines.readline()
            for ask in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                lines.write(json.dumps(ask).encode() + b"\n")
                lines.flush()
                while "event" in (answer := json.loads(lines.readline())):
                    pass
                assert "return" in answer, answer

    def serial(self) -> str:
        """What came over the serial line so far."""
        return self._files["serial"].read_text(errors="replace")

    def said(self) -> str:
        return "\n".join(
            self._files[kind].read_text(errors="replace")[-3000:]
            for kind in ("qemu", "serial")
            if self._files[kind].exists()
        )


def wires(first: str, second: str) -> tuple[list[str], list[str]]:
    """A cable between two guests, n0 on both ends."""
    ends = [place() / f"run/{name}-{os.getpid()}.wire" for name in (first, second)]
    for end in ends:
        end.unlink(missing_ok=True)
    arguments = []
    for number, (own, other) in enumerate((ends, reversed(ends)), 1):
        link = f"dgram,id=n0,local.type=unix,local.path={own},remote.type=unix,remote.path={other}"
        arguments.append(
            ["-netdev", link, "-device", f"virtio-net-pci,netdev=n0,mac=52:54:00:00:00:{number:02x}"],
        )
    return arguments[0], arguments[1]


def give_address(guest: Guest, number: int) -> None:
    guest.run(
        "modprobe virtio_net; for i in $(seq 50); do test -e /sys/class/net/eth0 && break; sleep 0.1; done; "
        f"ip link set lo up && ip addr add 10.78.0.{number}/24 dev eth0 && ip link set eth0 up"
    )
