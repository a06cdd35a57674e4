"""Ways to train that people bring: each step is that of plain PyTorch, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from openshelf.errors import BadInput, CaptureFailed  # noqa: E402
from openshelf.offload.capture.capture import capture_training  # noqa: E402
from openshelf.offload.measure.operators import measured  # noqa: E402
from tests.offload.ends import least  # noqa: E402
from tests.offload.models import batch, executor, llama, same  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache", "one_thread")


def trained(model: Any, batches: list[dict[str, Any]], loss: Callable[[Any], Any] = lambda result: result.loss) -> Any:
    """Steps of AdamW by a program and in plain PyTorch: the same losses, and the same weights. The run, for more."""
    plain = copy.deepcopy(model.train())
    ours, theirs = (torch.optim.AdamW(one.parameters(), lr=1e-2) for one in (model, plain))
    run = executor(measured(capture_training(model, (), batches[0], loss=loss, optimizer=ours)), model, least)
    for number, given in enumerate(batches):
        torch.manual_seed(number)
        (found,) = run(**given)
        torch.manual_seed(number)
        value = loss(plain(**given))
        value.backward()
        theirs.step()
        theirs.zero_grad()
        assert same([found], [value]), number
        assert same(model.state_dict().values(), plain.state_dict().values()), number
    return run


def mean(result: Any) -> Any:
    return (result[0] if isinstance(result, tuple) else result).square().mean()


@pytest.mark.parametrize("options", [None, {"use_reentrant": True}, {"use_reentrant": False}])
def test_layers_are_checkpointed(options: Any) -> None:
    model = llama()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    trained(model, [batch("llama", seed) for seed in range(2)])


class Checkpointed(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Dropout(dropout)) for _ in range(3)
        )

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        return x


def test_checkpoints_of_torch_are_followed_if_nothing_is_drawn_in_them() -> None:
    given = [{"x": torch.randn(4, 8)} for _ in range(2)]
    trained(Checkpointed(0.0), given, mean)
    with pytest.raises(CaptureFailed, match="checkpoint around dropout"):
        trained(Checkpointed(0.5), given, mean)


def test_layers_that_are_left_out_with_a_chance_of_0_stay() -> None:
    config = transformers.BartConfig(
        vocab_size=60, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=32,
        encoder_layerdrop=0.0, decoder_layerdrop=0.0,
    )  # fmt: skip
    ids = torch.randint(3, 60, (2, 2, 6))
    trained(transformers.BartForConditionalGeneration(config), [{"input_ids": one, "labels": one} for one in ids])


class Clamped(torch.nn.Linear):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        return y if torch.isfinite(y).all() else y.clamp(-1.0, 1.0)


def test_activations_that_a_model_would_clamp_are_refused_once_they_come() -> None:
    run = trained(Clamped(6, 6), [{"x": torch.randn(3, 6)} for _ in range(2)], mean)
    with pytest.raises(BadInput, match=r"test_training.py:\d+: the model looks whether numbers are finite"):
        run(x=torch.full((3, 6), torch.inf))


class Spoken(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Labels as transformers' models of speech take them: what is below 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.LSTM(6, 8, 2, bidirectional=True)
        self.head = torch.nn.Linear(16, 10)

    def forward(self, x: Any, labels: Any) -> Any:
        if labels.max() >= 10:
            raise ValueError("there are 10 labels")
        there = labels >= 0
        scores = self.head(self.cell(x)[0]).log_softmax(-1)
        lengths = torch.full((x.shape[1],), x.shape[0])
        targets = labels.masked_select(there)
        return torch.nn.functional.ctc_loss(scores, targets, lengths, there.sum(-1), zero_infinity=True)


def test_labels_of_ctc_may_be_others_in_each_step_if_they_are_as_many() -> None:
    labels = [torch.tensor(one) for one in ([[3, 4, 5], [6, 7, -1]], [[1, 2, 1], [9, 9, -100]])]
    run = trained(Spoken(), [{"x": torch.randn(12, 2, 6), "labels": one} for one in labels], lambda loss: loss)
    with pytest.raises(BadInput, match="depends on the values of input"):
        run(x=torch.randn(12, 2, 6), labels=torch.tensor([[3, 4, 5], [6, 7, 8]]))


@pytest.mark.parametrize(
    "options", [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False, "batch_first": True}]
)
def test_lstm_trains(options: Any) -> None:
    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.LSTM(5, 7, **options)

        def forward(self, x: Any) -> Any:
            return self.cell(x)[0]

    trained(Net(), [{"x": torch.randn(4, 3, 5)} for _ in range(2)], mean)
