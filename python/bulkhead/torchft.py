# SPDX-License-Identifier: Apache-2.0
"""For scripts that were written for torchft: change their imports and start them by bulkheadctl up.

    from bulkhead.torchft import (DistributedDataParallel, DistributedSampler, Manager, Optimizer,
                                  ProcessGroupGloo)

The names and signatures are torchft 0.2's; what happens is Bulkhead's (docs/python.md). A step is
`optimizer.zero_grad()`, forward, one `loss.backward()`, `optimizer.step()`: it always commits, with
the replicas that are left, and no batch is lost. The job's `steps` say when it ends, by SystemExit(0)
out of `optimizer.step()`. Importing this attaches: do it before the model is built.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

import torch

from . import _job
from ._job import Job, Step
from ._state import JobError

__all__ = ("DistributedDataParallel", "DistributedSampler", "Manager", "Optimizer", "ProcessGroupGloo")

_manager: Optional["Manager"] = None
_sampler: Optional["DistributedSampler"] = None

if "BULKHEAD_JOB" in os.environ:
    _job.attach()


class NotInJob(JobError, NotImplementedError):
    """What torchft has and this module has not; no restart brings it."""


class ProcessGroupGloo:
    """Accepted in place of torchft's; the exchange is the job's own. `timeout` is not used: the job
    file's `timeouts` are."""

    def __init__(self, timeout: timedelta = timedelta(seconds=60), pg: Any = None) -> None:
        del timeout, pg

    def __getattr__(self, name: str) -> Any:
        raise NotInJob(f"ProcessGroupGloo.{name}: replicas exchange gradients by the job's own "
                       "transport; only a DistributedDataParallel of this module uses it")


class Manager:
    """The job as a script for torchft sees it: made once, before DistributedDataParallel and Optimizer.

    `load_state_dict` is not called: model and optimizer are caught up where they lie. `state_dict` is
    called once, to see that it holds nothing else. Quorum, timeouts, store and lighthouse are the
    job's, their arguments are not used.
    """

    def __init__(self, pg: Any, load_state_dict: Optional[Callable[[Any], None]],
                 state_dict: Optional[Callable[[], Any]], min_replica_size: int,
                 use_async_quorum: bool = True, timeout: timedelta = timedelta(seconds=60),
                 quorum_timeout: timedelta = timedelta(seconds=60),
                 connect_timeout: timedelta = timedelta(seconds=60), rank: Optional[int] = None,
                 world_size: Optional[int] = None, world_size_mode: Any = None,
                 store_addr: Optional[str] = None, store_port: Optional[int] = None,
                 lighthouse_addr: Optional[str] = None, replica_id: Optional[str] = None,
                 port: Optional[int] = None, hostname: str = "",
                 heartbeat_interval: timedelta = timedelta(milliseconds=100),
                 checkpoint_transport: Any = None, init_sync: bool = True,
                 max_retries: Optional[int] = None, quorum_retries: int = 0) -> None:
        global _manager
        if _manager is not None:
            raise JobError("a second Manager; a process is one rank of one job")
        if world_size not in (None, 1):
            raise JobError(f"world_size={world_size}; a replica is one process here")
        self._job: Job = _job._attached or _job.attach()
        if self._job.shards != 1:
            raise JobError(f"shards = {self._job.shards}; with bulkhead.torchft a replica is one process: set "
                           "shards = 1")
        self._state_dict = state_dict
        self._model: Optional[torch.nn.Module] = None
        self._optimizer: Optional[torch.optim.Optimizer] = None
        self._data: Optional[_job.Dataset] = None
        self._steps: Optional[Iterator[Step]] = None
        self._step: Optional[Step] = None
        _manager = self

    # ---- what a script asks --------------------------------------------------------------------

    def current_step(self) -> int:
        """Committed steps of the job."""
        return 0 if self._step is None else self._step.number - 1

    def num_participants(self) -> int:
        """Replicas that contributed to the last step; all of them before the first."""
        return round(self._job._samples_of_last / self._job.samples_per_replica) or self._job.replicas

    def batches_committed(self) -> int:
        """Of all replicas. Steps of before this process was started count as if no replica was missing."""
        return round((self._job._samples_committed or 0) / self._job.samples_per_replica)

    def participating_rank(self) -> Optional[int]:
        return self._job.replica

    def is_participating(self) -> bool:
        return True

    def errored(self) -> None:
        """Never: whom the job loses, it goes on without."""

    def start_quorum(self, allow_heal: bool = True, shrink_only: bool = False,
                     timeout: Optional[timedelta] = None) -> None:
        self._open()

    def wait_quorum(self) -> None:
        self._open()

    def set_state_dict_fns(self, load_state_dict: Callable[[Any], None],
                           state_dict: Callable[[], Any]) -> None:
        self._state_dict = state_dict

    def state_dict(self) -> Dict[str, int]:
        return {"step": self.current_step(), "batches_committed": self.batches_committed()}

    def load_state_dict(self, state_dict: Dict[str, int]) -> None:
        raise JobError("Manager.load_state_dict: resume the job from its own checkpoint, by bulkheadctl")

    def shutdown(self, wait: bool = True) -> None:
        """Nothing: the job ends, not the script."""

    def __getattr__(self, name: str) -> Any:
        raise NotInJob(f"Manager.{name}: not in bulkhead.torchft; DistributedDataParallel and "
                       "Optimizer of this module, or the loop of docs/python.md, do its work")

    # ---- the loop, turned inside out -----------------------------------------------------------

    def _open(self) -> Step:
        """The step that is open; the first one begins the loop."""
        if self._step is None:
            self._register()
            self._steps = iter(self._job)
            self._next()
        assert self._step is not None
        return self._step

    def _register(self) -> None:
        if self._model is None or self._optimizer is None:
            raise JobError("a step begins, and there is no DistributedDataParallel(manager, module) or no "
                           "Optimizer(manager, optim) yet; make both first")
        if _sampler is not None:
            self._data = self._job.dataset(_sampler.dataset, shuffle=_sampler.shuffle)
        if self._state_dict is not None:
            self._holds_nothing_else(self._state_dict())
        self._job.register(model=self._model, optimizer=self._optimizer)

    def _holds_nothing_else(self, tree: Any) -> None:
        known = {t.data_ptr() for t in self._model.state_dict().values() if isinstance(t, torch.Tensor)}
        for kept in self._optimizer.state.values():
            known.update(t.data_ptr() for t in kept.values() if isinstance(t, torch.Tensor))
        for name, _, value in _job._leaves("state_dict()", tree):
            if isinstance(value, torch.Tensor) and value.data_ptr() not in known and value.numel() > 0:
                raise JobError(f"{name} is neither the model's nor the optimizer's; what else must be equal on "
                               "all replicas, make a buffer of the model")

    def _places(self, step: Step) -> Iterator[int]:
        """Where in the dataset the step's samples are."""
        assert self._data is not None
        return (self._data.place(domain, index) for domain, index in step._samples)

    def _next(self) -> None:
        assert self._steps is not None
        for step in self._steps:
            self._step = step
            if step.samples > 0:
                self._job._final_from_here = True  # its one backward()
                self._job._scale = step.samples * self._job.tokens_per_sample
                return
        raise SystemExit(0)

    def _commit(self) -> None:
        """The gradient stands: the others' is added, the optimizer steps, the next step opens."""
        step = self._open()
        if _sampler is not None and _sampler.taken not in (0, step.samples):
            raise JobError(f"a step of {_sampler.taken} samples; the job has samples_per_replica = "
                           f"{step.samples}: give the DataLoader that batch_size, and num_workers=0")
        step._given = step.samples
        for domain, _ in step._samples:
            step._tokens[domain] += self._job.tokens_per_sample
        self._next()


