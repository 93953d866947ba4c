# SPDX-License-Identifier: Apache-2.0
"""One replica of the GPT of examples/gpt on torchft (CPU, Gloo), used as torchft's own example uses it.

Standard input: the phase in which to die by SIGKILL, whenever that comes next; its end ends the replica.
Standard output: a line of JSON for each step, [ns, step, committed, contributed], and [ns] at its death.
"""
import argparse
import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torchft
from torch.utils.data import DataLoader

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/gpt"))
from model import GPT, Size, Windows, arguments, loss_of, optimizer_of  # noqa: E402

victim_of = None  # the phase in which this replica dies


def tell(*fields):
    os.write(1, (json.dumps(fields) + "\n").encode())


def entered(phase):
    if victim_of == phase:
        tell(time.time_ns())
        os.kill(os.getpid(), signal.SIGKILL)


def listen():
    global victim_of
    for line in sys.stdin:
        victim_of = line.strip()
    os._exit(0)  # whoever started this replica is gone


class Manager(torchft.Manager):
    def allreduce(self, *args, **kwargs):
        entered("exchange")
        return super().allreduce(*args, **kwargs)

    def should_commit(self, *args, **kwargs):
        entered("vote")
        self.committed = super().should_commit(*args, **kwargs)
        return self.committed


class AdamW(torch.optim.AdamW):
    def step(self, *args, **kwargs):
        entered("apply")
        return super().step(*args, **kwargs)


def average_gradients(manager, model):
    """In one all-reduce. torchft's DistributedDataParallel (0.2.0) is no choice here: over Gloo it fails
    an assertion in every survivor as soon as a peer is lost, so that the whole job begins anew."""
    gradients = [p.grad for p in model.parameters()]
    flat = torch.cat([g.view(-1) for g in gradients])
    manager.allreduce(flat).wait()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
        gradient.copy_(mean.view_as(gradient))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("replica", "replicas", "heartbeat-ms", "gloo-ms", "least"):
        parser.add_argument("--" + name, type=int, required=True)
    args, sys.argv[1:] = parser.parse_known_args()
    gpt = arguments()
    threading.Thread(target=listen, daemon=True).start()
    torch.set_num_threads(1)
    torch.manual_seed(gpt.seed)
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(milliseconds=args.gloo_ms)),
        load_state_dict=lambda state: [thing.load_state_dict(state[name]) for name, thing in parts.items()],
        state_dict=lambda: {name: thing.state_dict() for name, thing in parts.items()},
        min_replica_size=args.least, timeout=timedelta(seconds=30),
        heartbeat_interval=timedelta(milliseconds=args.heartbeat_ms),
        rank=0, world_size=1, store_addr="localhost", store_port=store.port,
        replica_id=f"replica_{args.replica}", hostname="localhost")
    model = GPT(Size(gpt.context, gpt.layers, width=gpt.width))
    optimizer = torchft.Optimizer(manager, AdamW(optimizer_of(model, gpt.rate).param_groups, betas=(0.9, 0.95)))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.optim, T_max=1000)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    windows = Windows(gpt.text, gpt.context, gpt.seed)
    sampler = torchft.DistributedSampler(windows, replica_rank=args.replica, num_replica_groups=args.replicas,
                                         group_rank=0, num_replicas=1, shuffle=False)
    while True:
        for inputs, targets in DataLoader(windows, gpt.batch, sampler=sampler, drop_last=True):
            optimizer.zero_grad()
            entered("compute")
            loss_of(model, inputs, targets).backward()
            average_gradients(manager, model)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if manager.committed:
                schedule.step()
            tell(time.time_ns(), manager.current_step(), manager.committed,
                 manager.committed and manager.is_participating())


main()
