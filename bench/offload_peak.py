"""The memory of a whole request, prompt and answer, with the KV cache in host memory and with all of it in the arena.

The decoders of bench/offload_decode.py. `offload.peak` is by how much the memory of the one with room for a quarter of
the cache is less; it must take as long as the other. Both give the same tokens, or it fails.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from kit.side_by_side import Report, Row, arguments, p99
from offload_decode import VOCABULARY, both, in_turn, model_of, spread
from openshelf import offload
from openshelf.space import format_size


def peak_of_a_request(report: Report, quick: bool) -> None:
    prompt, answer = (3068, 4) if quick else (8184, 8)
    longest = prompt + answer
    model = model_of(layers=8 if quick else 12, heads=6, kv_heads=6, longest=longest)
    small, full, cache = both(model, longest, chunk=None, need=(20 << 10) * longest)
    ids = torch.arange(prompt) * 7 % VOCABULARY
    answers: list[Any] = []
    parts: dict[str, tuple[list[float], list[float]]] = {"small": ([], []), "full": ([], [])}  # prompts, tokens

    def request(name: str, run: offload.Decoder) -> Callable[[], float]:
        def call() -> float:
            token, found = ids, []
            for number in range(answer + 1):
                begin = time.perf_counter()
                logits = run.step(token) if number else run.prefill(token)
                parts[name][number > 0].append(time.perf_counter() - begin)
                token = logits.argmax(-1)
                found.append(token)
            answers.append(torch.cat(found))
            return sum(parts[name][0][-1:] + parts[name][1][-answer:])

        return call

    mine, _ = in_turn([request("small", small), request("full", full)], 3 if quick else 8)
    assert all(torch.equal(one, answers[0]) for one in answers), "other tokens"
    # The best prompt and the best token: a whole request is too long to be undisturbed anywhere but on an idle machine.
    best = {name: min(prompts[1:]) + answer * min(steps) for name, (prompts, steps) in parts.items()}
    slower = best["small"] / best["full"]
    less = 100 * (1 - small.peak / full.peak)
    report.add(
        Row(
            "offload.peak",
            f"Llama, a prompt of {prompt} tokens, {answer} more; KV cache {format_size(cache)}",
            less, "% less", "all of the KV cache in the arena", slower, spread(mine), statistics.median(mine),
            p99(mine), ">= 26, as fast within 3 %",
            f"{format_size(small.peak)} for {format_size(full.peak)}; {best['small']:.3f} s for {best['full']:.3f} s",
        )
    )  # fmt: skip
    small.close()
    full.close()


def main() -> None:
    options = arguments(__doc__ or "")
    torch.set_num_threads(2)
    report = Report("the memory of a request, the KV cache in host memory")
    peak_of_a_request(report, options.quick)
    report.finish(options.json)


if __name__ == "__main__":
    main()
