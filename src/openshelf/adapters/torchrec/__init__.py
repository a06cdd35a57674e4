"""TorchRec: tables of an EmbeddingBagCollection in a Space, as the kernel of its shards.

Model, KeyedJaggedTensor and DistributedModelParallel stay as they are: only the sharder differs, and the plan where
some tables are to stay TorchRec's own (`EmbeddingComputeKernel.CUSTOMIZED_KERNEL` marks ours). Each shard is a Table.
What TorchRec sees of it are tensors on the table's memory, so state dicts and checkpoints are its fused kernel's.
"""

from openshelf.adapters.torchrec.checkpoint import load_checkpoint
from openshelf.adapters.torchrec.sharder import TableSharder

__all__ = ["TableSharder", "load_checkpoint"]
