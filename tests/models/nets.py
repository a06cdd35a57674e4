"""Plain networks of torch.nn, of the kinds that people write themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.models.built import Built, NotBuilt

Batch = Callable[[Any], dict[str, Any]]


class Net(nn.Module):  # type: ignore[misc]
    """Layers by name, and a function of them."""

    def __init__(self, forward: Callable[..., Any], **layers: Any) -> None:
        super().__init__()
        self._forward = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, **inputs: Any) -> Any:
        return self._forward(self, **inputs)


class Residual(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, x: Any) -> Any:
        return F.relu(x + self.layers(x))


def floats(*shape: int) -> Batch:
    return lambda numbers: {"x": torch.randn(shape, generator=numbers)}


def tokens(*shape: int, most: int = 50) -> Batch:
    return lambda numbers: {"x": torch.randint(0, most, shape, generator=numbers)}


def _sequential(*layers: Any) -> Net:
    return Net(lambda self, x: self.layers(x), layers=nn.Sequential(*layers))


def mlp() -> tuple[Net, Batch]:
    return _sequential(nn.Linear(24, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, 8)), floats(5, 24)


def cnn() -> tuple[Net, Batch]:
    layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.Flatten(), nn.Linear(16 * 25, 5))
    return _sequential(*layers), floats(2, 3, 16, 16)


def resnet() -> tuple[Net, Batch]:
    return _sequential(nn.Conv2d(3, 8, 3), Residual(8), Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten()), floats(
        2, 3, 12, 12
    )


def lstm() -> tuple[Net, Batch]:
    net = Net(
        lambda self, x: self.head(self.cell(x)[0]), cell=nn.LSTM(12, 16, 2, batch_first=True), head=nn.Linear(16, 4)
    )
    return net, floats(3, 7, 12)


def gru() -> tuple[Net, Batch]:
    return Net(lambda self, x: self.cell(x), cell=nn.GRU(12, 16, bidirectional=True)), floats(7, 3, 12)


def encoder() -> tuple[Net, Batch]:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return Net(
        lambda self, x: self.layers(self.embed(x)), embed=nn.Embedding(50, 16), layers=nn.TransformerEncoder(layer, 2)
    ), tokens(2, 9)


def decoder() -> tuple[Net, Batch]:
    layer = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True)

    def forward(self: Any, x: Any) -> Any:
        y = self.embed(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.layers(y, y, tgt_mask=mask, tgt_is_causal=True)

    return Net(forward, embed=nn.Embedding(50, 16), layers=nn.TransformerDecoder(layer, 2)), tokens(2, 9)


def generator() -> tuple[Net, Batch]:
    layers = (
        nn.ConvTranspose2d(10, 16, 4), nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, stride=2, padding=1),
        nn.Tanh(),
    )  # fmt: skip
    return _sequential(*layers), floats(2, 10, 1, 1)


def unet() -> tuple[Net, Batch]:
    def forward(self: Any, x: Any) -> Any:
        top = F.silu(self.norm(self.first(x)))
        low = F.silu(self.low(F.avg_pool2d(top, 2)))
        return self.last(torch.cat([top, F.interpolate(low, scale_factor=2, mode="bilinear")], 1))

    layers = {"first": nn.Conv2d(3, 8, 3, padding=1), "norm": nn.GroupNorm(2, 8), "low": nn.Conv2d(8, 16, 3, padding=1)}
    return Net(forward, last=nn.Conv2d(24, 3, 1), **layers), floats(2, 3, 12, 12)


def recommender() -> tuple[Net, Batch]:
    def batch(numbers: Any) -> dict[str, Any]:
        return {
            "items": torch.randint(0, 40, (12,), generator=numbers), "bags": torch.tensor([0, 4, 9]),
            "dense": torch.randn(3, 5, generator=numbers),
        }  # fmt: skip

    def forward(self: Any, items: Any, bags: Any, dense: Any) -> Any:
        return self.head(torch.cat([self.items(items, bags), self.dense(dense)], 1))

    return Net(forward, items=nn.EmbeddingBag(40, 8, mode="mean"), dense=nn.Linear(5, 8), head=nn.Linear(16, 1)), batch


def vae() -> tuple[Net, Batch]:
    def forward(self: Any, x: Any) -> Any:
        mean, log = self.encoder(x).chunk(2, -1)
        drawn = mean + torch.randn_like(mean) * (0.5 * log).exp()
        return self.decoder(drawn), -0.5 * (1 + log - mean.square() - log.exp()).sum(1).mean()

    return Net(forward, encoder=nn.Linear(20, 12), decoder=nn.Linear(6, 20)), floats(4, 20)


def gnn() -> tuple[Net, Batch]:
    def batch(numbers: Any) -> dict[str, Any]:
        return {"x": torch.randn(10, 6, generator=numbers), "edges": torch.randint(0, 10, (2, 30), generator=numbers)}

    def forward(self: Any, x: Any, edges: Any) -> Any:
        for layer in (self.first, self.second):
            sums = torch.zeros(x.shape[0], x.shape[1]).index_add(0, edges[1], x[edges[0]])
            x = F.relu(layer(torch.cat([x, sums], 1)))
        return x

    return Net(forward, first=nn.Linear(12, 8), second=nn.Linear(16, 4)), batch


def moe() -> tuple[Net, Batch]:
    def forward(self: Any, x: Any) -> Any:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        every = torch.stack([expert(x) for expert in self.experts], 1)
        taken = every.gather(1, chosen[..., None].expand(-1, -1, x.shape[-1]))
        return (taken * weights[..., None]).sum(1)

    return Net(forward, router=nn.Linear(8, 4), experts=nn.ModuleList(nn.Linear(8, 8) for _ in range(4))), floats(6, 8)


def speech() -> tuple[Net, Batch]:
    def batch(numbers: Any) -> dict[str, Any]:
        return {"x": torch.randn(12, 2, 8, generator=numbers), "labels": torch.randint(1, 9, (2, 4), generator=numbers)}

    def forward(self: Any, x: Any, labels: Any) -> Any:
        scores = self.head(self.cell(x)[0]).log_softmax(-1)
        return F.ctc_loss(scores, labels, (12, 12), (4, 4))

    return Net(forward, cell=nn.RNN(8, 16), head=nn.Linear(16, 10)), batch


def tied() -> tuple[Net, Batch]:
    def forward(self: Any, x: Any) -> Any:
        return F.linear(self.body(self.embed(x)), self.embed.weight)

    return Net(forward, embed=nn.Embedding(50, 16), body=nn.Sequential(nn.Linear(16, 16), nn.RMSNorm(16))), tokens(2, 7)


NETS = {
    one.__name__: one
    for one in (
        mlp, cnn, resnet, lstm, gru, encoder, decoder, generator, unet, recommender, vae, gnn, moe, speech, tied,
    )
}  # fmt: skip


def names() -> list[str]:
    return [f"net:{name}" for name in NETS]


def build(name: str) -> Built:
    kind = name.split(":")[1]
    if kind not in NETS:
        raise NotBuilt(f"there is no net {kind!r}")
    torch.manual_seed(1)
    net, batch = NETS[kind]()
    return Built(net.eval(), lambda seed: batch(torch.Generator().manual_seed(seed)), _loss)


def _loss(result: Any) -> Any:
    parts = result if isinstance(result, tuple) else (result,)
    return sum(one.square().mean() for one in parts)
