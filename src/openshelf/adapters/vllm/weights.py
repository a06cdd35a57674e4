"""Names for a model's weights and for LoRA adapters, equal in every process, different wherever KV caches would be.

The files of a local folder are hashed, a second for each GiB; a model of a hub is named by its revision. Nothing looks
at them again while the engine runs.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

from openshelf._dtypes import torch_module
from openshelf.adapters.vllm.extra import vllm
from openshelf.errors import BadInput

_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})
_CODE = frozenset({".py"})  # of a model that brings its own
# Where a model came from and how it is run do not change what it computes; the dtype is part of the Layout.
_NOT_OF_THE_MODEL = frozenset(
    {"_name_or_path", "_commit_hash", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache"}
)


def model_name(config: Any, head_dim: int, given: str | None) -> str:
    """What stands for a model in its Layout: the weights (`given`, or found out), and what else is computed with them.

    `config` is vLLM's. A page's bytes depend on the engine, too: its version and device and what the CPU can do are
    part of the name. So is the longest sequence, by which some models choose what they compute of every token."""
    model = config.model_config
    weights = given if given is not None else _weights(config)
    facts = {
        "config": {key: value for key, value in model.hf_config.to_dict().items() if key not in _NOT_OF_THE_MODEL},
        "quantization": str(model.quantization),
        "dtype": str(model.dtype),
        "cache": str(config.cache_config.cache_dtype),
        "longest": model.max_model_len,
        "engine": f"vllm {vllm.__version__} {config.device_config.device_type}",
        "packed": [_packing(config, head_dim), torch_module().backends.cpu.get_cpu_capability()],
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    return f"{weights}|{digest[:32]}"


def _packing(config: Any, head_dim: int) -> str:
    """The instructions for which vLLM packs its pages: others order the same numbers in another way."""
    backend: Any = importlib.import_module("vllm.v1.attention.backends.cpu_attn")
    cache = config.cache_config
    return str(backend._get_attn_isa(config.model_config.dtype, cache.block_size, head_dim, cache.cache_dtype))


def _weights(config: Any) -> str:
    model = config.model_config
    how = "give 'model' in kv_connector_extra_config, a name for the weights and their revision"
    if str(config.load_config.load_format) == "dummy":
        raise BadInput(f"load_format='dummy' makes random weights that no file tells apart: {how}")
    where = Path(model.model)
    if where.is_file():
        return _digest([where])
    if where.is_dir():
        files = sorted(path for path in where.iterdir() if path.suffix in _SUFFIXES)
        if not files:
            raise BadInput(f"the model's folder {model.model!r} has no weights ({', '.join(sorted(_SUFFIXES))}): {how}")
        return _digest(files + sorted(path for path in where.iterdir() if path.suffix in _CODE))
    revision = getattr(model.hf_config, "_commit_hash", None)
    if not revision:
        raise BadInput(f"the model {model.model!r} is no local folder, and its revision is unknown: {how}")
    return f"{model.model}@{revision}"


def adapter_name(request: Any) -> str | None:
    """Of a LoRA adapter (vLLM's LoRARequest): a hash of its folder's files; None if it is not a local folder."""
    where = Path(request.lora_path)
    if not where.is_dir():
        return None
    return _digest(sorted(path for path in where.iterdir() if path.suffix in _SUFFIXES | {".json"}))


def _digest(files: list[Path]) -> str:
    """128 bits of a SHA-256 over the names and contents of files."""
    whole = hashlib.sha256(b"OSFVLLM1\0")
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.name}\0{content}\0".encode())
    return whole.hexdigest()[:32]
