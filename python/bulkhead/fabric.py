# SPDX-License-Identifier: Apache-2.0
"""Lightning Fabric's precision and loggers within a job's loop.

    job = bulkhead.attach()
    fabric = Fabric(accelerator="cpu", precision="bf16-mixed", callbacks=[bulkhead.fabric.Callback(job)])
    model, optimizer = fabric.setup(Net(), torch.optim.AdamW(...))
    job.register(model=model, optimizer=optimizer)
    for step in job:
        for x, y in step.batches(data, size=8):
            step.backward(loss_of(model, x, y))

Each rank of the job is a Fabric of one process: the job has what Fabric's strategies are for.
"""

from __future__ import annotations

from typing import Any, Tuple

from ._job import Job
from ._state import JobError


class Callback:
    """For Fabric(callbacks=[...]): with fabric.setup() the job's backward passes become Fabric's, and
    register() takes what setup() returned. JobError, from setup(), where the two do not go together."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Fabric calls it."""
        if fabric.world_size != 1:
            raise JobError(f"Fabric has {fabric.world_size} processes; each rank of the job is one of its own: "
                           "make it with devices=1, num_nodes=1 and no strategy")
        if getattr(fabric.strategy.precision, "scaler", None) is not None:
            raise JobError(f"Fabric(precision={fabric.strategy.precision.precision!r}) scales losses, and the sum over "
                           "all replicas must be of gradients that are not scaled; use \"bf16-mixed\"")
        self._job._backward = fabric.backward
        self._job._bare = _bare

    def on_after_optimizer_step(self, strategy: Any, optimizer: Any) -> None:
        """Fabric calls it."""
        raise JobError("the update is made between two steps of the job: remove optimizer.step()")


def _bare(model: Any, optimizer: Any) -> Tuple[Any, Any]:
    """What Fabric wrapped, and whatever it did not wrap."""
    def is_of(kind: str, value: Any) -> bool:
        return any(base.__name__ == kind for base in type(value).__mro__)

    return (model.module if is_of("_FabricModule", model) else model,
            optimizer.optimizer if is_of("_FabricOptimizer", optimizer) else optimizer)
