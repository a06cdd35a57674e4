"""The rules by which optimizers of torch.optim update a parameter: torch's own calls, in their order.

SGD, Adam and AdamW are torch's `_single_tensor_*` line by line; what torch makes anew there is made in scratch tensors
here, piece by piece. Rules that need a parameter as a `whole` (Adafactor, Muon, and torch's fused kernels) are torch's
functions themselves: what they allocate is outside the arena, and counted. A rule belongs to a parameter group of a
`torch.optim` optimizer and is given its numbers (lr, betas, ...) before every step, so schedules of the learning rate
work. Parameters end up equal to torch's bit for bit.
"""

from __future__ import annotations

from typing import Any

from openshelf.errors import CaptureFailed
from openshelf.offload.program.torch import torch


class Elementwise:
    """What rules have in common that run piece by piece: each state is as large as its parameter."""

    whole = False
    states: tuple[str, ...]

    def states_of(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """The shapes of the states of a parameter."""
        return dict.fromkeys(self.states, shape)


class Sgd(Elementwise):
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


class Adam(Elementwise):
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


class FusedAdam(Adam):
    """Adam and AdamW with `fused`: one kernel, which rounds otherwise than the calls one by one."""

    whole = True

    def __init__(self, group: dict[str, Any], decoupled: bool) -> None:
        super().__init__(group, decoupled)
        self.name, self.scratch = f"fused_{self.name}", 0

    def begin(self, step: int) -> None:
        super().begin(step)
        self.step = torch.tensor(float(step))

    def apply(self, param: Any, grad: Any, states: tuple[Any, ...], scratch: tuple[Any, ...]) -> None:
        group = self.group
        kernel = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        kernel(
            [param], [grad], [states[0]], [states[1]], list(states[2:]), [self.step], amsgrad=group["amsgrad"],
            lr=self.lr, beta1=self.beta1, beta2=self.beta2, weight_decay=group["weight_decay"], eps=group["eps"],
            maximize=group["maximize"], grad_scale=None, found_inf=None,
        )  # fmt: skip


class Adafactor(Elementwise):
    """`_single_tensor_adafactor`: of matrices it has a row and a column."""

    name, whole, scratch = "adafactor", True, 0
    states = ("row_var", "col_var", "variance")

    def __init__(self, group: dict[str, Any]) -> None:
        self.group = group

    def states_of(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        if len(shape) < 2:
            return {"variance": shape}
        return {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, shape[-1])}

    def begin(self, step: int) -> None:
        self.before = float(step - 1)

    def apply(self, param: Any, grad: Any, states: tuple[Any, ...], scratch: tuple[Any, ...]) -> None:
        group, matrix = self.group, len(states) == 2
        row, column, all_of_it = (*states, None) if matrix else (None, None, *states)
        torch.optim._adafactor._single_tensor_adafactor(
            [param], [grad], [row], [column], [all_of_it], [torch.tensor(self.before)], None, None, d=group["d"],
            lr=group["lr"], beta2_decay=group["beta2_decay"], weight_decay=group["weight_decay"], eps1=group["eps"][0],
            eps2=group["eps"][1], maximize=group["maximize"], has_complex=False,
        )  # fmt: skip


class Muon(Elementwise):
    """`_single_tensor_muon`: of matrices only."""

    name, whole, scratch = "muon", True, 0
    states = ("momentum_buffer",)

    def __init__(self, group: dict[str, Any]) -> None:
        self.group = group

    def begin(self, step: int) -> None:
        pass

    def apply(self, param: Any, grad: Any, states: tuple[Any, ...], scratch: tuple[Any, ...]) -> None:
        named = ("lr", "weight_decay", "momentum", "nesterov", "ns_coefficients", "ns_steps", "eps", "adjust_lr_fn")
        options = {name: self.group[name] for name in named}
        torch.optim._muon._single_tensor_muon([param], [grad], [states[0]], **options, has_complex=False)


Rule = Sgd | Adam | FusedAdam | Adafactor | Muon

REFUSED = ("foreach", "capturable", "differentiable")
KNOWN = ("SGD", "Adam", "AdamW", "Adafactor", "Muon")  # torch is told by name: older ones have no Muon


def rule_of(optimizer: Any, group: dict[str, Any]) -> Rule:
    """The rule of one parameter group; CaptureFailed if the optimizer is none of these, or calculates otherwise."""
    kind = type(optimizer)
    if kind not in [getattr(torch.optim, name, None) for name in KNOWN]:
        raise CaptureFailed(
            f"an optimizer of type {kind.__name__} is not known, only torch.optim's {', '.join(KNOWN)} are; "
            "with optimizer=None the gradients are handed out, for any optimizer"
        )
    refused = [option for option in (*REFUSED, *(("fused",) if kind is torch.optim.SGD else ())) if group.get(option)]
    if refused:
        raise CaptureFailed(
            f"{kind.__name__}({refused[0]}=True) calculates in another way than the plain one: leave {refused[0]} out"
        )
    if isinstance(group["lr"], torch.Tensor) or any(isinstance(beta, torch.Tensor) for beta in group.get("betas", ())):
        raise CaptureFailed(f"{kind.__name__} with a tensor as lr or beta rounds otherwise: give a float")
    options = numbers(group)
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        return (FusedAdam if group.get("fused") else Adam)(options, kind is torch.optim.AdamW)
    if kind is torch.optim.SGD:
        return Sgd(options)
    return Adafactor(options) if kind is torch.optim.Adafactor else Muon(options)


def numbers(group: dict[str, Any]) -> dict[str, Any]:
    """What a parameter group says beside its parameters."""
    return {name: value for name, value in group.items() if name != "params"}
