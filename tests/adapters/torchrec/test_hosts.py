"""Two processes on two hosts, each with its part of the tables, train as one process with FBGEMM's fused kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchrec", reason="TorchRec is not installed: pip install --no-deps torchrec==1.8.0")

from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from openshelf import Space
from openshelf.adapters.torchrec import TableSharder, load_checkpoint
from tests.adapters.torchrec import worker
from tests.adapters.torchrec.models import WHERE, Trained
from tests.space.hosts.harness import net
from tests.space.hosts.harness.cluster import Cluster, close_nurseries
from tests.space.hosts.harness.nursery import NurseryPeer

STEPS = 100


@pytest.fixture
def pair() -> Iterator[tuple[Cluster, list[NurseryPeer]]]:
    """A process on each of two hosts, which are network namespaces where those can be made."""
    network = None if net.why_not() else net.Network(2)
    try:
        with Cluster(2, network) as cluster:
            name = "lo" if network is None else "eth0"
            yield cluster, [cluster[at].peer(GLOO_SOCKET_IFNAME=name, OMP_NUM_THREADS="1") for at in range(2)]
    finally:
        close_nurseries()
        if network is not None:
            network.close()


def both(peers: list[NurseryPeer], work: Any, *arguments: Any) -> list[Any]:
    for peer in peers:
        peer.start(work, *arguments)
    return [peer.finish() for peer in peers]


@pytest.mark.usefixtures("alone")
def test_hosts_train_as_one_process_and_share_checkpoints_with_it(
    space: Space, tmp_path: Path, pair: tuple[Cluster, list[NurseryPeer]]
) -> None:
    cluster, peers = pair
    for rank, peer in enumerate(peers):
        peer.start(worker.join, rank, 2, str(tmp_path / "store"), cluster[rank].url())
    for peer in peers:
        peer.finish()
    there: set[str] = set()
    for kind in ("sgd", "rowwise"):
        alone = Trained(EmbeddingBagCollectionSharder(), worker.KINDS[kind][0])
        begin = {
            key: value.local_shards()[0].tensor if WHERE in key else value
            for key, value in alone.model.state_dict().items()
        }
        torch.save(begin, tmp_path / "begin.pt")
        expected = alone.steps(STEPS)
        for losses, names in both(peers, worker.train, str(tmp_path / "begin.pt"), kind, STEPS):
            assert losses == pytest.approx(expected, rel=1e-5)
            there |= set(names)
    parts = {"t0", "t1@0:100,0:16", "t1@100:200,0:16", "t3@0:250,0:16", "t3@250:500,0:16"}
    assert there == {f"{kind}/{name}" for kind in ("sgd", "rowwise") for name in parts} | {
        "rowwise/t2", "sgd/t2@0:37,0:8", "sgd/t2@0:37,8:16",
    }  # fmt: skip

    saved = tmp_path / "saved"
    after = both(peers, worker.save, str(saved), 3)
    ours = Trained(TableSharder(space), RowWiseAdagrad)  # from two processes to one, which shards otherwise
    state = {"model": ours.model.state_dict()}
    load_checkpoint(state, saved)
    ours.model.load_state_dict(state["model"])
    assert ours.steps(1, first=200) == pytest.approx(after[0][:1], rel=1e-5)
    assert both(peers, worker.load, str(saved), 3) == after
    next(iter(saved.glob("__1_*.distcp"))).unlink()  # what the second process wrote
    assert all(
        said.startswith("BadInput: ") and "has no file __1_" in said for said in both(peers, worker.refuse, str(saved))
    )
    both(peers, worker.leave)
