"""Hosts that agree in etcd, for tests: as a Cluster, but the file of hosts holds only a key."""

from __future__ import annotations

from pathlib import Path

from openshelf.membership import Agreed, Etcd, Table, read_table
from tests.space.hosts.harness.cluster import Cluster, Host
from tests.space.hosts.harness.etcd import Servers
from tests.space.hosts.harness.net import Network


class AgreedCluster(Cluster):
    """`count` hosts that may join a space; who opens it by `url` joins."""

    def __init__(self, count: int, servers: Servers, network: Network | None = None) -> None:
        self.servers = servers
        super().__init__(count, network)
        self.space = f"demo{self.number}"  # what earlier tests left in etcd is of other spaces
        for host in self.hosts:
            host.environment |= {"OPENSHELF_HOST": host.address, "OPENSHELF_LINGER": "1"}
        self.membership = Agreed(Etcd(servers.clients), self.space)

    def __enter__(self) -> AgreedCluster:
        return self

    def write_hosts(self, path: Path, key: str | None = None) -> None:
        path.write_text(f"key: {key or self.key}\nreserve: 32GiB\nbase: {self.base:#x}\n")
        path.chmod(0o600)

    @property
    def url(self) -> str:
        return f"etcd://{','.join(self.servers.clients)}/{self.space}"

    def part(self, host: Host) -> Path:
        return host.directory / f"{self.space}@{host.address}"

    def table(self, host: Host) -> Table:
        """What the host's keeper last knew."""
        found = read_table(self.part(host))
        assert found is not None
        return found
