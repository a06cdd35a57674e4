"""A recommender of TorchRec's own modules trains tables in a space. A server reads them there, without TorchRec."""

import os
import sys

import torch
import torch.distributed as dist

import openshelf as osf
from openshelf.errors import MissingExtra

try:
    from openshelf.adapters.torchrec import TableSharder
except MissingExtra as missing:
    print(f"TorchRec is not installed: {missing}")
    sys.exit()

from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.models.dlrm import DLRM
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

NAME = f"example-{os.getpid()}"
ROWS, DIM, BATCH = 1_000, 16, 64


def model() -> DLRM:
    """Nothing here knows of Openshelf."""
    tables = [
        EmbeddingBagConfig(name=name, embedding_dim=DIM, num_embeddings=ROWS, feature_names=[name])
        for name in ("users", "films")
    ]
    bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    made = DLRM(bags, dense_in_features=4, dense_arch_layer_sizes=[16, DIM], over_arch_layer_sizes=[16, 1])
    apply_optimizer_in_backward(RowWiseAdagrad, made.sparse_arch.parameters(), {"lr": 0.1})
    return made


def main() -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    space = osf.Space.create(NAME, dram="32MiB")
    trained = DistributedModelParallel(model(), device=torch.device("cpu"), sharders=[TableSharder(space)])
    server = osf.Table.open(osf.Space.open(NAME), "users")  # or in another process of this host
    before = server.lookup([7])
    for _ in range(20):
        ids = torch.randint(0, 100, (2 * BATCH,))
        features = KeyedJaggedTensor(["users", "films"], ids, lengths=torch.ones(2 * BATCH, dtype=torch.int64))
        loss = (trained(torch.rand(BATCH, 4), features) - 1).square().mean()
        loss.backward()  # changes rows in the space
    changed = bool((server.lookup([7]) != before).any())
    print(f"{server!r}; the server sees what was learnt: {changed}")
    dist.destroy_process_group()
    osf.Space.remove(NAME)


if __name__ == "__main__":
    main()
