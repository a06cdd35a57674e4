"""Hosts that agree in etcd, for tests: as a Cluster, but the file of hosts holds only a key."""

from __future__ import annotations

import os
import time
from pathlib import Path

from openshelf.errors import NoAgreement
from openshelf.membership import Agreed, Etcd, Table, read_table
from openshelf.space.hosts import by_etcd
from openshelf.space.hosts.hosts_file import read_hosts
from openshelf.space.hosts.urls import parse_etcd
from tests.processes import PATIENCE, State
from tests.space.hosts.harness.cluster import Cluster, Host
from tests.space.hosts.harness.etcd import Servers
from tests.space.hosts.harness.net import Network


def _take_places(state: State, url: str, file: str, addresses: list[str]) -> None:
    deadline = time.monotonic() + 30 * PATIENCE
    where = parse_etcd(url)
    membership = by_etcd.membership_of(where)
    while True:
        try:
            membership.make(by_etcd._new_spec(where, read_hosts(file, only_key=True)))
            for address in addresses:
                membership.resign(membership.join(address, ""))
            membership.view()
            return
        except NoAgreement:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


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

    def let_spaces_choose_ports(self) -> None:
        """For several spaces on each host: every host has an address of its own, and each space of it a port."""
        for host in self.hosts:
            process = os.getpid()
            host.address = f"127.{1 + process // 250 % 250}.{process % 250}.{1 + host.number}"
            host.environment["OPENSHELF_HOST"] = host.address

    def write_hosts(self, path: Path, key: str | None = None) -> None:
        path.write_text(f"key: {key or self.key}\nreserve: 32GiB\nbase: {self.base:#x}\n")
        path.chmod(0o600)

    @property
    def url(self) -> str:
        return f"etcd://{','.join(self.servers.clients)}/{self.space}"

    def number_as_listed(self) -> None:
        """Every host gets the place that its entry would have in a file of hosts, whoever joins first."""
        self.hosts[0].peer().call(_take_places, self.url, str(self.file), self.addresses)

    def url_of(self, host: Host, name: str) -> str:
        return f"etcd://{','.join(self.servers.clients)}/{self.space}{'' if name == 'demo' else name}"

    def part(self, host: Host) -> Path:
        return host.directory / f"{self.space}@{host.address}"

    def table(self, host: Host) -> Table:
        """What the host's keeper last knew."""
        found = read_table(self.part(host))
        assert found is not None
        return found
