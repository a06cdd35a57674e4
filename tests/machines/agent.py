"""In the guest, process 1: runs shell commands that come as JSON lines over a virtio serial port."""

from __future__ import annotations

import json
import os
import threading
import time

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PORTS = "/sys/class/virtio-ports"


def find_port() -> str:
    while True:
        for name in os.listdir(PORTS) if os.path.isdir(PORTS) else []:
            with open(f"{PORTS}/{name}/name") as file:
                if file.read().strip() == "agent":
                    return f"/dev/{name}"
        time.sleep(0.02)


class Agent:
    def __init__(self) -> None:
        self.port = os.open(find_port(), os.O_RDWR | os.O_CLOEXEC)
        self.writing = threading.Lock()
        self.ended: dict[int, int] = {}
        self.news = threading.Condition()
        self.born = threading.Event()  # there may be children to wait for

    def say(self, what: dict[str, object]) -> None:
        data = json.dumps(what).encode() + b"\n"
        with self.writing:
            while data:
                data = data[os.write(self.port, data) :]

    def work(self, number: int, shell: str) -> None:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            os.execv("/bin/bash", ["bash", "-c", shell])
        self.born.set()
        os.close(writer)
        out = b""
        while part := os.read(reader, 1 << 16):
            out += part
        os.close(reader)
        with self.news:
            self.news.wait_for(lambda: pid in self.ended)
            code = os.waitstatus_to_exitcode(self.ended.pop(pid))
        self.say({"id": number, "code": code, "out": out.decode(errors="replace")[-1_000_000:]})

    def reap(self) -> None:
        """The children of all that ends in the guest are this process's."""
        while True:
            try:
                pid, status = os.wait()
            except ChildProcessError:
                self.born.wait()
                self.born.clear()
                continue
            with self.news:
                self.ended[pid] = status
                self.news.notify_all()

    def serve(self) -> None:
        threading.Thread(target=self.reap, daemon=True).start()
        self.say({"id": 0, "hello": os.uname().release})
        buffer = b""
        while True:
            part = os.read(self.port, 1 << 16)
            if not part:  # nobody is at the other end just now
                time.sleep(0.05)
            *lines, buffer = (buffer + part).split(b"\n")
            for line in lines:
                ask = json.loads(line)
                threading.Thread(target=self.work, args=(ask["id"], ask["sh"]), daemon=True).start()


if __name__ == "__main__":
    os.environ.update(PATH=PATH, HOME="/root", LANG="C.UTF-8", TERM="dumb")
    os.chdir("/root")
    Agent().serve()
