"""DLRM and DCNv2 of TorchRec's own modules, trained as torchrec_dlrm does it; only the sharders and the plan differ."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.datasets.utils import Batch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRMTrain
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

ROWS, DIM, BATCH, DENSE = (60, 200, 37, 500), 16, 32, 8
NAMES = [f"t{number}" for number in range(len(ROWS))]
WHERE = "model.sparse_arch.embedding_bag_collection"
CPU = torch.device("cpu")


def collection(shared: bool = False, **options: Any) -> EmbeddingBagCollection:
    """`shared`: the first table has two features."""
    tables = [
        EmbeddingBagConfig(
            name=name,
            embedding_dim=DIM,
            num_embeddings=rows,
            feature_names=["f0", "again"] if shared and name == "t0" else [f"f{number}"],
            **options,
        )
        for number, (name, rows) in enumerate(zip(NAMES, ROWS, strict=True))
    ]
    return EmbeddingBagCollection(tables=tables, device=torch.device("meta"))


def network(kind: str, **options: Any) -> DLRMTrain:
    torch.manual_seed(7)
    bags = collection(**options)
    if kind == "dlrm":
        return DLRMTrain(DLRM(bags, DENSE, [32, DIM], [32, 1]))
    return DLRMTrain(DLRM_DCN(bags, DENSE, [32, DIM], [32, 1], 2, 8))


def features(step: int, first: int, count: int, weighted: bool = False) -> KeyedJaggedTensor:
    """Rows [first, first + count) of a batch: bags of 0 to 4 ids, some of which come often."""
    made = torch.Generator().manual_seed(1000 + step)
    values, lengths, weights = [], [], []
    for rows in (*ROWS, ROWS[0]):
        sizes = torch.randint(0, 5, (BATCH,), generator=made)
        ids = torch.randint(0, rows, (int(sizes.sum()),), generator=made)
        ids = torch.where(torch.rand(len(ids), generator=made) < 0.3, ids % 3, ids)
        factors = torch.rand(len(ids), generator=made)
        begin, end = int(sizes[:first].sum()), int(sizes[: first + count].sum())
        values.append(ids[begin:end])
        weights.append(factors[begin:end])
        lengths.append(sizes[first : first + count])
    return KeyedJaggedTensor(
        keys=[*(f"f{number}" for number in range(len(ROWS))), "again"],
        values=torch.cat(values),
        lengths=torch.cat(lengths),
        weights=torch.cat(weights) if weighted else None,
    )


def batch(step: int, first: int = 0, count: int = BATCH) -> Batch:
    made = torch.Generator().manual_seed(step)
    dense = torch.rand(BATCH, DENSE, generator=made)[first : first + count]
    labels = torch.randint(0, 2, (BATCH,), generator=made)[first : first + count]
    return Batch(dense, features(step, first, count), labels)


def plan_of(module: Any, each: dict[str, Any] | None = None, sharder: Any = None, where: str = WHERE) -> ShardingPlan:
    """`each`: how each table is sharded; else all of them are on rank 0."""
    bags = module.get_submodule(where) if where else module
    given = each or {name: table_wise(rank=0) for name in NAMES}
    size = dist.get_world_size()
    made = construct_module_sharding_plan(bags, given, sharder, local_size=size, world_size=size, device_type="cpu")
    return ShardingPlan({where: made})


class Trained:
    """A model under DistributedModelParallel with the optimizers of torchrec_dlrm."""

    def __init__(
        self,
        sharder: Any,
        optimizer: Any = torch.optim.SGD,
        kind: str = "dlrm",
        each: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        module = network(kind, **options)
        if optimizer is not None:
            apply_optimizer_in_backward(optimizer, module.model.sparse_arch.parameters(), {"lr": 0.1})
        plan = plan_of(module, each)
        torch.manual_seed(11)  # rows begin as each rank draws them
        self.model = DistributedModelParallel(
            module, ShardingEnv.from_process_group(dist.group.WORLD), CPU, plan=plan, sharders=[sharder]
        )
        dense = KeyedOptimizerWrapper(
            dict(in_backward_optimizer_filter(self.model.named_parameters())), lambda some: torch.optim.SGD(some, 0.1)
        )
        self.optimizer = CombinedOptimizer([self.model.fused_optimizer, dense])

    def step(self, number: int) -> float:
        size, rank = dist.get_world_size(), dist.get_rank()
        share = BATCH // size
        self.optimizer.zero_grad()
        loss, _ = self.model(batch(number, rank * share, share))
        loss.backward()
        self.optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        found: float = whole.item() / size
        return found

    def steps(self, count: int, first: int = 0) -> list[float]:
        return [self.step(number) for number in range(first, first + count)]

    def bags(self) -> Any:
        return self.model.module.get_submodule(WHERE)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.model.fused_optimizer.state_dict()}
