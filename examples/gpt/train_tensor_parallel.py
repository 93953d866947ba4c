# SPDX-License-Identifier: Apache-2.0
"""train_bulkhead.py with a replica of several processes: each computes a part of every sample."""

import bulkhead
import torch
from model import GPT, Size, Windows, arguments, loss_of, optimizer_of
from tensor_parallel import parallelize

args = arguments()
job = bulkhead.attach()
job.process_group()
torch.manual_seed(args.seed)
model = parallelize(GPT(Size(args.context, args.layers, width=args.width)), job.shard, job.shards)
optimizer = optimizer_of(model, args.rate)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
job.register(model=model, optimizer=optimizer, scheduler=schedule)
windows = Windows(args.text, args.context, args.seed)
data = job.dataset(windows, shuffle=False, whole=True)

for step in job:
    for inputs, targets in step.batches(data, args.batch):
        loss = loss_of(model, inputs, targets)
        step.backward(loss)
        print(f"loss {loss.item():.6f}", flush=True)
