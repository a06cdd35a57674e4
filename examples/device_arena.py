"""Weights that are larger than a device go through it in turn, two buffers that swap, while it computes."""

import os

import numpy as np

import openshelf as osf
from openshelf.space import Device, place

NAME = f"example-{os.getpid()}"
LAYERS = 8

with osf.Space.create(NAME, dram="64MiB") as space:
    layers = [space.put(f"w{i}", np.full((256, 256), (i + 1) / 256, np.float32)) for i in range(LAYERS)]
    # Layer i is copied in during step i - 1 and used in step i: two are alive at once, and two buffers are enough.
    placement = place([(layer.nbytes, i - 1, i) for i, layer in enumerate(layers)])
    with Device("host", budget=placement.peak) as device:  # "cuda" is another word for the same calls
        replicas = [layer.on(block) for layer, block in zip(layers, device.arrange(placement), strict=True)]
        x, coming = np.ones(256, np.float32), replicas[0].load()
        for i, replica in enumerate(replicas):
            coming.wait()
            if i + 1 < LAYERS:
                coming = replicas[i + 1].load()  # while this one computes
            x = replica.numpy() @ x
        with replicas[-1].writing() as weights:
            weights[:] = x[0]  # on the device; the array has it when somebody looks
        print(f"{x[0]:.0f} with {device.budget >> 10} KiB for {LAYERS * layers[0].nbytes >> 10} KiB of weights")
        stored = space[f"w{LAYERS - 1}"].numpy()[0, 0]
        print("written back:", stored == x[0], device.describe()["copies_in"], "copies in")
osf.Space.remove(NAME)
