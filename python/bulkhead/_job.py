# SPDX-License-Identifier: Apache-2.0
"""The job as a PyTorch program sees it: attach, register, dataset, and the loop over its steps."""

from __future__ import annotations

import atexit
import collections
import ctypes
import faulthandler
import hashlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import distributed

from . import _device, _ends, _library
from ._library import Library
from ._local import Local
from ._state import JobError, Marks, State, _leaves, beside, is_apart, is_sharded, local_of, same_bits, \
    view_of
from ._stream import Stream, is_stream
from ._workers import Batch, Workers, seed_sample

_attached: Optional["Job"] = None
# So much of a gradient on a GPU is looked after at a time: a fourth of what is exchanged at a time there.
_MARKED_FLOATS = 4 << 20


def attach() -> "Job":
    """The job that this process is a rank of, from what its agent said in the environment.

    Takes the life lock and handles SIGTERM, so call it on the main thread, before torch computes
    anything. SIGQUIT has it write where each of its threads stands, into the job's output. Seeds torch with the job's seed: a model that is built next has the same parameters
    on every replica. Sets torch to one thread unless OMP_NUM_THREADS says otherwise.

    JobError when no agent started this process, or when it has attached before.
    """
    global _attached
    if _attached is not None:
        raise JobError("this process has attached before; it is one rank of one job: start another job "
                       "by a bulkheadctl up of its own")
    library = Library()
    before = sys.excepthook
    sys.excepthook = lambda *raised: _unhandled(library, before, *raised)
    words = ctypes.create_string_buffer(1024)
    rank = library.attach(words, len(words))
    if not rank:
        raise JobError(words.value.decode())
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    _attached = Job(library, rank)
    _ends.mind_forks(_attached._forked)
    faulthandler.register(signal.SIGQUIT, file=sys.__stderr__, all_threads=True)
    return _attached


def _unhandled(library: Library, before: Callable[..., Any], kind: Any, error: BaseException,
               trace: Any) -> None:
    """The last critical line of the log says what the process ended of; agents tell it as the cause."""
    # torch.distributed may have put its own hook around this one, and keeps what is written for later.
    sys.stderr = sys.__stderr__
    before(kind, error, trace)
    if _attached is not None:
        if _attached._is_fork:
            return
        _attached._explained = True
    hopeless = isinstance(error, JobError)
    words = _ends.one_line(str(error)) if hopeless else _ends.cause(error)
    code = _library.EXIT_HOPELESS if hopeless else 1
    if _attached is not None and _attached._grouped and not hopeless:
        if library.leaving(_attached._rank):
            words, code = _attached._end_in_a_step()
        elif _ends.is_of_a_group(error):
            words, code = f"a sibling in this replica was lost: {words}", _library.EXIT_SIBLING_LOST
    library.log(int(code != 0), words.encode())
    if _attached is not None and hopeless:
        library.hopeless(_attached._rank, words.encode())
        library.close(_attached._rank)
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: threads of the program may wait for ever, and peers wait for this rank.
    os._exit(code)


