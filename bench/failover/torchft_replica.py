# SPDX-License-Identifier: Apache-2.0
"""One replica of a data-parallel job on torchft (CPU, Gloo), used as torchft's own example uses it.

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
from torch import nn

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


def network():
    """1.57 million parameters."""
    widths = [256, 768, 768, 768, 256]
    layers = []
    for wide, next_wide in zip(widths, widths[1:]):
        layers += [nn.Linear(wide, next_wide), nn.GELU()]
    return nn.Sequential(*layers[:-1])


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
    for name in ("replica", "batch", "heartbeat-ms", "gloo-ms", "least"):
        parser.add_argument("--" + name, type=int, required=True)
    args = parser.parse_args()
    threading.Thread(target=listen, daemon=True).start()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(milliseconds=args.gloo_ms)),
        load_state_dict=lambda state: (model.load_state_dict(state["model"]),
                                       optimizer.load_state_dict(state["optimizer"])),
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=args.least, timeout=timedelta(seconds=30),
        heartbeat_interval=timedelta(milliseconds=args.heartbeat_ms),
        rank=0, world_size=1, store_addr="localhost", store_port=store.port,
        replica_id=f"replica_{args.replica}", hostname="localhost")
    model = network()
    optimizer = torchft.Optimizer(manager, AdamW(model.parameters()))
    draw = torch.Generator().manual_seed(args.replica)
    while True:
        inputs = torch.randn(args.batch, 256, generator=draw)
        optimizer.zero_grad()
        entered("compute")
        nn.functional.mse_loss(model(inputs), inputs.flip(1)).backward()
        average_gradients(manager, model)
        optimizer.step()
        tell(time.time_ns(), manager.current_step(), manager.committed,
             manager.committed and manager.is_participating())


main()
