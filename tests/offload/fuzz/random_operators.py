"""What random models are made of: each function draws one operator, and what it is called with.

A function is given the model that is being made and one tensor that it may use, and returns what is to be done in
`forward`: a function of the model and of all tensors so far. None, or an error when it is tried, and another one is
drawn. So nothing here has to fit every shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tests.offload.fuzz.random_models import RandomModel

F, nn = torch.nn.functional, torch.nn
Step = Callable[[Any, list[Any]], Any]
OPERATORS: list[Callable[[RandomModel, int, Any], Step | None]] = []


def operator(function: Callable[[RandomModel, int, Any], Step | None]) -> Any:
    OPERATORS.append(function)
    return function


ONE: list[Callable[[Any], Any]] = [
    torch.sin, torch.tanh, torch.sigmoid, torch.relu, F.gelu, F.silu, F.softplus, F.elu, F.hardtanh, F.logsigmoid,
    F.leaky_relu, F.mish, torch.abs, torch.neg, torch.sign, torch.erf, torch.atan, torch.floor, torch.frac, torch.round,
    torch.square, torch.reciprocal, torch.exp2, torch.expm1, torch.sinc, torch.sgn, torch.trunc, torch.asinh,
    F.softsign, F.hardswish, F.relu6, F.selu, F.celu, F.tanhshrink, F.softshrink, F.hardsigmoid, torch.digamma,
    torch.nan_to_num, torch.positive, torch.special.i0e, torch.special.ndtr, torch.special.erfcx, torch.cosh,
    torch.clone, lambda x: F.gelu(x, approximate="tanh"), lambda x: torch.log1p(x.abs()),
    lambda x: torch.sqrt(x.abs() + 0.1), lambda x: torch.rsqrt(x * x + 1), lambda x: torch.lgamma(x.abs() + 0.5),
    lambda x: torch.logit(x, eps=0.1), lambda x: torch.exp(-x.abs()), lambda x: torch.acos(x.clamp(-0.9, 0.9)),
    lambda x: x**3, lambda x: x.abs() ** 0.7, lambda x: 2**x.clamp(-4, 4), lambda x: F.threshold(x, 0.1, -0.5),
    lambda x: x.clamp(-0.5, 0.7), lambda x: 1 - x, lambda x: x.clamp_min(0.1), lambda x: x / 3,
    lambda x: 3 / (x.abs() + 1), lambda x: x % 0.7, lambda x: -x % 2, lambda x: x * 1.7 - 0.3,
    lambda x: torch.fmod(x, 0.6), lambda x: x // 0.3, lambda x: torch.heaviside(x, x.new_ones(())),
    lambda x: torch.copysign(x, -0.0), lambda x: torch.xlogy(2.0, x.abs() + 0.1), lambda x: torch.lerp(x, x * x, 0.3),
    lambda x: torch.where(x > 0, x, 0.1), lambda x: x.masked_fill(x < 0, 0.25), lambda x: torch.rsub(x, 2, alpha=3),
    lambda x: F.rrelu(x, training=True), lambda x: x.contiguous(), lambda x: torch.addcmul(x, x, x, value=0.3),
]  # fmt: skip

TWO: list[Callable[[Any, Any], Any]] = [
    torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.atan2, torch.copysign,
    torch.hypot, torch.remainder, torch.fmod, torch.logaddexp, torch.logaddexp2, torch.nextafter,
    lambda x, y: torch.addcdiv(x, y, y * y + 1, value=0.3), lambda x, y: torch.addcmul(x, x, y, value=0.3),
    lambda x, y: x / (y.abs() + 0.5), lambda x, y: torch.xlogy(x, y.abs() + 0.1), lambda x, y: torch.lerp(x, y, 0.7),
    lambda x, y: torch.lerp(x, y, torch.sigmoid(x)), lambda x, y: torch.where(x > y, x, y * 0.5),
    lambda x, y: torch.where(y > 0, x, 0.3), lambda x, y: x.masked_fill(y > 0.2, -0.1),
    lambda x, y: torch.add(x, y, alpha=0.4), lambda x, y: torch.clamp(x, y - 0.5, y + 0.5),
    lambda x, y: torch.div(x, y.abs() + 1, rounding_mode="floor"),
    lambda x, y: torch.pow(x.abs() + 0.1, y.clamp(-2, 2)),
    lambda x, y: torch.float_power(x.abs() + 0.1, y.clamp(-2, 2)), lambda x, y: torch.special.xlog1py(x, y.abs()),
    lambda x, y: torch.ldexp(x, y.clamp(-2, 2)), lambda x, y: torch.dist(x, y, 2),
    lambda x, y: torch.logical_and(x > 0, y > 0), lambda x, y: (x > y) ^ (y > 0.1), lambda x, y: torch.isclose(x, y),
    lambda x, y: F.smooth_l1_loss(x, y), lambda x, y: F.huber_loss(x, y, delta=0.3),
    lambda x, y: F.mse_loss(x, y, reduction="sum"), lambda x, y: F.l1_loss(x, y, reduction="none"),
    lambda x, y: F.soft_margin_loss(x, torch.sign(y)), lambda x, y: F.prelu(x, y),
    lambda x, y: F.binary_cross_entropy_with_logits(x, torch.sigmoid(y)),
    lambda x, y: F.poisson_nll_loss(x.clamp(-3, 3), y),
    lambda x, y: F.binary_cross_entropy(torch.sigmoid(x), torch.sigmoid(y)),
    lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean"),
    lambda x, y: F.cosine_similarity(x, y, -1), lambda x, y: torch.cdist(x, y), lambda x, y: F.pairwise_distance(x, y),
    lambda x, y: torch.linalg.cross(x[..., :3], y[..., :3]),
    lambda x, y: F.margin_ranking_loss(x, y, torch.sign(x - y)), lambda x, y: F.hinge_embedding_loss(x, torch.sign(y)),
    lambda x, y: torch.outer(x.flatten()[:9], y.flatten()[:7]),
    lambda x, y: torch.kron(x.flatten()[:4], y.flatten()[:5]),
    lambda x, y: torch.vdot(x.flatten()[:8], y.flatten()[:8]), lambda x, y: torch.inner(x, y),
    lambda x, y: torch.complex(x, y).abs(), lambda x, y: torch.polar(x.abs(), y).real,
    lambda x, y: torch.stack([x, y], -1), lambda x, y: torch.cat([x, y, x], 0), lambda x, y: torch.hstack([x, y]),
    lambda x, y: torch.broadcast_tensors(x, y)[0], lambda x, y: torch.mul(x, y, out=torch.empty_like(x)),
]  # fmt: skip

ALONG: list[Callable[[Any, int], Any]] = [
    torch.sum, torch.mean, torch.cumsum, torch.logcumsumexp, torch.logsumexp, torch.softmax, torch.log_softmax,
    F.normalize, torch.argmax, torch.argmin, torch.argsort, torch.prod, torch.cumprod, torch.amax, torch.amin,
    torch.all, torch.any, lambda x, d: torch.sum(x, d, keepdim=True), lambda x, d: torch.std(x, d),
    lambda x, d: torch.var(x, d, unbiased=False), lambda x, d: torch.var_mean(x, d), lambda x, d: torch.max(x, d),
    lambda x, d: torch.min(x, d, keepdim=True), lambda x, d: torch.median(x, d),
    lambda x, d: torch.sort(x, d, stable=True), lambda x, d: torch.sort(x, d, descending=True)[0],
    lambda x, d: torch.topk(x, min(3, x.shape[d]), d), lambda x, d: torch.kthvalue(x, 1, d),
    lambda x, d: torch.cummax(x, d), lambda x, d: torch.cummin(x, d), lambda x, d: torch.flip(x, [d]),
    lambda x, d: torch.roll(x, 2, d), lambda x, d: torch.diff(x, dim=d), lambda x, d: x.unbind(d),
    lambda x, d: x.chunk(2, d), lambda x, d: torch.repeat_interleave(x, 2, d), lambda x, d: x.select(d, -1),
    lambda x, d: x.narrow(d, 0, 1), lambda x, d: x.unsqueeze(d), lambda x, d: x.transpose(d, 0),
    lambda x, d: x.unfold(d, 2, 1), lambda x, d: x.movedim(d, -1), lambda x, d: torch.linalg.vector_norm(x, 2, d),
    lambda x, d: torch.norm(x, p=1, dim=d, keepdim=True), lambda x, d: torch.linalg.vector_norm(x, math.inf, d),
    lambda x, d: F.glu(torch.cat([x, x], d), d), lambda x, d: torch.nanmedian(x, d),
    lambda x, d: torch.quantile(x, 0.3, d), lambda x, d: torch.nansum(x, d), lambda x, d: torch.count_nonzero(x > 0, d),
    lambda x, d: torch.index_select(x, d, torch.tensor([0, 0])), lambda x, d: F.softmin(x, d),
    lambda x, d: torch.trapezoid(x, dim=d), lambda x, d: torch.take_along_dim(x, torch.argsort(x, d, stable=True), d),
    lambda x, d: torch.gather(x, d, x.argmax(d, True)), lambda x, d: x.scatter(d, x.argmin(d, True), 0.5),
    lambda x, d: x.scatter_add(d, torch.zeros_like(x, dtype=torch.int64), x),
    lambda x, d: x.scatter_reduce(d, torch.zeros_like(x, dtype=torch.int64), x, "amax"),
    lambda x, d: torch.renorm(x, 2, d, 0.5),
    lambda x, d: x.index_add(d, torch.tensor([0, 0]), torch.cat([x, x], d).narrow(d, 0, 2), alpha=0.5),
    lambda x, d: torch.tensor_split(x, 2, d),
    lambda x, d: x.index_copy(d, torch.tensor([0]), x.narrow(d, x.shape[d] - 1, 1)),
    lambda x, d: x.index_fill(d, torch.tensor([0]), 0.3), lambda x, d: torch.fft.rfft(x, dim=d).abs(),
    lambda x, d: torch.fft.irfft(torch.fft.rfft(x, dim=d), x.shape[d], dim=d),
    lambda x, d: torch.view_as_real(torch.fft.fft(x, dim=d)), lambda x, d: torch.fft.fftshift(x, d),
    lambda x, d: torch.cumulative_trapezoid(x, dim=d), lambda x, d: F.gumbel_softmax(x, dim=d),
    lambda x, d: torch.mode(x, d)[0], lambda x, d: x.slice_scatter(x.narrow(d, 0, 1) * 2, d, 0, 1),
    lambda x, d: x.select_scatter(x.select(d, 0) * 2, d, -1), lambda x, d: torch.aminmax(x, dim=d),
    lambda x, d: x.expand(2, *x.shape).sum(d),
]  # fmt: skip

SQUARE: list[Callable[[Any], Any]] = [
    torch.linalg.inv, torch.linalg.det, torch.linalg.slogdet, torch.linalg.eigvalsh, torch.linalg.svdvals,
    torch.linalg.cholesky, torch.linalg.matrix_exp, torch.tril, torch.triu, torch.trace, torch.linalg.pinv,
    torch.linalg.qr, torch.linalg.eigh, lambda a: torch.linalg.solve(a, a[..., :1].contiguous()),
    lambda a: torch.linalg.matrix_norm(a), lambda a: torch.diagonal(a, dim1=-2, dim2=-1),
    lambda a: torch.cholesky_solve(a[..., :2], torch.linalg.cholesky(a)), lambda a: torch.diag_embed(a[..., 0]),
    lambda a: torch.linalg.lu(a), lambda a: torch.linalg.solve_triangular(a.tril(), a, upper=False),
    lambda a: torch.linalg.matrix_norm(a, "nuc"), lambda a: a.mT @ a,
    lambda a: torch.linalg.svd(a, full_matrices=False)[1], lambda a: torch.linalg.matrix_power(a, 3),
    lambda a: torch.linalg.cond(a), lambda a: torch.linalg.multi_dot([a, a, a]) if a.dim() == 2 else a,
    lambda a: torch.linalg.inv_ex(a)[0], lambda a: torch.linalg.ldl_factor(a)[0], lambda a: torch.logdet(a),
    lambda a: torch.linalg.svdvals(a[..., :2]),
]  # fmt: skip

IN_PLACE: list[Callable[[Any], Any]] = [
    lambda x: x.mul_(1.5), lambda x: x.add_(0.3), lambda x: x.tanh_(), lambda x: x.clamp_(-1, 1), lambda x: x.zero_(),
    lambda x: x.relu_(), lambda x: x.fill_(0.2), lambda x: x.copy_(x.flip(-1)), lambda x: x.masked_fill_(x > 0.3, 0.1),
    lambda x: x.sub_(x.mean()), lambda x: x.div_(2), lambda x: x.lerp_(x.new_zeros(()).expand_as(x), 0.3),
    lambda x: x.copysign_(-1.0), lambda x: x.fmod_(0.4), lambda x: x.sigmoid_(), lambda x: x.neg_(),
    lambda x: x.remainder_(0.4), lambda x: x.cumsum_(-1), lambda x: x.addcmul_(x, x, value=0.1),
    lambda x: x.index_fill_(-1, torch.tensor([0]), 0.4), lambda x: x.transpose_(0, -1), lambda x: x.unsqueeze_(0),
    lambda x: x.t_(), lambda x: x.normal_(), lambda x: x.uniform_(), lambda x: x.bernoulli_(0.4),
    lambda x: F.dropout(x, 0.4, True, inplace=True),
    lambda x: x.index_put_((torch.tensor([0, 0]),), x.new_ones(()), accumulate=True),
    lambda x: x.scatter_(-1, torch.zeros_like(x, dtype=torch.int64), 0.5),
]  # fmt: skip


@operator
def one(model: RandomModel, at: int, x: Any) -> Step | None:
    does = model.draw.choice(ONE)
    return (lambda _, v: does(v[at])) if x.is_floating_point() else None


@operator
def two(model: RandomModel, at: int, x: Any) -> Step | None:
    does, other = model.draw.choice(TWO), model.operand(x)
    return lambda _, v: does(v[at], v[other])


@operator
def with_parameter(model: RandomModel, at: int, x: Any) -> Step:
    does, shape = model.draw.choice(TWO), tuple(n if model.draw.random() < 0.7 else 1 for n in x.shape)
    name = model.parameter(shape[model.draw.randrange(len(shape) + 1) :], x.dtype)
    return lambda self, v: does(v[at], self.get_parameter(name))


@operator
def along(model: RandomModel, at: int, x: Any) -> Step | None:
    does, dim = model.draw.choice(ALONG), model.draw.randrange(max(x.dim(), 1))
    return lambda _, v: does(v[at], dim)


@operator
def all_of_it(model: RandomModel, at: int, x: Any) -> Step:
    does = model.draw.choice(
        [torch.sum, torch.mean, torch.std, torch.norm, torch.logsumexp, torch.amax, torch.max, torch.var]
    )
    dims = tuple(model.draw.sample(range(x.dim()), model.draw.randint(0, x.dim())))
    return lambda _, v: does(v[at], dims) if does in (torch.logsumexp, torch.amax) else does(v[at])


@operator
def view(model: RandomModel, at: int, x: Any) -> Step:
    order, size = model.draw.sample(range(x.dim()), x.dim()), x.numel()
    step, begin = model.draw.randint(1, 3), model.draw.randint(0, 1)
    views: list[Callable[[Any], Any]] = [
        lambda x: x.permute(order), lambda x: x.flatten(), lambda x: x.reshape(-1, 2), lambda x: x[..., begin::step],
        lambda x: x[begin::step], lambda x: x.squeeze(), lambda x: x.mT, lambda x: x.unsqueeze(-1),
        lambda x: x.expand(3, *x.shape), lambda x: x.as_strided((size // 2,), (2,)), lambda x: x.ravel()[begin:],
        lambda x: x.detach(), lambda x: x.reshape(2, -1), lambda x: x.unflatten(-1, (-1, 2)), lambda x: x[None],
        lambda x: x[..., :1].expand_as(x), lambda x: x.rot90(), lambda x: x.repeat(2, *(1,) * x.dim()),
        lambda x: x.tile(2), lambda x: x.view_as(x), lambda x: x.swapaxes(0, -1), lambda x: x.T,
    ]  # fmt: skip
    does = model.draw.choice(views)
    return lambda _, v: does(v[at])


@operator
def change_in_place(model: RandomModel, at: int, x: Any) -> Step:
    does, part = model.draw.choice(IN_PLACE), model.draw.randrange(5)
    copied = model.draw.random() < 0.6

    def step(_: Any, v: list[Any]) -> Any:
        whole = v[at].clone() if copied else v[at]
        does([whole, whole[..., ::2], whole[1:], whole.transpose(0, -1), whole[0]][part] if whole.dim() else whole)
        return whole

    return step


@operator
def change_by_another(model: RandomModel, at: int, x: Any) -> Step:
    other, which = model.operand(x), model.draw.randrange(5)

    def step(_: Any, v: list[Any]) -> Any:
        whole, by = v[at].clone(), v[other]
        if which == 0:
            whole[..., 0] = by[..., 0] * 2
        elif which == 1:
            whole[whole > 0.5] = 0.1
        elif which == 2:
            whole.add_(by, alpha=0.2)
        elif which == 3:
            whole[torch.tensor([0, -1])] += by[0]
        else:
            whole.copy_(by)
        return whole

    return step


@operator
def dtype(model: RandomModel, at: int, x: Any) -> Step:
    kinds = [
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.bool,
        torch.float32,
        torch.int32,
        torch.uint8,
    ]
    kind, by = model.draw.choice(kinds), model.draw.choice([1, 3.0])
    back = model.draw.random() < 0.5
    return lambda _, v: (v[at] * by).to(kind).to(v[at].dtype) if back else (v[at] * by).to(kind)


@operator
def linear(model: RandomModel, at: int, x: Any) -> Step:
    width, draw = x.shape[-1], model.draw
    kind = draw.randrange(6)
    if kind == 0 and model.tied.get(width):
        name = model.tied[width]
        return lambda self, v: F.linear(v[at], self.get_parameter(name))
    if kind == 1:
        name = model.parameter((width, draw.choice([1, 4, 17])), x.dtype)
        return lambda self, v: v[at] @ self.get_parameter(name)
    if kind == 2:
        name = model.parameter((draw.choice([3, 8]), width), x.dtype)
        return lambda self, v: torch.einsum("...i,ji->...j", v[at], self.get_parameter(name))
    if kind == 3:
        return lambda _, v: torch.einsum("...i,...j->ij", v[at], v[at]) / v[at].numel()
    if kind == 4:
        return lambda _, v: v[at] @ v[at].transpose(-1, -2)
    out = draw.choice([width, 1, 5, 16])
    name = model.layer(nn.Linear(width, out, bias=draw.random() < 0.7, dtype=x.dtype))
    if out == width:
        model.tied[width] = f"{name}.weight"
    return lambda self, v: self.get_submodule(name)(v[at])


@operator
def products(model: RandomModel, at: int, x: Any) -> Step:
    shape, draw = x.shape, model.draw
    name = model.parameter((*shape[:-2], shape[-1], draw.choice([1, 3, 9])), x.dtype)
    kinds: list[Callable[[Any, Any], Any]] = [
        torch.bmm, torch.matmul, torch.mm, lambda x, w: torch.mv(x, w[:, 0]),
        lambda x, w: torch.baddbmm(x[:, :, :1], x, w, alpha=0.3), lambda x, w: torch.addmm(w[0], x, w, beta=0.5),
        lambda x, w: torch.addmv(x[:, 0], x, w[:, 0]), lambda x, w: torch.addr(x, x[:, 0], x[0]),
        lambda x, w: torch.tensordot(x, w, ([-1], [-2])), lambda x, w: torch.chain_matmul(x, w),
        lambda x, w: w.mT @ x.mT,
    ]  # fmt: skip
    does = draw.choice(kinds)
    return lambda self, v: does(v[at], self.get_parameter(name))


@operator
def layer(model: RandomModel, at: int, x: Any) -> Step | None:
    if not x.is_floating_point() or x.dim() < 2:
        return None
    draw, wide, channels = model.draw, x.shape[-1], x.shape[1]
    kinds: list[Callable[[], Any]] = [
        lambda: nn.LayerNorm(wide), lambda: nn.RMSNorm(wide), lambda: nn.BatchNorm1d(channels),
        lambda: nn.GroupNorm(1, channels), lambda: nn.BatchNorm1d(channels, track_running_stats=False),
        lambda: nn.InstanceNorm1d(channels, affine=True, track_running_stats=True), lambda: nn.PReLU(channels),
        lambda: nn.Dropout(0.3), lambda: nn.AlphaDropout(0.3), lambda: nn.Dropout1d(0.4),
        lambda: nn.Conv1d(channels, 4, 3, padding=1), lambda: nn.Conv1d(channels, channels, 2, groups=channels),
        lambda: nn.Conv1d(channels, 3, 2, dilation=2, padding_mode="circular", padding=1),
        lambda: nn.ConvTranspose1d(channels, 3, 3, stride=2), lambda: nn.Bilinear(wide, wide, 3),
        lambda: nn.RNN(wide, 4, batch_first=True), lambda: nn.GRU(wide, 4), lambda: nn.LSTM(wide, 4),
        lambda: nn.MultiheadAttention(wide, 1, batch_first=True),
        lambda: nn.TransformerEncoderLayer(wide, 1, 8, 0.1, batch_first=True),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(wide, 4)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(wide, 4)),
        lambda: nn.utils.parametrizations.orthogonal(nn.Linear(wide, wide)), lambda: nn.LocalResponseNorm(2),
        lambda: nn.Softmax(-1),
    ]  # fmt: skip
    made = draw.choice(kinds)().to(x.dtype)
    name, kind = model.layer(made), type(made)
    if kind is nn.MultiheadAttention:
        return lambda self, v: self.get_submodule(name)(v[at], v[at], v[at])
    if kind is nn.Bilinear:
        return lambda self, v: self.get_submodule(name)(v[at], v[at])
    return lambda self, v: self.get_submodule(name)(v[at])


@operator
def image(model: RandomModel, at: int, x: Any) -> Step | None:
    if not x.is_floating_point():
        return None
    draw = model.draw
    channels, high, wide = draw.choice([(2, 5, 7), (4, 8, 8), (3, 6, 9)])
    grow = model.parameter((channels * high * wide,), x.dtype)
    kinds: list[Callable[[], Any]] = [
        lambda: nn.Conv2d(channels, 5, 3, padding=1), lambda: nn.Conv2d(channels, 4, 2, stride=2, bias=False),
        lambda: nn.ConvTranspose2d(channels, 3, 3, 2), lambda: nn.Conv2d(channels, channels, 3, groups=channels),
        lambda: nn.BatchNorm2d(channels), lambda: nn.InstanceNorm2d(channels), lambda: nn.MaxPool2d(2),
        lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), lambda: nn.AvgPool2d(2, 1), lambda: nn.AdaptiveAvgPool2d((2, 3)),
        lambda: nn.AdaptiveMaxPool2d(2), lambda: nn.LPPool2d(2, 2), lambda: nn.Upsample(scale_factor=2),
        lambda: nn.Upsample(scale_factor=1.5, mode="bilinear"), lambda: nn.PixelShuffle(2),
        lambda: nn.Upsample((7, 5), mode="bicubic", align_corners=True), lambda: nn.ReflectionPad2d(1),
        lambda: nn.ReplicationPad2d((1, 0, 2, 1)), lambda: nn.ZeroPad2d(1), lambda: nn.CircularPad2d(1),
        lambda: nn.Fold((high, wide), 1), lambda: nn.Unfold(2), lambda: nn.Dropout2d(0.4), lambda: nn.ChannelShuffle(2),
        lambda: nn.PixelUnshuffle(2), lambda: nn.GroupNorm(1, channels),
        lambda: nn.FractionalMaxPool2d(2, output_size=3), lambda: nn.ConstantPad2d((-1, 2, 0, 1), 0.5),
        lambda: nn.LazyConv2d(2, 3), lambda: nn.Upsample(scale_factor=2, mode="nearest-exact"),
    ]  # fmt: skip
    made = draw.choice(kinds)().to(x.dtype)
    if isinstance(made, nn.Fold):
        made = nn.Sequential(nn.Flatten(2), made)
    name, last = model.layer(made), draw.random() < 0.3

    def step(self: Any, v: list[Any]) -> Any:
        flat = v[at].flatten()[: max(v[at].numel() // 4, 1), None] * self.get_parameter(grow)
        pixels = flat[:3].view(-1, channels, high, wide)
        pixels = pixels.contiguous(memory_format=torch.channels_last) if last else pixels
        return self.get_submodule(name)(pixels)

    return step


@operator
def attention(model: RandomModel, at: int, x: Any) -> Step | None:
    if not x.is_floating_point() or x.dim() < 2:
        return None
    draw = model.draw
    causal, heads, p = draw.random() < 0.5, draw.choice([1, 2]), draw.choice([0.0, 0.0, 0.2])
    name = model.layer(nn.Linear(x.shape[-1], 3 * 8, dtype=x.dtype))
    masked = draw.random() < 0.3

    def step(self: Any, v: list[Any]) -> Any:
        parts = self.get_submodule(name)(v[at].reshape(-1, *v[at].shape[-2:])).chunk(3, -1)
        query, key, value = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in parts)
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril() if masked else None
        return (
            F.scaled_dot_product_attention(query, key, value, mask, p, is_causal=causal and not masked)
            .transpose(1, 2)
            .flatten(2)
        )

    return step


@operator
def indices(model: RandomModel, at: int, x: Any) -> Step | None:
    if x.dtype != torch.int64:
        return None
    draw, padding = model.draw, model.draw.choice([None, 0, 2])
    more: dict[str, Any] = draw.choice([{}, {}, {"scale_grad_by_freq": True}, {"max_norm": 0.5}])
    kinds = draw.randrange(5)
    if kinds < 3:
        name = model.layer(nn.Embedding(11, draw.choice([4, 7]), padding, **more))
        return lambda self, v: self.get_submodule(name)(v[at] % 11)
    if kinds == 3:
        name = model.layer(nn.EmbeddingBag(11, 6, mode=draw.choice(["sum", "mean", "max"])))
        return lambda self, v: self.get_submodule(name)(v[at].reshape(-1, 1) % 11)
    return lambda _, v: F.one_hot(v[at] % 11, 11).float()


@operator
def classes(model: RandomModel, at: int, x: Any) -> Step | None:
    if not x.is_floating_point() or x.dim() < 1:
        return None
    draw, number = model.draw, x.shape[-1]
    smooth, weighted, ignore = draw.choice([0.0, 0.1]), draw.random() < 0.3, draw.choice([-100, 0])
    how, kind = draw.choice(["mean", "sum", "none"]), draw.randrange(4)
    name = model.buffer(torch.rand(number).to(x.dtype)) if weighted else None

    def step(self: Any, v: list[Any]) -> Any:
        rows = v[at].reshape(-1, number)
        weight = self.get_buffer(name) if name else None
        target = torch.arange(len(rows)) % number
        if kind == 0:
            return F.nll_loss(F.log_softmax(rows, -1), target, weight, ignore_index=ignore, reduction=how)
        if kind == 1:
            return F.multi_margin_loss(rows, target, weight=weight, reduction=how)
        return F.cross_entropy(rows, target, weight, ignore_index=ignore, reduction=how, label_smoothing=smooth)

    return step


@operator
def square(model: RandomModel, at: int, x: Any) -> Step | None:
    if not x.is_floating_point() or x.dim() < 2 or x.shape[-1] < 2:
        return None
    does, plus = model.draw.choice(SQUARE), model.draw.choice([0.5, 1.0])

    def step(_: Any, v: list[Any]) -> Any:
        rows = v[at].tanh()
        return does(rows.mT @ rows / rows.shape[-2] + plus * torch.eye(rows.shape[-1], dtype=rows.dtype))

    return step


@operator
def state(model: RandomModel, at: int, x: Any) -> Step:
    kind, name = model.draw.randrange(5), model.buffer(torch.rand(x.shape).to(x.dtype))
    shared = model.draw.choice([name, *model.buffers_of(x)])

    def step(self: Any, v: list[Any]) -> Any:
        buffer, value = self.get_buffer(shared), v[at].detach()
        if kind == 0:
            buffer.mul_(0.5).add_(value, alpha=0.1)
        elif kind == 1:
            setattr(self, shared, buffer * 0.9 + value * 0.1)
            buffer = getattr(self, shared)
        elif kind == 2:
            buffer[..., ::2].copy_(value[..., ::2])
        elif kind == 3:
            return v[at] + buffer.clone()
        return v[at] * buffer.detach()

    return step


@operator
def noise(model: RandomModel, at: int, x: Any) -> Step | None:
    if not x.is_floating_point():
        return None
    kinds: list[Callable[[Any], Any]] = [
        lambda x: F.dropout(x, 0.3, True), lambda x: x + torch.rand_like(x), lambda x: x * torch.randn(x.shape),
        lambda x: F.dropout(x, 0.0, True), lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: x + torch.randint(0, 3, x.shape), lambda x: x[torch.randperm(len(x))],
        lambda x: torch.multinomial(x.sigmoid(), 2, True), lambda x: torch.normal(x, 0.3),
        lambda x: torch.poisson(x.abs()), lambda x: F.alpha_dropout(x, 0.2, True),
        lambda x: x + torch.empty_like(x).exponential_(),
        lambda x: F.feature_dropout(x, 0.5, True) if hasattr(F, "feature_dropout") else x,
    ]  # fmt: skip
    does = model.draw.choice(kinds)
    return lambda _, v: does(v[at])


@operator
def resized(model: RandomModel, at: int, x: Any) -> Step | None:
    kinds: list[Callable[[Any], Any]] = [
        lambda x: F.pad(x, (1, 2)), lambda x: F.pad(x, (-1, 1), value=0.3), lambda x: F.interpolate(x, scale_factor=2),
        lambda x: F.avg_pool1d(x, 2), lambda x: F.interpolate(x, size=5, mode="linear"), lambda x: F.max_pool1d(x, 2),
        lambda x: F.adaptive_avg_pool1d(x, 3), lambda x: F.adaptive_max_pool1d(x, 2),
        lambda x: F.pad(x, (1, 1), "reflect"), lambda x: F.pad(x, (2, 1), "replicate"),
        lambda x: F.pad(x, (1, 1), "circular"), lambda x: F.lp_pool1d(x, 2, 2), lambda x: x.unfold(-1, 3, 2),
        lambda x: torch.bucketize(x, torch.tensor([-0.5, 0.0, 0.5])),
        lambda x: torch.searchsorted(x.flatten().sort()[0], x),
        lambda x: torch.meshgrid(x.flatten()[:3], x.flatten()[:4], indexing="ij"),
        lambda x: torch.cartesian_prod(x.flatten()[:3], x.flatten()[:2]),
        lambda x: torch.block_diag(x.reshape(-1, 1)[:3], x.reshape(1, -1)[:, :2]),
        lambda x: torch.vander(x.flatten()[:3]), lambda x: torch.histc(x.float(), 5, -1, 1),
        lambda x: x.new_tensor([1.0, 2.0]).sum() * x, lambda x: torch.linspace(0, 1, x.shape[-1]) * x,
        lambda x: torch.arange(x.shape[-1]) + x, lambda x: x * torch.full((1,), 0.5, dtype=torch.float64),
        lambda x: x * torch.tensor(2.0),
        lambda x: F.grid_sample(x[:1, None], x[:1, :, None, None].expand(-1, -1, 3, 2), align_corners=False),
        lambda x: torch.stft(x.flatten(), 4, return_complex=True, window=torch.ones(4)).abs(),
    ]  # fmt: skip
    does = model.draw.choice(kinds)
    return lambda _, v: does(v[at])
