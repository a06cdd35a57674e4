"""Programs without models: shaped like a Llama, for inference and for training, and small random ones."""

from __future__ import annotations

import dataclasses
import random

from openshelf.offload.program.program import Kind, Op, Phase, Program, Storage

FLOPS = 1e11  # of an imagined processor
BANDWIDTH = 1e10  # of its memory


@dataclasses.dataclass
class Builder:
    """Collects operators and storages; a storage is what `op` or `given` returned, its number.

    `views`: each operator that makes something is followed by so many that only look at it, as captured models are.
    """

    views: int = 0

    ops: list[Op] = dataclasses.field(default_factory=list)
    storages: list[Storage] = dataclasses.field(default_factory=list)

    def given(self, name: str, nbytes: int, kind: Kind = "weight", kept: bool = False) -> int:
        self.storages.append(Storage(len(self.storages), name, nbytes, kind, given=True, kept=kept))
        return len(self.storages) - 1

    def op(
        self,
        name: str,
        reads: list[int],
        nbytes: int = 0,
        *,
        flops: float = 0.0,
        changes: tuple[int, ...] = (),
        workspace: int = 0,
        again: bool = True,
        phase: Phase = "forward",
        kind: Kind = "activation",
        kept: bool = False,
    ) -> int:
        """An operator that makes one storage of `nbytes`, or none; the number of that storage."""
        makes: tuple[int, ...] = ()
        if nbytes:
            self.storages.append(Storage(len(self.storages), f"{name}.out", nbytes, kind, kept=kept))
            makes = (len(self.storages) - 1,)
        moved = sum(self.storages[s].nbytes for s in (*reads, *changes, *makes))
        seconds = flops / FLOPS if flops else moved / BANDWIDTH
        self.ops.append(
            Op(len(self.ops), name, tuple(reads), changes, makes, workspace, seconds, again and not changes, phase)
        )
        for number in range(self.views if makes else 0):
            self.ops.append(Op(len(self.ops), f"{name}.view{number}", makes, seconds=1e-6, phase=phase))
        return makes[0] if makes else -1

    def program(self, key: str) -> Program:
        return Program(tuple(self.ops), tuple(self.storages), key)


