"""A model in a quarter of the memory that it needs: run, then trained, from flash, with plain PyTorch's results."""

import copy

import torch

from openshelf import offload


def loss_of(result: torch.Tensor) -> torch.Tensor:
    return (result - 1).square().mean()


torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))  # 8 MiB of weights
x = torch.randn(32, 512)

plan = offload.plan(model, x, budget="2MiB", time_limit=1)
print(plan)
with plan.load(model) as run, torch.no_grad():
    print("the same result, bit for bit:", torch.equal(run(x), model(x)))
print(plan.check())
print(plan.explain("5.weight"))

for_rows = offload.buckets(model, lambda rows: torch.zeros(rows, 512), 64, "2MiB", time_limit=1)  # captured once
with torch.no_grad():  # (language models generate with offload.decode: docs/offload.md)
    several = [torch.randn(rows, 512) for rows in (5, 20, 64)]
    print("and for any number of rows:", all(torch.equal(for_rows(x), model(x)) for x in several))

plain = copy.deepcopy(model)
ours, theirs = (torch.optim.AdamW(one.parameters(), lr=1e-3) for one in (model, plain))
plan = offload.plan(model, x, budget="8MiB", optimizer=ours, loss=loss_of, time_limit=1)  # of 32 MiB with its states
with plan.load(model) as run:
    for _ in range(3):
        (loss,) = run(x)
        theirs.zero_grad()
        loss_of(plain(x)).backward()
        theirs.step()
    trained = run.state_dict()
print(f"three steps in {plan.peak >> 20} MiB, loss {loss:.4f}, the same parameters:",
      all(torch.equal(trained[name], value) for name, value in plain.state_dict().items()))  # fmt: skip
