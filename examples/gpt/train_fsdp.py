# SPDX-License-Identifier: Apache-2.0
"""train_bulkhead.py with a replica of several processes that hold its parameters between them, by
fully_shard() of torch 2: each computes samples of its own."""

import bulkhead
import torch
from model import GPT, Size, Windows, arguments, loss_of, optimizer_of
from torch.distributed.fsdp import fully_shard

args = arguments()
job = bulkhead.attach()
mesh = job.device_mesh()
torch.manual_seed(args.seed)
model = GPT(Size(args.context, args.layers, width=args.width))
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = optimizer_of(model, args.rate)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
job.register(model=model, optimizer=optimizer, scheduler=schedule)
windows = Windows(args.text, args.context, args.seed)
data = job.dataset(windows, shuffle=False)

for step in job:
    for inputs, targets in step.batches(data, args.batch):
        loss = loss_of(model, inputs, targets)
        step.backward(loss)
        print(f"loss {loss.item():.6f}", flush=True)
