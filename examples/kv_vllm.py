"""Two vLLM engines share prompts: the second, in a process of its own, begins with what the first computed."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import time

import openshelf as osf

SYSTEM = [(7 * at) % 500 for at in range(480)]  # a system prompt of 480 tokens


def save_model(folder: str) -> None:
    """A small Llama with random weights, in place of one that you have."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=1024,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def engine(number: str, folder: str, space: str) -> None:
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    transfer = KVTransferConfig(
        kv_connector="OpenshelfConnector",
        kv_connector_module_path="openshelf.adapters.vllm",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"space": space, "size": "128MiB"},
    )
    llm = LLM(
        folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, block_size=32, max_model_len=1024,
        kv_cache_memory_bytes=64 << 20, kv_transfer_config=transfer,
    )  # fmt: skip
    for question in range(2):
        tokens = [*SYSTEM, *range(20 * question, 20 * question + 20)]
        began = time.perf_counter()
        how = SamplingParams(temperature=0, max_tokens=8, detokenize=False)
        (output,) = llm.generate([{"prompt_token_ids": tokens}], how, use_tqdm=False)
        seconds = time.perf_counter() - began
        print(
            f"engine {number}: {output.num_cached_tokens} of {len(tokens)} tokens were there, {1000 * seconds:.0f} ms, "
            f"answer {list(output.outputs[0].token_ids)}",
            flush=True,
        )


def main() -> None:
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed, so there is nothing to show: see 'vLLM' in docs/kv.md")
        return
    space = f"example-{os.getpid()}"
    settings = {"VLLM_LOGGING_LEVEL": "ERROR", **os.environ}
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder)
        for number in "01":
            subprocess.run([sys.executable, __file__, number, folder, space], check=True, env=settings)
    osf.Space.remove(space)


if __name__ == "__main__":
    main() if len(sys.argv) == 1 else engine(*sys.argv[1:])
