# SPDX-License-Identifier: Apache-2.0
"""A rank that ends as its replica number says, in the fifth step of its first start."""

import os
import queue
import resource
import sys

import bulkhead
import torch

job = bulkhead.attach()
model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
job.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), buffers="reduced")


class Rows(torch.utils.data.Dataset):
    stuck = False

    def __len__(self):
        return 1000

    def __getitem__(self, at):
        if self.stuck:
            queue.Queue().get()
        return torch.full((4,), float(at % 7))


def raises(step):
    sys.excepthook = lambda *_: print("a hook of the program's own", file=sys.stderr)
    raise ValueError("no such row")


def deadlocks(step):
    Rows.stuck = True


def takes_all_memory(step):
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    torch.empty(8 << 30, dtype=torch.uint8)


def forks(step):
    child = os.fork()
    if child == 0:
        step.backward(model[1].weight.sum())
    sys.exit(os.waitpid(child, 0)[1] >> 8)


ends = {1: raises, 2: deadlocks, 3: takes_all_memory, 4: lambda step: sys.exit(3), 5: forks}
rows = job.dataset(Rows())
for step in job:
    if job.incarnation == 1 and step.number == 5 and job.replica in ends:
        ends[job.replica](step)
    for batch in step.batches(rows, 8):
        step.backward(model(batch).square().mean())
    step.log(replica=job.replica)
