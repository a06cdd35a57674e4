"""Which plan trains a model fastest on a fabric, before anything is rented? All figures are simulated."""

from openshelf.fabric import Fabric
from openshelf.workloads.train import Cluster, Plan, constants_of, model_of, search, step_of, why_not

cluster = Cluster.of(Fabric.load("dgx-h100-ib"))
model = model_of("gpt3-175b")
constants = constants_of("auto", cluster)

first = Plan(dp=32, tp=8, global_batch=512, dtype="fp8", overlap=True)
print("a first try:", why_not(model, first, cluster))

found = search(model, cluster, constants, 512, Plan(dtype="fp8", overlap=True), keep=1)
best = found.best[0]
print(f"the best of {found.tried} plans: dp {best.plan.dp}, tp {best.plan.tp}, pp {best.plan.pp}, cp {best.plan.cp}")
print(f"{best.seconds:.1f} s a step, MFU {best.mfu:.0%}, about {constants.error:.0%} off; it fits: {best.memory.fits}")

again = step_of(model, best.plan, cluster, constants.of(best.plan))
print("communication that nothing hides:", f"{sum(again.exposed_s.values()) / again.seconds:.1%} of the step")
