"""TorchRec's modules, or an error that names the extra. Untyped: where types are checked there may be no TorchRec."""

from __future__ import annotations

import importlib
from typing import Any

from openshelf._dtypes import torch_module
from openshelf.errors import MissingExtra

torch: Any = torch_module()
NEEDED = ("fbgemm_gpu", "pyre_extensions", "tensordict", "torchrec")
try:
    # FBGEMM registers the operators that TorchRec's modules take when they are imported.
    importlib.import_module("fbgemm_gpu")
    embeddingbag: Any = importlib.import_module("torchrec.distributed.embeddingbag")
    embedding_lookup: Any = importlib.import_module("torchrec.distributed.embedding_lookup")
    embedding_types: Any = importlib.import_module("torchrec.distributed.embedding_types")
    kernels: Any = importlib.import_module("torchrec.distributed.batched_embedding_kernel")
    slices: Any = importlib.import_module("torchrec.distributed.composable.table_batched_embedding_slice")
    types: Any = importlib.import_module("torchrec.distributed.types")
    configs: Any = importlib.import_module("fbgemm_gpu.split_embedding_configs")
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] not in NEEDED:
        raise
    raise MissingExtra(
        f"this needs TorchRec 1.8 and found no {error.name}: pip install --no-deps torchrec==1.8.0, and what the "
        "extra openshelf[torchrec] lists, see docs/tables.md"
    ) from error
