"""Two hosts, one address: host b stores into host a's bytes, and a's next load sees it. Here both are on loopback."""

import multiprocessing
import os
import socket
import tempfile

import openshelf as osf
from openshelf.cli import main as openshelf


def host_b(url: str, hosts: str) -> None:
    with osf.Space.open(url, contribute="16MiB", hosts=hosts) as space:
        weights = space["model/weights"].numpy()  # the same address as on host a; no byte has moved yet
        weights *= 2  # plain loads and stores: now they have


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir="/dev/shm") as home:
        os.environ["OPENSHELF_DIR"] = home
        hosts = f"{home}/hosts.yaml"  # the list of hosts and their common key: the same private file on each
        a, b = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        openshelf(["hosts", "new", hosts, a, b])
        with osf.Space.open(f"openshelf://{a}/demo", contribute="16MiB", hosts=hosts) as space:
            space.full("model/weights", 1000, 1.0, "float64")
            weights = space["model/weights"].numpy()
            process = multiprocessing.get_context("spawn").Process(target=host_b, args=(f"openshelf://{b}/demo", hosts))
            process.start()
            process.join()
            print("host a loads", weights[:3], "at", hex(space["model/weights"].address))
            del weights
