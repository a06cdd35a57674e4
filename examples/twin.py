"""Networks that nobody has built: an all-reduce on two, a cable that fails, a training step that hides its traffic.

Everything here is simulated; the figures of the links are made up.
"""

from __future__ import annotations

from openshelf.fabric import LinkClass, Semantics, SwitchClass, topologies
from openshelf.twin import Change, Twin

cable = LinkClass("400G", 50e9, 5e-7)
xlink = LinkClass("xlink", 450e9, 2e-7)
switch = SwitchClass("64 ports", 64, 3e-7)

# The same 64 accelerators, by cables to a fat tree or in nodes of 8 with a network of their own.
flat = Twin(topologies.fat_tree(64, cable, switch, 2))
pod = Twin(topologies.rail_only(8, 8, xlink, switch, cable, switch))
for name, twin in (("fat tree", flat), ("rail-only", pod)):
    best = twin.collective("all_reduce", 1 << 30)
    print(f"{name}: all-reduce of 1 GiB in {best.seconds * 1e3:.2f} ms, by {best.algorithm}")

# Messages that are copied and packed, on the same wires.
slow = Twin(flat.network, Semantics("messages", 5e-6, copies=2, copy_bytes_per_s=20e9))
print(f"a send of 1 MiB: {flat.send(0, 9, 1 << 20) * 1e6:.0f} us, by messages {slow.send(0, 9, 1 << 20) * 1e6:.0f} us")

# A cable fails after a millisecond and is back two milliseconds later.
tasks = flat.tasks()
tasks.flow(0, 9, 100e6)
link = int(flat.network.path(0, 9)[0])
failed = flat.run(tasks, [Change(1e-3, link, 0.0), Change(3e-3, link, 50e9)])
print(f"100 MB over a cable that fails: {failed.seconds * 1e3:.2f} ms instead of {flat.run(tasks).seconds * 1e3:.2f}")

# Two layers of a backward pass; the gradient of one goes while the other is computed.
step = pod.tasks()
reduce_s = pod.collective("all_reduce", 256 << 20).seconds
first = step.compute(2e-3, stream=0, name="backward of layer 2")
reduced = step.lasting(reduce_s, stream=1, name="all-reduce of layer 2", after=[first])
second = step.compute(1e-3, stream=0, name="backward of layer 1", after=[first])
step.compute(0.5e-3, stream=0, name="update", after=[reduced, second])
run = pod.run(step)
print(f"a step of {run.seconds * 1e3:.2f} ms, {run.exposed_s() * 1e3:.2f} of them waiting for the all-reduce")
print("critical path:", " > ".join(each.name for each in run.critical_path()))
