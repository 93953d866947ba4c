# SPDX-License-Identifier: Apache-2.0
"""The GPT of model.py under Bulkhead: the program that train_ddp.py becomes."""

import bulkhead
import torch
from model import GPT, Size, Windows, arguments, loss_of, optimizer_of

args = arguments()
job = bulkhead.attach()
torch.manual_seed(args.seed)
model = GPT(Size(args.context, args.layers, width=args.width)).to(args.device)
optimizer = optimizer_of(model, args.rate)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
job.register(model=model, optimizer=optimizer, scheduler=schedule,
             before_update=lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
windows = Windows(args.text, args.context, args.seed)
data = job.dataset(windows, shuffle=False)

for step in job:
    for inputs, targets in step.batches(data, args.batch):
        loss = loss_of(model, inputs, targets)
        step.backward(loss)
        print(f"loss {loss.item():.6f}", flush=True)
