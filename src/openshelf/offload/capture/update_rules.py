"""The rules by which SGD, Adam and AdamW update a parameter: torch.optim's own calls, in their order, without memory.

Each is torch's `_single_tensor_*` line by line; what torch makes anew there is made in scratch tensors here. A rule
belongs to a parameter group of a `torch.optim` optimizer and is given its numbers (lr, betas, ...) before every step,
so schedules of the learning rate work. Parameters end up equal to torch's bit for bit.
"""

from __future__ import annotations

from typing import Any

from openshelf.errors import CaptureFailed
from openshelf.offload.program.torch import torch


class Sgd:
    """`_single_tensor_sgd`. The momentum of the first step is the gradient itself, not zero plus it."""

    name = "sgd"

    def __init__(self, group: dict[str, Any]) -> None:
        self.group = group
        self.states = ("momentum_buffer",) if group["momentum"] else ()
        self.scratch = 1 if group["maximize"] or group["weight_decay"] or group["nesterov"] else 0

    def begin(self, step: int) -> None:
        self.lr, self.first = float(self.group["lr"]), step == 1

    def apply(self, param: Any, grad: Any, states: tuple[Any, ...], scratch: tuple[Any, ...]) -> None:
        group = self.group
        if group["maximize"]:
            grad = torch.neg(grad, out=scratch[0])
        if group["weight_decay"]:
            grad = torch.add(grad, param, alpha=group["weight_decay"], out=scratch[0])
        if states:
            momentum = states[0]
            if self.first:
                momentum.copy_(grad)
            else:
                momentum.mul_(group["momentum"]).add_(grad, alpha=1 - group["dampening"])
            ahead = group["nesterov"]
            grad = torch.add(grad, momentum, alpha=group["momentum"], out=scratch[0]) if ahead else momentum
        param.add_(grad, alpha=-self.lr)


class Adam:
    """`_single_tensor_adam`, also of AdamW, where the decay of weights is decoupled."""

    def __init__(self, group: dict[str, Any], decoupled: bool) -> None:
        self.group, self.decoupled = group, decoupled or group.get("decoupled_weight_decay", False)
        self.name = "adamw" if self.decoupled else "adam"
        self.states = ("exp_avg", "exp_avg_sq") + (("max_exp_avg_sq",) if group["amsgrad"] else ())
        self.scratch = 2 if group["maximize"] or (group["weight_decay"] and not self.decoupled) else 1

    def begin(self, step: int) -> None:
        beta1, beta2 = (float(beta) for beta in self.group["betas"])
        self.lr, self.beta1, self.beta2 = float(self.group["lr"]), beta1, beta2
        self.step_size = self.lr / (1 - beta1 ** float(step))
        self.correction = (1 - beta2 ** float(step)) ** 0.5

    def apply(self, param: Any, grad: Any, states: tuple[Any, ...], scratch: tuple[Any, ...]) -> None:
        group, average, square = self.group, states[0], states[1]
        decay, denominator = group["weight_decay"], scratch[-1]
        if group["maximize"]:
            grad = torch.neg(grad, out=scratch[0])
        if decay and self.decoupled:
            param.mul_(1 - self.lr * decay)
        elif decay:
            grad = torch.add(grad, param, alpha=decay, out=scratch[0])
        average.lerp_(grad, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        if group["amsgrad"]:
            square = torch.maximum(states[2], square, out=states[2])
        torch.sqrt(square, out=denominator).div_(self.correction).add_(group["eps"])
        param.addcdiv_(average, denominator, value=-self.step_size)


Rule = Sgd | Adam

REFUSED = {"fused": True, "foreach": True, "capturable": True, "differentiable": True}


def rule_of(optimizer: Any, group: dict[str, Any]) -> Rule:
    """The rule of one parameter group; CaptureFailed if the optimizer is none of these, or calculates otherwise."""
    kind = type(optimizer)
    if kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        raise CaptureFailed(
            f"an optimizer of type {kind.__name__} is not known, only torch.optim's SGD, Adam and AdamW are; "
            "with optimizer=None the gradients are handed out, for any optimizer"
        )
    for option, value in REFUSED.items():
        if group.get(option) == value:
            raise CaptureFailed(
                f"{kind.__name__}({option}={value}) calculates in another way than the plain one: leave {option} out"
            )
    if isinstance(group["lr"], torch.Tensor) or any(isinstance(beta, torch.Tensor) for beta in group.get("betas", ())):
        raise CaptureFailed(f"{kind.__name__} with a tensor as lr or beta rounds otherwise: give a float")
    return Sgd(numbers(group)) if kind is torch.optim.SGD else Adam(numbers(group), kind is torch.optim.AdamW)


def numbers(group: dict[str, Any]) -> dict[str, Any]:
    """What a parameter group says beside its parameters."""
    return {name: value for name, value in group.items() if name != "params"}