class Experts(NamedTuple):
    """The mixture of experts in a model, for the job's expert views and plans: register(experts=...)
    says what it is, step.experts() in each step how it was used."""

    layers: int
    """Mixture layers."""
    experts: int
    """Routed experts of each mixture layer."""
    top_k: int
    """Experts that a token chooses in each mixture layer."""
    shard: Optional[Sequence[Sequence[int]]] = None
    """[layer][expert]: the rank of a replica that each lies on. The program puts them there; the job
    does not move them. None: in blocks of equal size, in their order."""

    def _placement(self, shards: int, domains: int) -> List[int]:
        """By layer and expert. JobError."""
        if self.layers * self.experts * domains > 1 << 20:
            raise JobError(f"{self.layers} mixture layers of {self.experts} experts in {domains} domains; at most "
                           "1,048,576 counts are kept")
        if min(self.layers, self.experts) < 1 or not 1 <= self.top_k <= self.experts:
            raise JobError(f"{self}; expected a layer and an expert at least, and 1 to {self.experts} choices")
        if self.shard is None:
            return [expert * shards // self.experts for expert in range(self.experts)] * self.layers
        flat = [int(shard) for layer in self.shard for shard in layer]
        if len(self.shard) != self.layers or any(len(layer) != self.experts for layer in self.shard):
            raise JobError(f"Experts(shard=...) of {len(flat)} entries in {len(self.shard)} lists; expected "
                           f"{self.layers} lists of {self.experts}")
        if any(not 0 <= shard < shards for shard in flat):
            raise JobError(f"Experts(shard=...) names rank {max(flat, key=lambda s: abs(2 * s + 1 - shards))} of a "
                           f"replica; expected 0 to {shards - 1}")
        return flat


class Dataset:
    """A dataset whose samples the controller leases by index. Made by Job.dataset()."""

    def __init__(self, job: "Job", parts: Sequence[Any], shuffle: bool, collate: Callable[[List[Any]], Any],
                 workers: int):
        self._job, self._parts, self._shuffle, self._collate = job, parts, shuffle, collate
        self._workers = Workers(workers, self._load_beside) if workers else None

    def sample(self, domain: int, index: int) -> Any:
        """The element that index `index` of a lease of domain number `domain` stands for."""
        part = self._parts[domain]
        return part.sample(index) if isinstance(part, Stream) else part[self.place(domain, index)]

    def place(self, domain: int, index: int) -> int:
        """Where that element is, of what is no stream."""
        size = len(self._parts[domain])
        job = self._job
        return job._library.place(job._rank, domain, index, size) if self._shuffle else index % size

    def _load(self, batch: Batch) -> Any:
        return self._collate([self.sample(domain, index) for domain, index in batch])

    def _load_beside(self, batch: Batch) -> Any:
        """In a process of its own, so that nobody else draws from its generators."""
        samples = []
        for domain, index in batch:
            seed_sample(self._job.seed, domain, index)
            samples.append(self.sample(domain, index))
        return self._collate(samples)

    def _loaded(self, batches: List[Batch]) -> Iterator[Any]:
        return map(self._load, batches) if self._workers is None else self._workers.loaded(batches)

    def _close(self) -> None:
        if self._workers is not None:
            self._workers.close()


class Step:
    """One step of the job: the samples that this replica computes, until the body of the loop ends.

    A step that the job gives up on (a sample was not finite, this replica lost its place) is not
    told so: what was computed for it is dropped.
    """

    number: int
    """Counts the job's steps from 1; the first one after a restart is not 1."""

    def __init__(self, job: "Job", work: _library.Work) -> None:
        self.number = work.step
        self._job = job
        self._replicas = [(r.domain, index) for r in work.ranges[:work.range_count]
                          for index in range(r.begin, r.end)]
        self._samples = self._replicas if job._whole else [
            (s.domain, s.index) for s in work.samples[:work.sample_count]]
        # Ranks of a replica compute together: each takes as many batches as the one with most samples.
        self._most = -(-len(self._replicas) // (1 if job._whole else job.shards))
        self._batch: Optional[Batch] = None  # given out, without its backward
        self._newest: Batch = []  # given out
        self._given = 0
        self._loss: List[float] = [0.0] * len(job.domains)
        self._tokens: List[int] = [0] * len(job.domains)
        self._told: Optional[float] = None
        self._scalars: Dict[str, float] = {}
        self._chosen: Optional[torch.Tensor] = None  # [layer][domain][expert]: how often

    @property
    def samples(self) -> int:
        """How many samples of the step are this rank's."""
        return len(self._samples)

    def batches(self, data: Dataset, size: int) -> Iterator[Any]:
        """The step's samples in batches of `size`, the last one perhaps smaller, as `data` collates
        them. Every batch is owed one backward().

        A rank with fewer samples than its siblings of the replica gets as many batches: one beyond
        its samples holds its last once more, or one of theirs, and its loss counts for nothing."""
        if size < 1:
            raise ValueError(f"a batch of {size} samples; expected 1 or more")
        batches = [self._samples[at:at + size] for at in range(self._given, self._most, size)]
        loaded = data._loaded([batch or (self._samples or self._replicas)[-1:] for batch in batches])
        for batch in batches:
            self._owes_nothing()
            collated = next(loaded)
            self._given = min(self._given + size, self._most)
            self._batch = self._newest = batch
            self._began = time.monotonic_ns()
            yield collated
        self._owes_nothing()

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradient of a batch. `loss` is the mean over the batch's samples, a scalar; the
        step's update is the mean over all samples of all replicas."""
        self._job._need_rank()
        if self._batch is None:
            raise RuntimeError(f"step {self.number}: backward() without a batch; call it once for each "
                               "of step.batches()")
        if not isinstance(loss, torch.Tensor):
            raise ValueError(f"a loss of type {type(loss).__name__}; expected the tensor that the model gave, as "
                             "loss.backward() needs it")
        if loss.numel() != 1:
            raise ValueError(f"a loss of shape {tuple(loss.shape)}; expected the mean over the batch")
        job = self._job
        batch, self._batch = self._batch, None
        tokens = len(batch) * job.tokens_per_sample
        job._untouched(self.number)
        job._final_from_here = self._given == self._most
        job._backward(loss * tokens)
        job._look_after_gradient(True)
        job._mark()
        share = float(loss.detach()) * job.tokens_per_sample
        for domain, _ in batch if job._tells else []:
            self._loss[domain] += share
            self._tokens[domain] += job.tokens_per_sample
        job._library.progress(job._rank, time.monotonic_ns() - self._began)
        job._watch.moved()

    def metrics(self, *, loss: float) -> None:
        """What is told as this replica's mean loss of the step, in place of the mean of what
        backward() was given; the gradient does not change."""
        self._told = float(loss)

    def log(self, **scalars: float) -> None:
        """Figures of your own, by name; of a name that is told twice in a step the last one counts.
        The job shows the mean over all samples of the step, in its history, `bulkheadctl watch` and
        `status`. At most 32 names of at most 64 characters."""
        for name, value in scalars.items():
            if len(name) > 64 or (name not in self._scalars and len(self._scalars) >= 32):
                raise ValueError(f"log({name}=...): expected at most 32 names in a step, of at most 64 characters")
            self._scalars[name] = float(value)

    def experts(self, layer: int, chosen: torch.Tensor) -> None:
        """Which experts the tokens of the newest batch chose in mixture layer `layer`, from 0: whole
        numbers, as torch.topk() of the router gives them; the first dimension is the batch's samples, or
        its tokens, sample by sample. A layer that is told twice counts twice.

        The job's history and expert views tell the counts by domain, and plans are made from them."""
        job = self._job
        if job._experts is None:
            raise RuntimeError("step.experts() without register(experts=bulkhead.Experts(...))")
        layers, experts = job._experts.layers, job._experts.experts
        if not 0 <= layer < layers:
            raise ValueError(f"mixture layer {layer}; expected 0 to {layers - 1}")
        if not self._newest:  # it is beyond this rank's samples, and counts for nothing
            return
        if chosen.is_floating_point() or chosen.is_complex() or chosen.numel() % len(self._newest) != 0:
            raise ValueError(f"chosen experts of {chosen.dtype} and shape {tuple(chosen.shape)}; expected whole "
                             f"numbers, equally many for each of {len(self._newest)} samples")
        if chosen.numel() and not 0 <= int(chosen.min()) <= int(chosen.max()) < experts:
            raise ValueError(f"expert {int(chosen.min())} to {int(chosen.max())}; expected 0 to {experts - 1}")
        if self._chosen is None:
            self._chosen = torch.zeros(layers, len(job.domains), experts, dtype=torch.int64)
        rows = chosen.detach().reshape(len(self._newest), -1).cpu()
        for domain in {domain for domain, _ in self._newest}:
            its = rows[[at for at, (of, _) in enumerate(self._newest) if of == domain]]
            self._chosen[layer, domain] += torch.bincount(its.flatten().long(), minlength=experts)

    def _expert_counts(self) -> Optional[torch.Tensor]:
        if self._chosen is None or not self._job._whole:
            return self._chosen
        # Every rank computes every sample: each tells of the experts that lie on it.
        job = self._job
        here = torch.tensor(job._placement).view(job._experts.layers, 1, job._experts.experts) == job.shard
        return self._chosen * here

    def _owes_nothing(self) -> None:
        if self._batch is not None:
            raise RuntimeError(f"step {self.number}: a batch had no backward(); its samples would count "
                               "as trained on")

    def _figures(self) -> Tuple[List[float], List[int]]:
        self._owes_nothing()
        if self._given < self._most:
            raise RuntimeError(f"step {self.number} ended with {self._given} of {self._most} samples "
                               "trained on; take all of step.batches()")
        if self._told is None:
            return self._loss, self._tokens
        return [self._told * tokens for tokens in self._tokens], self._tokens


class Job:
    """The job, as a rank of one of its replicas. Made by attach(). Iterating over it trains."""

    run: str
    """The run's id."""
    replica: int
    """This replica, from 0; it keeps its number when it is started again."""
    replicas: int
    """How many the job has when all are there."""
    shard: int
    """This rank of the replica, from 0."""
    shards: int
    """How many ranks a replica has; they hold its parameters between them."""
    incarnation: int
    """How often this replica was started, from 1."""
    seed: int
    """The job's seed, equal on all replicas."""
    domains: List[str]
    """Names of the job's data domains."""
    samples_per_replica: int
    """Samples of one step on one replica when none is missing."""
    tokens_per_sample: int
    """The job's sequence_length: for the figures, not for the gradient."""

    def __init__(self, library: Library, rank: int) -> None:
        says = _library.JobSays()
        library.describe(rank, ctypes.byref(says))
        self._library, self._rank = library, rank
        self.run = says.job.decode()
        self.replica, self.replicas, self.incarnation = says.replica, says.replicas, says.incarnation
        self.shard, self.shards = says.shard, says.shards
        self._address, self._run_dir = says.address.decode(), says.run_dir.decode()
        self.seed = says.seed
        self.domains = [says.domain_names[i].decode() for i in range(says.domains)]
        self.samples_per_replica = says.samples_per_replica
        self.tokens_per_sample = says.sequence_length
        self._state: Optional[State] = None
        self._own = Local()
        self._drawn_before = False  # the random generators go on from a checkpoint
        self._datasets: List[Dataset] = []
        self._data_words: List[str] = []
        self._whole = False  # every rank of the replica is given all of its samples
        self._tells = True  # loss and tokens: of samples that several ranks have, one does
        self._raised: Optional[BaseException] = None
        self._final_from_here = False
        self._begun = False
        self._step = 0  # the newest that was begun
        self._over = False  # the loop ended with the job
        self._moved = False  # all that the optimizer keeps lies in the job's memory
        self._scale = 1  # of each gradient when it is final
        self._samples_of_last = 0
        self._samples_committed: Optional[int] = None  # by the job; before this process began: as if none were missing
        self._experts: Optional[Experts] = None
        self._placement: List[int] = []  # by mixture layer and expert
        self._hook = sys.excepthook  # attach()'s
        self._explained = False  # the log says what the process ends of
        self._is_fork = False
        self._grouped = False  # process_group() was made
        self._backward: Callable[[torch.Tensor], None] = torch.Tensor.backward
        self._bare: Callable[[Any, Any], Tuple[Any, Any]] = lambda model, optimizer: (model, optimizer)
        self._watch = _ends.Watch(says.progress_floor_ms / 1000, says.progress_multiple, self._stuck)
        torch.manual_seed(self.seed)
        atexit.register(self._exits)

    # ---- before the loop -----------------------------------------------------------------------

    def register(self, *, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any = None,
                 before_update: Optional[Callable[[], None]] = None, buffers: str = "fixed",
                 experts: Optional[Experts] = None) -> None:
        """What the job keeps equal on all replicas, once and before the loop.

        `model` has float32 parameters: on the CPU, where they become views of shared memory, or on a
        CUDA device, which exchanges their gradients itself, with one rank in a replica. `optimizer`
        steps on the mean gradient of all replicas when a step is committed, `scheduler` (anything
        with step(), state_dict() and load_state_dict()) after it. `before_update` is called in
        between, with that gradient in every param.grad: clip it there. It must do the same on all
        replicas.

        `buffers`: what becomes of the model's persistent buffers. "fixed": the forward pass does not
        change them, or the job says which one it did. "reduced" (BatchNorm's running statistics):
        with each step all replicas take the mean, over all samples, of what their forward passes
        made of them; a number of batches is rounded. They travel as the gradient does.

        `experts`: what mixture of experts the model has, when step.experts() tells how it is used.

        JobError names what cannot be registered: the module, parameter or option, and what to use.
        """
        if self._state is not None:
            raise JobError("register() was called before; a process trains one model")
        if buffers not in ("fixed", "reduced"):
            raise JobError(f"buffers={buffers!r}; expected \"fixed\" or \"reduced\"")
        if buffers == "reduced" and self.shards > 1:
            raise JobError("buffers=\"reduced\" with several ranks in a replica; use LayerNorm or GroupNorm, or "
                           "set shards = 1")
        if self.shards > 1 and any(local_of(p).is_cuda for p in model.parameters()):
            raise JobError("parameters on a CUDA device with several ranks in a replica; set shards = 1, or train "
                           "on the CPU")
        self._experts = experts
        self._placement = [] if experts is None else experts._placement(self.shards, len(self.domains))
        model, optimizer = self._bare(model, optimizer)
        state = State(model, optimizer, scheduler, buffers == "reduced")
        # Buffers come first: they are final last, and what is last in memory leaves first.
        self._reduced = state.buffers() if buffers == "reduced" else []
        others = sum(-(-value.numel() // 16) * 16 for _, value in self._reduced)
        offsets, floats = [], others
        for p in state.trained:
            offsets.append(floats)
            floats += -(-local_of(p).numel() // 16) * 16  # so that each begins at a cache line
        gpu = _device.gpu_of(state.trained)
        sizes = _library.Sizes(state.bytes, state.parameter_bytes, floats, others, int(gpu is not None))
        blocks = _library.Blocks()
        self._need(self._library.memory(self._rank, ctypes.byref(sizes), ctypes.byref(blocks)))
        state.bind(blocks.state)
        self._state, self._floats = state, floats
        self._optimizer, self._scheduler, self._before_update = optimizer, scheduler, before_update
        self._gpu = gpu if blocks.on_device else None
        self._gradient_at = blocks.gradient
        self._gradient = self._flat(self._gradient_at)
        self._ranges = [(at, at - (-local_of(p).numel() // 16) * 16)
                        for at, p in zip(offsets, state.trained)]
        self._local = self._views(self._gradient)
        self._others = others
        self._mean_at = 0  # the address of the sum that _mean views
        self._mean: List[torch.Tensor] = []
        # A gradient on a GPU on its way: what is not marked yet, and the marks with what is final there.
        self._unmarked: List[Tuple[int, int]] = []
        self._marked: Deque[Tuple[Any, List[Tuple[int, int]]]] = collections.deque()
        self._final = [False] * len(state.trained)
        self._buffers_written = False
        self._weights, self._left = Marks(), Marks()  # parameters as a step begins; gradients as they leave
        self._model_name = type(model).__name__
        self._parameters = sum(p.numel() for p in model.parameters())
        self._accumulators = []
        for at, p in enumerate(state.trained):
            if is_sharded(p):
                p.register_post_accumulate_grad_hook(lambda _, at=at: self._added(at))
                continue
            # The node that adds to p.grad; its hook runs when it has. It must be held, or it is made anew.
            node = p.expand_as(p).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_, at=at: self._added(at))
            self._accumulators.append(node)

    def register_local(self, **kept: Any) -> None:
        """What this replica keeps for itself, by name: anything with state_dict() and
        load_state_dict(), bulkhead.Rng() say. Before the loop.

        It is part of the checkpoints that this replica writes, and of no hash. A replica that
        resumes from a checkpoint of its own number gets back what it was before the first step that
        is computed next; any other one, and whoever gets its state from peers, begins with what was
        registered. state_dict() is called in each step; it holds tensors, numbers, strings, and
        lists, tuples and dictionaries of them.

        JobError names what has no such state.
        """
        if self._begun:
            raise JobError("register_local() was called in the loop; call it before")
        for name, value in kept.items():
            self._own.add(name, value)

    def process_group(self) -> Any:
        """torch's default process group, which it makes: of this replica's ranks alone, in this start
        of the replica, over Gloo. Code that shards a model within a replica runs in it.

        The rank that is lost ends the replica, and the group with it; the next start makes its own.
        Call it on all ranks of the replica, before a model is sharded. JobError when the program has
        made a default group itself.
        """
        if not self._grouped:
            if distributed.is_initialized():
                raise JobError("torch.distributed has a process group already; job.process_group() makes it: "
                               "remove init_process_group()")
            if self._address.startswith("127."):
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            # A file of this start, in a folder that only the job's user can read.
            store = os.path.join(self._run_dir, f"group-r{self.replica}-{self.incarnation}")
            distributed.init_process_group("gloo", store=distributed.FileStore(store, self.shards),
                                           rank=self.shard, world_size=self.shards)
            self._grouped = True
        return distributed.group.WORLD

    def device_mesh(self, name: str = "shard") -> Any:
        """The ranks of this replica in process_group() as a torch DeviceMesh of one dimension: what
        fully_shard() and parallelize_module() take. JobError before torch 2.2."""
        self.process_group()
        try:
            from torch.distributed.device_mesh import init_device_mesh
        except ImportError:
            raise JobError(f"torch {torch.__version__} has no device meshes; use job.process_group(), or torch "
                           "2.2 or newer") from None
        return init_device_mesh("cpu", (self.shards,), mesh_dim_names=(name,))

    def dataset(self, data: Union[Any, Mapping[str, Any]], *, shuffle: Optional[bool] = None,
                collate: Optional[Callable[[List[Any]], Any]] = None, whole: bool = False,
                workers: int = 0) -> Dataset:
        """Samples to be leased by index: anything with len() and [index], of the same length on all
        replicas, or a stream: anything else with iter(), such as a torch IterableDataset. A job of
        several domains takes a dictionary with one dataset for each name.

        In each pass every sample comes once: in an order drawn from the job's seed and the pass, or
        with shuffle=False in their own. `collate` makes a batch of a list of samples (default:
        torch's default_collate).

        Sample n of a stream is the n-th that it yields, so it has its own order, and a pass ends where
        it ends. It must yield the same samples on every replica (no part of them by rank) and in every
        pass; each replica reads all of them forward and keeps those that are leased to it. Of what has
        state_dict() and load_state_dict() too, a replica keeps the newest eight states: it goes back by
        them when it is given what a lost replica did not train on, and goes on by them from a
        checkpoint or when it is started again. Without them it reads from the beginning, and says so.

        The samples of a replica are dealt to its ranks, each to one; `whole` gives all of them to
        every rank, for models whose ranks compute one sample together. A program has one or the
        other.

        `workers` processes load the step's samples beside the training; they are forked here, and die
        with the rank. In them torch, Python and numpy are seeded for each sample, so that what is
        drawn for it does not depend on who loads it. 0: they are loaded by batches() itself. A stream
        has none.

        JobError when the names are not the job's, a dataset is empty, or a stream is seen not to yield
        the same again.
        """
        if isinstance(data, Mapping):
            if sorted(data) != sorted(self.domains):
                raise JobError(f"datasets {sorted(data)} for the domains {sorted(self.domains)} of the job; "
                               "name them alike")
            parts = [data[name] for name in self.domains]
        elif len(self.domains) == 1:
            parts = [data]
        else:
            raise JobError(f"one dataset for the domains {self.domains}; give a dictionary with one for each")
        parts = [self._part(number, part, shuffle, workers) for number, part in enumerate(parts)]
        shuffle = shuffle is not False
        if self._data_words and whole != self._whole:
            raise JobError("a dataset whose samples are dealt to the ranks of a replica beside one that is "
                           "whole; use whole=True with all of them, or with none")
        self._whole = whole
        self._tells = self.shard == 0 or not whole
        self._data_words.append(", ".join(self._words_of(name, part) for name, part in
                                          zip(self.domains, parts)) + ("" if shuffle else ", in order") +
                                (", whole" if whole else ""))
        made = Dataset(self, parts, shuffle, collate or torch.utils.data.default_collate, workers)
        self._datasets.append(made)
        return made

    def _part(self, domain: int, part: Any, shuffle: Optional[bool], workers: int) -> Any:
        """One domain's dataset as it will be read. JobError."""
        name = self.domains[domain]
        if not is_stream(part):
            if len(part) == 0:
                raise JobError(f"the dataset of domain {name} is empty")
            return part
        if isinstance(part, torch.utils.data.DataLoader) and part.batch_size is not None:
            raise JobError(f"the dataset of domain {name} is a DataLoader, which yields batches; give the dataset "
                           "that it loads, or make it with batch_size=None")
        if shuffle:
            raise JobError(f"shuffle=True, and the dataset of domain {name} is a stream, which has its own order; "
                           "leave it out, and shuffle in the stream from a seed that is equal everywhere")
        if workers:
            raise JobError(f"workers={workers}, and the dataset of domain {name} is a stream, which one process "
                           "reads; leave it out, or load ahead within the stream (a DataLoader with "
                           "batch_size=None)")
        number = len(self._datasets)
        stream = Stream(name, part, self.replicas * self.samples_per_replica,
                        os.path.join(self._run_dir, f"stream-{number}-{domain}"), self._passed_over,
                        lambda line: self._library.log(0, line.encode()))
        self._own.add(f"stream {number} of {name}", stream)
        return stream

    def _passed_over(self) -> None:
        """A stream was read on, and nothing of the step was computed."""
        self._watch.moved()
        if self._begun and not self._over:
            self._library.progress(self._rank, 0)

    @staticmethod
    def _words_of(name: str, part: Any) -> str:
        return f"a stream in {name} whose first sample is {part.first[:16]}" if isinstance(part, Stream) else \
            f"{len(part)} samples in {name}"

    # ---- the loop ------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Step]:
        """The steps that this replica contributes to, until the job ends.

        What a committed step, a lost peer or a return asks of this replica is done between two of
        them. When the replica is expelled or finds no controller any more the process ends, with
        the code that says so; the job's end ends the loop.
        """
        self._need_rank()
        if self._state is None:
            raise JobError("register() the model and the optimizer before the loop")
        if self._begun:
            raise JobError("the loop over a job runs once")
        self._begun = True
        self._start()
        work = _library.Work()
        try:
            while True:
                outcome = self._library.next(self._rank, ctypes.byref(work))
                if outcome != _library.STEP:
                    return self._end(outcome, work)
                step = Step(self, work)
                self._begin(work.step)
                with self._watch:
                    self._begin_gradient()
                    yield step
                    self._finish_gradient(step)
        finally:
            for data in self._datasets:
                data._close()
            if self._over:
                self._library.close(self._rank)
            elif not self._is_fork and not self._explained:  # no thread starts while Python ends
                self._leave_soon()

    def _begin(self, number: int) -> None:
        if self._step == 0 and not self._drawn_before:  # so that dropout differs between replicas
            # Ranks that compute one sample together draw alike.
            shard = 0 if self._whole else self.shard
            words = f"{self.seed} {self.replica} {shard} {self.incarnation} {number}"
            torch.manual_seed(int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "little"))
        self._step = number
        self._own.begins(number)

    def _start(self) -> None:
        # Kept, because ctypes does not keep what the library calls.
        self._program = _library.Program(
            ctypes.sizeof(_library.Program), None,
            _library.MOVE(lambda _: self._guarded(self._state.gather)),
            _library.MOVE(lambda _: self._guarded(self._state.scatter)),
            _library.UPDATE(lambda _, total, update: self._guarded(self._update, total, update.contents)),
            _library.SAVE_LOCAL(lambda _, step, to, size: self._guarded(self._save_local, step, to, size)),
            _library.LOAD_LOCAL(lambda _, given, size: self._guarded(self._load_local, given, size)),
            _library.SUM_OF_SQUARES(lambda _, *given: self._guarded(self._sum_of_squares, *given)),
            self._model_name.encode(), self._parameters, *self._fingerprint(),
            json.dumps(self._state.table(self._model_name)).encode(),
            *(self._experts[:3] if self._experts else (0, 0, 0)),
            (ctypes.c_int32 * len(self._placement))(*self._placement))
        self._need(self._library.start(self._rank, ctypes.byref(self._program)))

    def _fingerprint(self) -> Tuple[int, bytes]:
        """Of what all replicas must have alike before the first step."""
        words = "; ".join(self._data_words) or "no dataset"
        text = words.encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") or 1, text

    def _views(self, flat: torch.Tensor) -> List[torch.Tensor]:
        return [flat[begin:begin + local_of(p).numel()].view_as(local_of(p))
                for (begin, _), p in zip(self._ranges, self._state.trained)]

    def _flat(self, address: int) -> torch.Tensor:
        """A gradient, or a sum of them, where the library has it."""
        if self._gpu is not None:
            return self._gpu.view(address, self._floats)
        return view_of(address, torch.float32, torch.Size([self._floats]))

    def _is_home(self, at: int) -> bool:
        """The view of trained parameter `at` is of the flat gradient: share_memory() moves a storage under
        all that view it, and a conversion of the model puts other memory into p.grad."""
        view = self._local[at]
        return view.numel() == 0 or view.data_ptr() == self._gradient_at + 4 * self._ranges[at][0]

    def _is_lent(self, parameter: torch.Tensor) -> bool:
        """Autograd adds to a view of the flat gradient. Else, for parameters that several ranks share or
        whose GPU does not exchange, gradients come and go as torch makes them."""
        return self._gpu is not None or not is_apart(parameter)

    def _lend_gradients(self) -> None:
        for p, view in zip(self._state.trained, self._local):
            p.grad = view if self._is_lent(p) else None

    def _other_views(self, flat: torch.Tensor) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
        """(buffer, its part of `flat`)"""
        begin = 0
        for _, value in self._reduced:
            yield value, flat[begin:begin + value.numel()].view_as(value)
            begin += -(-value.numel() // 16) * 16

    def _begin_gradient(self) -> None:
        if self._step_one() or self._reduced or self._buffers_written:
            self._buffers_before = [(name, value, value.clone()) for name, value in self._state.buffers()]
        self._unmarked.clear()
        self._marked.clear()
        if not all(map(self._is_home, range(len(self._local)))):
            self._gradient = self._flat(self._gradient_at)
            self._local = self._views(self._gradient)
        self._gradient.zero_()
        self._final = [False] * len(self._final)
        self._final_from_here = False
        self._lend_gradients()
        self._values = [p._version for p in self._state.parameters]
        self._buffer_values = [value._version for _, value in self._state.buffers()]
        self._weights.begin()
        self._left.begin()
        for at, p in enumerate(self._state.trained):
            self._weights.keep(at, p)
        self._kept = self._state.optimizer_marks()
        self._gradients: List[Any] = []

    def _mark(self) -> None:
        """The gradient as it stands between two batches."""
        self._gradients = self._stamps()

    def _stamps(self) -> List[Any]:
        """They differ when a gradient was changed, or another tensor took its place."""
        return [None if p.grad is None else (id(p.grad), local_of(p.grad)._version)
                for p in self._state.trained]

    def _untouched(self, number: int) -> None:
        """Nobody but the loop changes parameters and gradients of a step. JobError."""
        for p, before in zip(self._state.parameters, self._values):
            if p._version != before:
                raise JobError(self._update_refused(number, self._state.name_of(p)))
        if self._kept != self._state.optimizer_marks():
            name = self._state.optimizer_change(self._kept)
            raise JobError(f"step {number}: {name} changed in the body of the loop, which a replica that catches up "
                           "does not run: change it in a scheduler that register(scheduler=...) is given, or in "
                           "before_update")
        if self._gradients and self._gradients != self._stamps():
            raise JobError(f"step {number}: a gradient changed between two batches or after the last; the loop "
                           "clears them itself, and adds up what backward() gives: remove zero_grad(), and clip in "
                           "register(before_update=...)")

    @staticmethod
    def _update_refused(number: int, what: str) -> str:
        return (f"step {number}: {what} changed in the body of the loop, where a replica that catches "
                "up does not come by; the update is made between two steps: remove optimizer.step(), change "
                "parameters in before_update, and try other weights (an average of them, say) in a copy of "
                "the model")

    def _unchanged(self, number: int) -> None:
        """As _untouched(), at the body's end and of changes that torch does not count. RuntimeError, since memory
        that fails makes them too, and a restart helps there."""
        trained = self._state.trained
        fails = "; where the program does no such thing, memory of this node fails"
        changed = self._weights.changed(trained)
        if changed is not None:
            raise RuntimeError(self._update_refused(number, self._state.name_of(trained[changed])) + fails)
        gradients = [p.grad for p in trained]
        changed = self._left.changed(gradients)
        # What is not finite is the exchange's to find.
        if changed is not None and (gradients[changed] is None or bool(gradients[changed].isfinite().all())):
            raise RuntimeError(f"step {number}: the gradient of {self._state.name_of(trained[changed])} changed after it "
                               "had left for the other replicas; clip it, or change it, in "
                               f"register(before_update=...){fails}")

    def _step_one(self) -> bool:
        return not hasattr(self, "_buffers_before")

    def _added(self, at: int) -> None:
        """Autograd has added to the gradient of trained parameter `at`."""
        p, view = self._state.trained[at], self._local[at]
        if p.grad is not view and self._is_lent(p):  # zero_grad(set_to_none=True) before the first batch
            view.copy_(p.grad)
            p.grad = view
        if not self._final_from_here:
            return
        if self._final[at]:
            raise JobError(f"{self._state.name_of(p)}: a second gradient after the step's last one had "
                           "left; call step.backward() once for a batch")
        self._final[at] = True
        self._offer(at)
        self._watch.moved()

    def _offer(self, at: int) -> None:
        """The gradient of trained parameter `at` is final."""
        p, view = self._state.trained[at], self._local[at]
        if not self._is_home(at):
            self._gradient = self._flat(self._gradient_at)
            self._local[at] = self._views(self._gradient)[at].copy_(view)
            p.grad = view = self._local[at]
        if not self._is_lent(p) and p.grad is not None:
            grad = p.grad
            if is_sharded(p) and grad.placements != p.placements:
                grad = grad.redistribute(p.device_mesh, p.placements)
            view.copy_(local_of(grad))
        if self._scale != 1:
            view.mul_(self._scale)
        self._left.keep(at, p.grad)
        self._is_final(*self._ranges[at])

    def _is_final(self, begin: int, end: int) -> None:
        """Floats [begin, end) of the gradient, when the work that a GPU has been given is done."""
        if self._gpu is None:
            self._library.gradient_ready(self._rank, begin, end)
            return
        self._unmarked.append((begin, end))
        if sum(last - first for first, last in self._unmarked) >= _MARKED_FLOATS:
            self._look_after_gradient(False)

    def _look_after_gradient(self, wait: bool) -> None:
        """Offers what a GPU has finished, part by part, or waits until it has finished all that is final."""
        if self._unmarked:
            self._marked.append((self._gpu.mark(), self._unmarked))
            self._unmarked = []
        while self._marked and (wait or self._marked[0][0].query()):
            mark, ranges = self._marked.popleft()
            mark.synchronize()
            for begin, end in ranges:
                self._library.gradient_ready(self._rank, begin, end)

    def _finish_gradient(self, step: Step) -> None:
        loss, tokens = step._figures()
        self._untouched(step.number)
        self._unchanged(step.number)
        for name, value, before in self._buffers_before:
            if not self._reduced and not same_bits(value, before):
                raise JobError(f"buffer {name} changes in the forward pass, or elsewhere in the loop, differently on "
                               "each replica; register(buffers=\"reduced\") makes it the mean over all replicas, or make it "
                               "persistent=False")
        # What was written may be what was there: the next step compares.
        self._buffers_written |= self._buffer_values != [value._version for _, value in self._state.buffers()]
        self._offer_buffers(sum(tokens))
        self._buffers_before = []
        for at, final in enumerate(self._final):
            if not final:  # it had no part in the last batch's loss
                self._offer(at)
        self._look_after_gradient(True)
        count = len(self.domains)
        scalars, chosen = step._scalars, step._expert_counts()
        figures = _library.Figures(
            sum(loss), sum(tokens), (ctypes.c_double * count)(*loss), (ctypes.c_uint64 * count)(*tokens),
            len(scalars), (ctypes.c_char_p * len(scalars))(*(name.encode() for name in scalars)),
            (ctypes.c_double * len(scalars))(*scalars.values()),
            None if chosen is None else (ctypes.c_uint64 * chosen.numel())(*chosen.flatten().tolist()))
        self._library.computed(self._rank, ctypes.byref(figures))

    def _offer_buffers(self, tokens: int) -> None:
        """What the forward passes made of the buffers goes into the sum; the state is what it was until
        the step counts."""
        if not self._reduced:
            return
        for (value, part), (_, _, before) in zip(self._other_views(self._gradient), self._buffers_before):
            part.copy_(value).mul_(tokens)
            value.copy_(before)
        self._is_final(0, self._others)

    def _update(self, address: int, update: _library.Update) -> None:
        total = self._flat(address)
        if self._gpu is not None:
            total = total.clone()  # the sum is still being copied, for who comes back
        total[self._others:].mul_(update.gradient_scale)  # the mean, clipped as the job says
        total[:self._others].mul_(1 / max(1, update.samples * self.tokens_per_sample))
        if self._mean_at != address or self._gpu is not None:
            self._mean_at = address
            self._mean = self._views(total)
        self._state.check_parameters()
        self._samples_of_last = update.samples
        if self._samples_committed is None:
            self._samples_committed = (update.step - 1) * self.replicas * self.samples_per_replica
        self._samples_committed += update.samples
        groups = self._optimizer.param_groups
        rates = [group.get("lr") for group in groups]
        for p, view in zip(self._state.trained, self._mean):
            p.grad = beside(view, p)
        for value, part in self._other_views(total):
            value.copy_(part if value.is_floating_point() else part.round())
        if self._before_update is not None:
            self._before_update()
        if update.lr_factor != 1:
            for group, rate in zip(groups, rates):
                if rate is not None:
                    group["lr"] = rate * update.lr_factor
        self._optimizer.step()
        if update.lr_factor != 1:
            for group, rate in zip(groups, rates):
                if rate is not None:
                    group["lr"] = rate
        if self._scheduler is not None:
            self._scheduler.step()
        self._lend_gradients()
        if self._gpu is not None:
            self._mean = []
            self._gpu.wait()
        if not self._moved:
            self._moved = True
            self._state.gather()  # the optimizer has made its tensors
            # The memory that the state's tensors had before would stay with the allocator.
            ctypes.CDLL(None).malloc_trim(0)

    def _sum_of_squares(self, address: int, floats: int, to: Any) -> None:
        to[0] = float(torch.linalg.vector_norm(self._gpu.view(address, floats), dtype=torch.float64)) ** 2

    def _save_local(self, step: int, to: Any, size: Any) -> None:
        self._saved = self._own.bytes(step)  # lives until the next call
        to[0] = ctypes.cast(self._saved, ctypes.c_void_p)
        size[0] = len(self._saved)

    def _load_local(self, given: int, size: int) -> None:
        self._drawn_before = self._own.load(ctypes.string_at(given, size))

    # ---- ends ----------------------------------------------------------------------------------

    def _guarded(self, call: Callable[..., None], *arguments: Any) -> int:
        """For a callback: an exception cannot cross the library, so next() brings it back."""
        try:
            with self._watch:
                call(*arguments)
            return 0
        except BaseException as error:  # noqa: BLE001
            self._raised = error
            return 1

    def _stuck(self, seconds: float, where: str) -> None:
        """From the watch's thread, before the controller counts this rank as stuck and cannot know why."""
        self._library.log(1, f"step {self._step}: no batch and no gradient for {seconds:.0f} s; the program "
                             f"stands at {where}".encode())
        os._exit(1)

    def _leave_soon(self) -> None:
        """The body was left. When that was an exception the process ends now, and its end says more than
        a connection that is closed; when it was a break it may live on, and the job must not wait."""
        def left() -> None:
            if not self._explained:
                self._explained = True
                self._library.log(1, f"the loop was left in step {self._step}, the job did not end: break or "
                                     "return".encode())
                self._library.close(self._rank)

        timer = threading.Timer(1.0, left)
        timer.daemon = True
        timer.start()

    def _exits(self) -> None:
        if self._is_fork or self._over or self._explained:
            return
        self._explained = True
        when = f"in step {self._step}" if self._step else "before its first step"
        raised = getattr(sys, "last_value", None)
        if sys.excepthook is not self._hook and raised is not None:  # a hook of the program's own was called
            self._library.log(1, _ends.cause(raised).encode())
            return
        self._library.log(1, f"the program ended {when}, the job did not: sys.exit(), a break out of the "
                             "loop, or the end of the script".encode())

    def _forked(self) -> None:
        """This process is a copy of the rank, and the rank's threads are not in it."""
        self._is_fork = True

    def _need_rank(self) -> None:
        if self._is_fork:
            raise RuntimeError("this process was forked from the rank; only the rank itself trains: use the "
                               "job's loop and step.backward() in the process that called attach()")

    def _need(self, failed: int) -> None:
        if failed:
            raise JobError(self._library.error(self._rank).decode())

    def _end_in_a_step(self) -> Tuple[str, int]:
        """(why, exit code) of a rank that was to leave while it computed, and whose siblings have left."""
        work = _library.Work()
        outcome = _library.STEP
        while outcome == _library.STEP:
            outcome = self._library.next(self._rank, ctypes.byref(work))
        if outcome == _library.LEFT:
            self._library.close(self._rank)
            return f"left at step {work.step}: {work.why.decode()}", 0
        why, code = self._why(outcome, work)
        return why.decode(), code

    def _why(self, outcome: int, work: _library.Work) -> Tuple[bytes, int]:
        if outcome == _library.FAILED:
            return self._library.error(self._rank), self._library.exit_code(self._rank)
        return work.why, _library.EXIT_EXPELLED if outcome == _library.EXPELLED else _library.EXIT_ORPHANED

    def _end(self, outcome: int, work: _library.Work) -> None:
        self._over = self._explained = outcome == _library.LEFT
        if outcome == _library.LEFT:
            self._library.log(0, f"left at step {work.step}: {work.why.decode()}".encode())
            return
        if self._raised is not None:
            raise self._raised
        why, code = self._why(outcome, work)
        self._library.log(1, why)
        self._explained = True
        raise SystemExit(code)
