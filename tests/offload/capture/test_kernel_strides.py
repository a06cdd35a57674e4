"""What a capture goes by where kernels lay results out otherwise than their fake forms: what its owner has learned."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from openshelf.offload.capture.capture import capture  # noqa: E402
from openshelf.offload.capture.fake_kernels import KernelStrides  # noqa: E402
from openshelf.offload.measure.operators import measured  # noqa: E402
from openshelf.offload.program.out_forms import OtherStrides  # noqa: E402


class Shuffled(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        return torch.nn.functional.channel_shuffle(x, 2)


def test_strides_that_one_owner_has_learned_are_no_other_owners() -> None:
    x = torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)
    ours = KernelStrides()
    with pytest.raises(OtherStrides) as wrong:
        measured(capture(Shuffled(), (x,), strides=ours), rounds=1)
    assert ours.learn(wrong.value.found)
    assert not ours.learn(wrong.value.found)  # it knows: to capture once more would not help
    measured(capture(Shuffled(), (x,), strides=ours), rounds=1)
    with pytest.raises(OtherStrides):
        measured(capture(Shuffled(), (x,), strides=KernelStrides()), rounds=1)


def test_images_of_one_pixel_have_the_memory_format_of_the_kernel() -> None:
    """Other kernels are chosen by it, which add up in another order."""
    net, strides = torch.nn.GELU(), KernelStrides()
    x = torch.empty_strided((2, 8, 1, 1), (8, 1, 8, 8)).normal_()  # channels last
    measured(capture(net, (x,), strides=strides), rounds=1)  # nothing is said of it unless asked
    with pytest.raises(OtherStrides) as wrong:
        measured(capture(net, (x,), strides=strides), rounds=1, formats=True)
    assert strides.learn(wrong.value.found)
    (output,) = measured(capture(net, (x,), strides=strides), rounds=1, formats=True).outputs
    assert output.strides == net(x).stride()