class DistributedDataParallel(torch.nn.Module):
    """The module, whose gradients leave while loss.backward() makes them. `kwargs` of torch's own are
    taken and not used: a parameter without a gradient counts as one of zeros."""

    def __init__(self, manager: Manager, module: torch.nn.Module, **kwargs: object) -> None:
        super().__init__()
        self.module = module
        manager._model = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class Optimizer(torch.optim.Optimizer):
    """Steps with the mean gradient of all replicas. zero_grad() opens a step, step() closes it."""

    def __init__(self, manager: Manager, optim: torch.optim.Optimizer) -> None:
        self.optim, self.manager = optim, manager
        manager._optimizer = optim

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        self.optim.add_param_group(param_group)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self.optim.load_state_dict(state_dict)

    def state_dict(self) -> Dict[str, Any]:
        return self.optim.state_dict()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The job clears gradients itself."""
        self.manager._open()

    def step(self, closure: Optional[object] = None) -> None:
        """SystemExit(0) when the job is done."""
        if closure is not None:
            raise JobError("optimizer.step(closure): a closure cannot be evaluated again")
        self.manager._commit()

    @property
    def param_groups(self) -> List[Dict[str, Any]]:
        return self.optim.param_groups

    @property
    def state(self) -> Mapping[torch.Tensor, Any]:
        return self.optim.state

    def __repr__(self) -> str:
        return f"bulkhead.torchft.{self.optim!r}"


class DistributedSampler(torch.utils.data.Sampler):
    """The samples that the controller leases to this replica, each in exactly one committed step; who
    the replicas are is the job's matter, and the arguments that say so are not used.

    It looks no further ahead than the open step: its DataLoader has num_workers=0 and batch_size =
    samples_per_replica of the job.
    """

    def __init__(self, dataset: Any, replica_rank: int = 0, num_replica_groups: int = 1,
                 group_rank: Optional[int] = None, num_replicas: Optional[int] = None,
                 shuffle: bool = True, **kwargs: object) -> None:
        global _sampler
        if _sampler is not None:
            raise JobError("a second DistributedSampler; a job has one")
        self.dataset, self.shuffle = dataset, shuffle
        self._pass = -(-len(dataset) // (num_replica_groups * (num_replicas or 1)))
        self._taken_of: Optional[Step] = None
        self._taken = 0
        _sampler = self

    @property
    def taken(self) -> int:
        """Samples of the open step that were given out."""
        return self._taken if _manager is not None and self._taken_of is _manager._step else 0

    def __len__(self) -> int:
        return self._pass

    def set_epoch(self, epoch: int) -> None:
        """Nothing: every pass over the data has an order of its own."""

    def __iter__(self) -> Iterator[int]:
        given = 0
        while given < self._pass:
            if _manager is None:
                raise JobError("the DistributedSampler is used before there is a Manager")
            step = _manager._open()
            if self._taken_of is step:
                raise JobError(f"step {step.number} has no more samples: give the DataLoader num_workers=0 and "
                               f"batch_size={step.samples}, the job's samples_per_replica, and call "
                               "optimizer.step() for each batch")
            self._taken_of, self._taken = step, 0
            for place in _manager._places(step):
                self._taken += 1
                given += 1
                yield place
