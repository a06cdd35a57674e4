"""The models of bench/offload.py: shapes, with random weights, or with none.

Nothing is imported before it is needed: torch takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Of a Llama in float32."""

    hidden: int
    layers: int
    between: int
    vocabulary: int = 8192

    @property
    def config(self) -> Any:
        from transformers import LlamaConfig

        return LlamaConfig(
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            intermediate_size=self.between,
            num_attention_heads=max(1, self.hidden // 128),
            vocab_size=self.vocabulary,
            use_cache=False,
        )

    @property
    def nbytes(self) -> int:
        matrices = self.layers * (4 * self.hidden**2 + 3 * self.hidden * self.between)
        return 4 * (matrices + 2 * self.vocabulary * self.hidden)

    def __str__(self) -> str:
        return f"Llama shape of {self.nbytes / 1e9:.2f} GB, {self.layers} layers"


SHAPES = {
    "full": Shape(1536, 11, 4224),
    "quick": Shape(1536, 3, 4224),
    "warm": Shape(128, 1, 256, 64),
    "train_quick": Shape(1024, 2, 2816, 2048),
}


def ids_of(shape: Shape, count: int, length: int) -> Any:
    import torch

    return torch.randint(0, shape.vocabulary, (count, length), generator=torch.Generator().manual_seed(1))


def empty_model(shape: Shape) -> Any:
    """Without weights; what it can compute itself is there."""
    import torch
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(shape.config)
    model.model.rotary_emb = type(model.model.rotary_emb)(shape.config)
    return model


def random_model(shape: Shape) -> Any:
    model = empty_model(shape)
    model.load_state_dict({name: random_tensor(one) for name, one in model.named_parameters()}, assign=True)
    return model.requires_grad_()


def random_tensor(like: Any) -> Any:
    import torch

    made = torch.empty(like.shape)
    return made.fill_(1.0) if made.dim() == 1 else made.uniform_(-0.03, 0.03)


def write_checkpoint(shape: Shape, folder: Path) -> None:
    from safetensors.torch import save_file

    folder.mkdir()
    save_file(dict(random_model(shape).state_dict()), folder / "model.safetensors")
