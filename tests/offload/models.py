"""Small models of the shapes that are run, and what runs them by a plan in an arena of just its size."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

from openshelf.offload.capture.captured import Captured
from openshelf.offload.program.program import Program
from openshelf.offload.program.steps import Step
from openshelf.offload.run.executor import Executor
from tests.offload.in_memory import Copier, homes_in

VOCABULARY, BATCH, LENGTH = 211, 2, 19
Planner = Callable[[Program], tuple[list[Step], int]]
SMALL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 112}


def llama(**more: Any) -> Any:
    return LlamaForCausalLM(
        LlamaConfig(**{"vocab_size": VOCABULARY, "num_key_value_heads": 2, "use_cache": False, **SMALL, **more})
    )


def gpt2() -> Any:
    """Tied weights, and dropout in three places."""
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=4, n_positions=64, use_cache=False)
    )
    model.loss_type = "ForCausalLM"
    return model


def qwen() -> Any:
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            num_key_value_heads=2,
            head_dim=12,
            use_cache=False,
            tie_word_embeddings=True,
            **SMALL,
        )
    )


def mixtral() -> Any:
    """Experts as grouped products: what is routed where is in the values of tensors, not in their shapes.

    (With "batched_mm" plain torch itself gives other gradients each time: `index_put_` adds up in parallel.)
    """
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=VOCABULARY,
            num_key_value_heads=2,
            num_local_experts=4,
            use_cache=False,
            experts_implementation="grouped_mm",
            **SMALL,
        )
    )


def vit() -> Any:
    """A convolution, layer norms, and dropout."""
    return ViTForImageClassification(
        ViTConfig(image_size=16, patch_size=4, hidden_dropout_prob=0.1, num_labels=5, **SMALL)
    )


MODELS = {"llama": llama, "gpt2": gpt2, "qwen": qwen, "mixtral": mixtral, "vit": vit}


def made(name: str) -> Any:
    torch.manual_seed(1)
    return MODELS[name]()


def batch(name: str, seed: int = 0) -> dict[str, Any]:
    numbers = torch.Generator().manual_seed(seed)
    if name == "vit":
        pixels = torch.randn(BATCH, 3, 16, 16, generator=numbers)
        return {"pixel_values": pixels, "labels": torch.randint(0, 5, (BATCH,), generator=numbers)}
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=numbers)
    return {"input_ids": ids, "labels": ids}


def executor(captured: Captured, model: Any, planner: Planner, homes: dict[int, Any] | None = None) -> Executor:
    steps, size = planner(captured.program)
    arena = torch.full((size,), 255, dtype=torch.uint8)  # what nobody wrote is NaN
    return Executor(captured, steps, arena, Copier(arena, homes_in(captured, model) if homes is None else homes))


def twins(name: str) -> tuple[Any, Any]:
    """The same model twice: one for a plan, one for plain torch."""
    model = made(name)
    return model, copy.deepcopy(model)


def same(ours: Any, plain: Any) -> bool:
    """Bit for bit, in order: -0.0 is not 0.0, and one NaN is like another only if its bits are."""
    pairs = zip(ours, plain, strict=True)
    return all(one.dtype == two.dtype and bits(one) == bits(two) for one, two in pairs)


def bits(tensor: Any) -> tuple[Any, bytes]:
    return tuple(tensor.shape), tensor.detach().contiguous().numpy().tobytes()
