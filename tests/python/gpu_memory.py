# SPDX-License-Identifier: Apache-2.0
"""A job's program whose gradients a GPU exchanges, by a driver for tests whose memory is the host's:
torch's tensors are on the CPU, and see the GPU's memory as they would a card's. `gpu_memory.py cpu`
is the same on the CPU."""

import sys
import time

import bulkhead
import torch
from bulkhead import _device


class Mark:
    def __init__(self):
        self.asked = 0

    def query(self):
        self.asked += 1
        return self.asked > 1

    def synchronize(self):
        pass


class Gpu(_device.Gpu):
    _TYPE = 1  # kDLCPU

    def mark(self):
        return Mark()

    def wait(self):
        pass


if sys.argv[1:] != ["cpu"]:
    _device.gpu_of = lambda parameters: Gpu()
bulkhead._job._MARKED_FLOATS = 64  # less than a parameter
job = bulkhead.attach()
model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.BatchNorm1d(32), torch.nn.GELU(),
                            torch.nn.Linear(32, 1 << 13))  # so large that its sum is copied while it is used
model.unused = torch.nn.Parameter(torch.ones(100))
job.register(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01), buffers="reduced")
if sys.argv[1:] != ["cpu"] and job._gpu is None:
    raise bulkhead.JobError("the gradient is not on the GPU")
scatter = job._state.scatter
# A state that takes long to take over: the sums of the steps meanwhile are replayed.
job._state.scatter = lambda: time.sleep(1) or scatter()
draw = torch.Generator().manual_seed(1)
rows = [(x, x.square().sum()) for x in torch.rand(1000, 4, generator=draw)]
data = job.dataset(rows)
for step in job:
    for x, y in step.batches(data, 4):
        step.backward((model(x).mean(-1) - y).square().mean())
