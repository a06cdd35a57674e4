"""Two workers with one Hugging Face model share prompts: `model.generate` as ever, its cache begins in the pool."""

import multiprocessing
import os
import time
from typing import Any

import openshelf as osf

NAME = f"example-{os.getpid()}"
SYSTEM = [(7 * at) % 500 for at in range(480)]  # a system prompt of 480 tokens


def worker(name: str, number: int, lines: Any) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM  # or AutoModelForCausalLM.from_pretrained(...)

    from openshelf.adapters.transformers import PooledCache, layout_of

    torch.set_num_threads(1)
    torch.manual_seed(0)  # the same random weights in every worker
    config = LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=1024,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with osf.Space.open(name) as space, osf.KVPool(space, layout_of(model)) as pool:
        for question in range(2):
            inputs = {"input_ids": torch.tensor([[*SYSTEM, *range(20 * question, 20 * question + 20)]])}
            began = time.perf_counter()
            cache = PooledCache(pool, model, inputs)
            output = model.generate(**inputs, past_key_values=cache, max_new_tokens=8, do_sample=False)
            seconds = time.perf_counter() - began
            cache.store(output)  # what was generated, too: the next turn of a conversation begins with it
            plain = model.generate(**inputs, max_new_tokens=8, do_sample=False)
            lines.put(
                f"worker {number}: {cache.hit_tokens} of {cache.prompt_tokens} tokens were there, "
                f"{1000 * seconds:.0f} ms, tokens as without the pool: {torch.equal(output, plain)}"
            )


if __name__ == "__main__":
    with osf.Space.create(NAME, dram="128MiB"):
        context = multiprocessing.get_context("spawn")
        lines = context.Queue()
        for number in range(2):
            process = context.Process(target=worker, args=(NAME, number, lines))
            process.start()
            for _ in range(2):
                print(lines.get(timeout=60))
            process.join()
    osf.Space.remove(NAME)