def llama(
    layers: int, hidden: int, tokens: int, *, vocabulary: int = 32000, train: bool = False, views: int = 0
) -> Program:
    """A Llama: seven matrices a layer, fp32; `train` adds the backward pass and Adam, layer by layer."""
    b = Builder(views)
    wide = hidden * 11 // 4
    row = 4 * tokens * hidden
    scores = 4 * tokens * tokens * max(1, hidden // 128)
    matrices = {"q": (hidden, hidden), "k": (hidden, hidden // 4), "v": (hidden, hidden // 4), "o": (hidden, hidden)}
    matrices |= {"gate": (hidden, wide), "up": (hidden, wide), "down": (wide, hidden)}
    ids = b.given("ids", 8 * tokens, "input")
    embed = b.given("embed", 4 * vocabulary * hidden, kept=train)
    weights: list[dict[str, int]] = []
    saved: list[dict[str, int]] = []
    x = b.op("embedding", [ids, embed], row, flops=float(tokens * hidden))

    def multiply(name: str, a: int, w: int, shape: tuple[int, int], phase: Phase = "forward") -> int:
        return b.op(name, [a, w], 4 * tokens * shape[1], flops=2.0 * tokens * shape[0] * shape[1], phase=phase)

    for layer in range(layers):
        at = f"layers.{layer}"
        w = {name: b.given(f"{at}.{name}", 4 * m * n, kept=train) for name, (m, n) in matrices.items()}
        w["norm1"] = b.given(f"{at}.norm1", 4 * hidden, kept=train)
        w["norm2"] = b.given(f"{at}.norm2", 4 * hidden, kept=train)
        s = {"x": x}
        s["n1"] = b.op(f"{at}.norm1", [x, w["norm1"]], row)
        for name in "qkv":
            s[name] = multiply(f"{at}.{name}", s["n1"], w[name], matrices[name])
        s["rq"] = b.op(f"{at}.rope_q", [s["q"]], row)
        s["rk"] = b.op(f"{at}.rope_k", [s["k"]], row // 4)
        s["p"] = b.op(f"{at}.scores", [s["rq"], s["rk"]], scores, flops=2.0 * tokens * tokens * hidden)
        s["s"] = b.op(f"{at}.softmax", [s["p"]], scores)
        s["a"] = b.op(f"{at}.mix", [s["s"], s["v"]], row, flops=2.0 * tokens * tokens * hidden, workspace=row)
        s["o"] = multiply(f"{at}.o", s["a"], w["o"], matrices["o"])
        s["h"] = b.op(f"{at}.add1", [x, s["o"]], row)
        s["n2"] = b.op(f"{at}.norm2", [s["h"], w["norm2"]], row)
        s["gate"] = multiply(f"{at}.gate", s["n2"], w["gate"], matrices["gate"])
        s["up"] = multiply(f"{at}.up", s["n2"], w["up"], matrices["up"])
        s["silu"] = b.op(f"{at}.silu", [s["gate"]], 4 * tokens * wide)
        s["m"] = b.op(f"{at}.mul", [s["silu"], s["up"]], 4 * tokens * wide)
        s["d"] = multiply(f"{at}.down", s["m"], w["down"], matrices["down"])
        x = b.op(f"{at}.add2", [s["h"], s["d"]], row)
        weights.append(w)
        saved.append(s)
    head = b.given("head", 4 * vocabulary * hidden, kept=train)
    last = tokens if train else 1
    logits = b.op("head", [x, head], 4 * last * vocabulary, flops=2.0 * last * hidden * vocabulary, kept=not train)
    if not train:
        return b.program(f"llama-{layers}-{hidden}-{tokens}-{vocabulary}-{views}")

    g = b.op("loss.backward", [logits, ids], 4 * tokens * vocabulary, phase="backward")

    def update(name: str, w: int, gradient: int) -> None:
        n = b.storages[w].nbytes
        states = [b.given(f"{name}.{moment}", n, "state", kept=True) for moment in ("m", "v")]
        b.op(f"{name}.adam_m", [gradient], changes=(states[0],), phase="update")
        b.op(f"{name}.adam_v", [gradient], changes=(states[1],), phase="update")
        step = b.op(f"{name}.adam_step", states, n, phase="update")
        b.op(f"{name}.adam_add", [step], changes=(w,), phase="update")

    def back(name: str, g: int, a: int, w: int, shape: tuple[int, int]) -> int:
        flops = 2.0 * tokens * shape[0] * shape[1]
        out = b.op(f"{name}.grad_in", [g, w], 4 * tokens * shape[0], flops=flops, phase="backward")
        dw = b.op(f"{name}.grad_w", [g, a], 4 * shape[0] * shape[1], flops=flops, phase="backward", kind="gradient")
        update(name, w, dw)
        return out

    def small(name: str, reads: list[int], nbytes: int) -> int:
        return b.op(name, reads, nbytes, phase="backward")

    g = back("head", g, x, head, (hidden, vocabulary))
    for layer in reversed(range(layers)):
        at, w, s = f"layers.{layer}", weights[layer], saved[layer]
        gm = back(f"{at}.down", g, s["m"], w["down"], matrices["down"])
        gs = small(f"{at}.mul.back_silu", [gm, s["up"]], 4 * tokens * wide)
        gu = small(f"{at}.mul.back_up", [gm, s["silu"]], 4 * tokens * wide)
        gg = small(f"{at}.silu.back", [gs, s["gate"]], 4 * tokens * wide)
        g1 = back(f"{at}.up", gu, s["n2"], w["up"], matrices["up"])
        g2 = back(f"{at}.gate", gg, s["n2"], w["gate"], matrices["gate"])
        gn = small(f"{at}.gate_up.sum", [g1, g2], row)
        dn = small(f"{at}.norm2.grad_w", [gn, s["h"]], 4 * hidden)
        gh = small(f"{at}.norm2.back", [gn, s["h"], w["norm2"]], row)
        update(f"{at}.norm2", w["norm2"], dn)
        gh = small(f"{at}.add1.sum", [gh, g], row)
        ga = back(f"{at}.o", gh, s["a"], w["o"], matrices["o"])
        gv = small(f"{at}.mix.back_v", [ga, s["s"]], row // 4)
        gp = small(f"{at}.mix.back_s", [ga, s["v"]], scores)
        gp = small(f"{at}.softmax.back", [gp, s["s"]], scores)
        gq = small(f"{at}.scores.back_q", [gp, s["rk"]], row)
        gk = small(f"{at}.scores.back_k", [gp, s["rq"]], row // 4)
        parts = [back(f"{at}.{n}", one, s["n1"], w[n], matrices[n]) for n, one in (("q", gq), ("k", gk), ("v", gv))]
        gn = small(f"{at}.qkv.sum", parts, row)
        dn = small(f"{at}.norm1.grad_w", [gn, s["x"]], 4 * hidden)
        gx = small(f"{at}.norm1.back", [gn, s["x"], w["norm1"]], row)
        update(f"{at}.norm1", w["norm1"], dn)
        g = small(f"{at}.residual.sum", [gx, gh], row)
    de = b.op("embedding.grad", [g, ids], 4 * vocabulary * hidden, phase="backward", kind="gradient")
    update("embed", embed, de)
    return b.program(f"llama-train-{layers}-{hidden}-{tokens}-{vocabulary}-{views}")


def small_program(rng: random.Random, ops: int, *, clean: bool = False) -> Program:
    """A random program of `ops` operators; `clean`: nothing but given storages lives long, and nothing changes."""
    b = Builder()
    alive = [b.given(f"w{n}", 4096 * rng.randint(1, 8), kept=rng.random() < 0.3) for n in range(rng.randint(2, 6))]
    makes_kept = [False, False, True]
    for number in range(ops):
        reads = rng.sample(alive, min(len(alive), rng.randint(1, 3)))
        changes: tuple[int, ...] = ()
        if not clean and rng.random() < 0.3:
            changes = (rng.choice(alive),)
        size = 4096 * rng.randint(1, 8) - rng.choice([0, 0, 100])
        made = b.op(
            f"op{number}", reads, 0 if rng.random() < 0.15 else size, flops=rng.choice([1e4, 1e5, 1e6, 4e6]),
            changes=changes, workspace=rng.choice([0, 0, 0, 5000]), again=rng.random() < 0.7,
            kept=rng.choice(makes_kept),
        )  # fmt: skip
        if made >= 0:
            alive.append(made)
    return b.program(f"random-{ops}-{rng.random()}")
