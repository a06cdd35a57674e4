"""Keepers on the nodes of a real Ray cluster: two nodes on this machine.

Ray takes most of a minute to install, so it is not among the test requirements: pip install 'openshelf[ray]' runs this.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf.errors import UnknownName
from tests.space.hosts.harness.cluster import free_ports

ray: Any = pytest.importorskip("ray", reason="Ray is not installed: pip install 'openshelf[ray]'")

from openshelf.adapters.ray import Keepers, start_keepers  # noqa: E402 after it is known that Ray is there


@pytest.fixture
def cluster(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("OPENSHELF_DIR", str(home))
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    sizes: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=sizes)
    made.add_node(num_cpus=1, object_store_memory=80 << 20)
    ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def _write(keepers: Keepers, value: int) -> str:
    with keepers.open() as space:
        return str(space.put("a", np.full(1000, value)).home)


def _read(keepers: Keepers) -> int:
    with keepers.open() as space:
        return int(space["a"].numpy().sum())


def _on(node: str, function: Any, *arguments: Any) -> Any:
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return ray.get(ray.remote(function).options(scheduling_strategy=strategy, num_cpus=0).remote(*arguments))


def test_each_node_has_a_keeper_which_is_started_again_when_it_is_killed(cluster: Any, home: Path) -> None:
    keepers = start_keepers("demo", "16MiB", port=free_ports(2)[0])
    one, other = (node.node_id for node in keepers.nodes)
    assert len(set(keepers.hosts)) == 2
    assert _on(one, _write, keepers, 1) == keepers.hosts[0]
    assert _on(other, _read, keepers) == 1000
    first = ray.get(keepers._actors[0].pid.remote())
    os.kill(first, signal.SIGKILL)
    assert _on(other, _read, keepers) == 1000
    deadline = time.monotonic() + 30
    while ray.get(keepers._actors[0].pid.remote()) == first:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(UnknownName, match="came to the cluster after"):
        Keepers("demo", keepers.nodes[1:] if _here() == one else keepers.nodes[:1], []).open()
    keepers.stop(remove=True)
    assert not list(home.glob("demo@*"))


def _here() -> str:
    return str(ray.get_runtime_context().get_node_id())
