"""A model larger than memory: its layers are on flash, and each comes while the one before it computes."""

import os
import tempfile

import numpy as np

import openshelf as osf

NAME = f"example-{os.getpid()}"
LAYERS = 16  # of 4 MiB: twice the memory

with tempfile.TemporaryDirectory() as disk, osf.Space.create(NAME, dram="32MiB", flash=f"{disk}/shelf:96MiB") as space:
    with space.new("layers", (LAYERS, 1024, 1024), "float32") as layers:
        for i in range(LAYERS):
            layers[i].numpy()[:] = np.eye(1024) * (i % 2 + 0.5)  # the first ones leave as the last ones come
    x, coming = np.ones(1024, np.float32), layers[0].prefetch()
    with layers[LAYERS - 1].pin():  # this one stays
        for i in range(LAYERS):
            coming.wait()
            if i + 1 < LAYERS:
                coming = layers[i + 1].prefetch()  # while this one computes
            x = layers[i].numpy() @ x
    tiers = space.describe()["tiers"]
    print(f"{x[0]:.4f} from {layers.nbytes >> 20} MiB in {tiers['dram_budget'] >> 20} MiB of dram")
    osf.Space.remove(NAME)
