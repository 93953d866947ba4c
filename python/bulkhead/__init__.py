# SPDX-License-Identifier: Apache-2.0
"""Bulkhead for PyTorch: replicas that may die while the others train on.

    job = bulkhead.attach()
    job.register(model=model, optimizer=optimizer)
    data = job.dataset(train_set)
    for step in job:
        for x, y in step.batches(data, size=8):
            step.backward(loss_of(model, x, y))

Started by `bulkheadctl up --replicas 4 -- python3 train.py`. docs/python.md says what happens in it;
`python3 -m bulkhead doctor` says what is missing here.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as _error:
    from ._ends import without_torch as _without_torch
    __getattr__ = _without_torch(_error)
else:
    from ._job import Dataset, Experts, Job, Step, attach
    from ._local import Rng
    from ._state import JobError

__all__ = ["Dataset", "Experts", "Job", "JobError", "Rng", "Step", "attach"]
