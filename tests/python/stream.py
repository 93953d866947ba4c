# SPDX-License-Identifier: Apache-2.0
"""Trains on a stream of the numbers 0 to 999, with state_dict() or without; a step's loss is their mean."""

import sys

import bulkhead
import torch


class Plain(torch.utils.data.IterableDataset):
    at = 0

    def __iter__(self):
        for number in range(1000):
            yield float(number)


class Continued(Plain):
    def __iter__(self):
        while self.at < 1000:
            self.at += 1
            yield float(self.at - 1)

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


job = bulkhead.attach()
model = torch.nn.Linear(1, 1)
job.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
numbers = {"plain": Plain, "continued": Continued, "listed": lambda: [float(n) for n in range(1000)]}[sys.argv[1]]()
data = job.dataset(numbers, shuffle=False)
for step in job:
    for batch in step.batches(data, 8):
        step.backward((model(batch[:, None].float()) * 0).mean() + batch.float().mean())
