"""A table as the n-gram memory of a small language model (as Engram): is a space as fast as private memory?

A decoder of four layers takes, beside each token, the rows of its last two and last three tokens, hashed into eight
tables each way. The ids follow from the tokens alone, so they are known before the first layer runs. The rows are in a
table of a space, which has many times the bytes of the model, or in a private tensor. `tables.engram` is tokens a
second, of those with private memory; the losses of both are equal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from kit.side_by_side import Row, compare
from lookups.asked import Asked
from openshelf import Space, Table
from openshelf.tables import TableBag, Uniform

HEADS, WIDTH, HIDDEN, LAYERS, WORDS = 8, 64, 256, 4, 8192
ORDERS = (2, 3)
BATCH, LENGTH = 8, 128


def ngrams(tokens: torch.Tensor, rows: int) -> torch.Tensor:
    """For each token a row of each head and order: a hash of the tokens that end there."""
    heads = torch.arange(1, HEADS + 1) * 0x9E3779B1
    found = []
    for order in ORDERS:
        mixed = torch.zeros_like(tokens)
        for back in range(order):
            mixed = mixed * 1_000_003 + torch.nn.functional.pad(tokens, (back, 0))[:, : tokens.shape[1]] + 1
        found.append(((mixed.unsqueeze(-1) * heads + order * 0x85EBCA6B) >> 7) % rows)
    return torch.cat(found, -1)


class Model(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    def __init__(self, memory: torch.nn.Module) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words = torch.nn.Embedding(WORDS, HIDDEN)
        self.mix = torch.nn.Linear(HEADS * len(ORDERS) * WIDTH, HIDDEN)
        layer = torch.nn.TransformerEncoderLayer(HIDDEN, 4, 4 * HIDDEN, 0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = torch.nn.Linear(HIDDEN, WORDS)
        self.memory = memory

    def forward(self, tokens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        pooled = self.memory(rows.reshape(-1, 1)).reshape(*tokens.shape, -1)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        found: torch.Tensor = self.head(self.layers(self.words(tokens) + self.mix(pooled), mask, is_causal=True))
        return found


def rows(asked: Asked) -> Iterator[Row]:
    count, pairs = (1_000_000, 5) if asked.quick else (8_000_000, 25)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with Space.temporary(count * WIDTH * 4 + (16 << 20)) as space, torch.inference_mode():
        table = Table.create(space, "ngrams", rows=count, dim=WIDTH, init=Uniform(-1, 1, 1))
        private = torch.nn.EmbeddingBag(count, WIDTH, mode="sum", _weight=torch.empty(count, WIDTH))
        for first in range(0, count, 1 << 18):
            ids = torch.arange(first, min(count, first + (1 << 18)))
            table.lookup(ids, out=private.weight.data[first : first + len(ids)])
        ours, theirs = Model(TableBag(table, mode="sum")).eval(), Model(private).eval()
        batches = [torch.randint(WORDS, (BATCH, LENGTH)) for _ in range(8)]
        assert torch.equal(ours(batches[0], ngrams(batches[0], count)), theirs(batches[0], ngrams(batches[0], count)))
        turn = 0

        def timed_run(model: Model) -> float:
            nonlocal turn
            turn += 1
            tokens = batches[turn % 8]
            started = time.thread_time()  # what others do on the machine meanwhile does not count
            model(tokens, ngrams(tokens, count))
            return time.thread_time() - started

        case = f"forward pass, {HEADS * len(ORDERS)} of {count:,} rows a token, {BATCH} x {LENGTH} tokens"
        run = compare(
            "tables.engram", case, "nn.EmbeddingBag", lambda: timed_run(ours), lambda: timed_run(theirs),
            pairs=pairs, bar=">= 0.97",
        )  # fmt: skip
        run.note = f"{BATCH * LENGTH / (run.median or 1):.0f} tokens/s"
        yield run
    torch.set_num_threads(threads)
