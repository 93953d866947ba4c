# SPDX-License-Identifier: Apache-2.0
"""A script in the shape that torchft's users have, with the imports of bulkhead.torchft."""

import os
from datetime import timedelta

import torch
from bulkhead.torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo
from torch.utils.data import DataLoader, TensorDataset

group = int(os.environ.get("REPLICA_GROUP_ID", 0))
groups = int(os.environ.get("NUM_REPLICA_GROUPS", 2))


class Digits(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.features = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2))
        self.classes = torch.nn.Linear(4 * 3 * 3, 10)

    def forward(self, images):
        return self.classes(self.features(images).flatten(1))


def pictures(count):
    """Noise around ten pictures; whose noise it is can be learned."""
    draw = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 10, (count,), generator=draw)
    means = torch.randn(10, 1, 8, 8, generator=draw)
    return TensorDataset(means[labels] + 0.3 * torch.randn(count, 1, 8, 8, generator=draw), labels)


def main():
    dataset = pictures(2000)
    sampler = DistributedSampler(dataset, replica_rank=group, num_replica_groups=groups, group_rank=0,
                                 num_replicas=1, shuffle=True)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)

    def load_state_dict(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optim"])

    def state_dict():
        return {"model": model.state_dict(), "optim": optimizer.state_dict()}

    manager = Manager(pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=1,
                      load_state_dict=load_state_dict, state_dict=state_dict,
                      replica_id=f"digits_{group}", timeout=timedelta(seconds=30))
    model = DistributedDataParallel(manager, Digits())
    optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters(), lr=1e-2))
    criterion = torch.nn.CrossEntropyLoss()
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            print(f"step {manager.current_step()} of {manager.num_participants()}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
