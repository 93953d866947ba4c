# SPDX-License-Identifier: Apache-2.0
"""The GPT of model.py with DistributedDataParallel: the program that train_bulkhead.py changes."""

import torch
from model import GPT, Size, Windows, arguments, loss_of, optimizer_of
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

args = arguments()
distributed.init_process_group("gloo")
torch.manual_seed(args.seed)
model = GPT(Size(args.context, args.layers, width=args.width)).to(args.device)
optimizer = optimizer_of(model, args.rate)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
model = DistributedDataParallel(model)
windows = Windows(args.text, args.context, args.seed)
data = DataLoader(windows, args.batch, sampler=DistributedSampler(windows, shuffle=False), drop_last=True)

for epoch in range(args.epochs):
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        print(f"loss {loss.item():.6f}", flush=True)
