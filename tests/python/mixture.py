# SPDX-License-Identifier: Apache-2.0
"""A mixture of two layers whose router chooses two of four experts, told to the job."""

import bulkhead
import torch


class Mixture(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(4, 4)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(4))
        self.chosen = None

    def forward(self, x):
        scores, self.chosen = self.router(x).softmax(-1).topk(2)
        every = torch.stack([expert(x) for expert in self.experts], -2)
        picked = every.gather(-2, self.chosen.unsqueeze(-1).expand(*self.chosen.shape, 4))
        return x + (scores.unsqueeze(-1) * picked).sum(-2)


job = bulkhead.attach()
model = torch.nn.Sequential(Mixture(), Mixture())
job.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
             experts=bulkhead.Experts(layers=2, experts=4, top_k=2))
rows = job.dataset([torch.rand(8, 4) for _ in range(100)])
for step in job:
    for batch in step.batches(rows, 4):
        step.backward(model(batch).square().mean())
        for layer, mixture in enumerate(model):
            step.experts(layer, mixture.chosen)
