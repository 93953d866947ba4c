# SPDX-License-Identifier: Apache-2.0
"""The state of a program as flat bytes, and its gradient as flat floats.

Tensors are made views of the flat memory, so that they need no copying. Those on a GPU, parameters of
fully_shard() and numbers (a learning rate, a scheduler's count) are copied by gather() and scatter().
"""

from __future__ import annotations

import copy
import ctypes
import inspect
import struct
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from ._tensors import constants, dtype_of, is_sharded, part_of, sharding, word_of

_ALIGN = 64
_DEVICES = "cpu", "cuda"


class JobError(RuntimeError):
    """No restart can help: the program and its job do not go together.

    The process ends with code 5, and the job gives its replica up and names the reason.
    """


def is_apart(tensor: torch.Tensor) -> bool:
    """Flat memory cannot be its memory: it is copied from and to there."""
    return is_sharded(tensor) or tensor.device.type != "cpu"


def beside(flat: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """`flat`, or a copy of it on the device of `tensor`, as this rank's part of a tensor that lies as
    `tensor` does."""
    return alike(flat.to(local_of(tensor).device), tensor)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of it."""
    return tensor._local_tensor if is_sharded(tensor) else tensor


def alike(local: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """`local` as this rank's part of a tensor that lies as `tensor` does."""
    if not is_sharded(tensor):
        return local
    return sharding().DTensor.from_local(local, tensor.device_mesh, tensor.placements, run_check=False,
                                         shape=tensor.shape, stride=tensor.stride())


class Marks:
    """Tells whether tensors changed: by sums of their bits, which see what torch's own count of changes does
    not (p.data, NumPy, a pointer), however a tensor lies in memory, but not values that swap places. All of
    them in a process's first steps, which is when most loops show what they do, then a sixteenth in turn,
    since they read all memory twice."""

    _WHOLE_STEPS = 2
    _TURNS = 16

    def __init__(self) -> None:
        self._marks: Dict[int, torch.Tensor] = {}
        self._steps = 0

    def begin(self) -> None:
        self._marks.clear()
        self._steps += 1

    def keep(self, at: int, tensor: Optional[torch.Tensor]) -> None:
        """Tensor number `at` as it is, when this step watches it."""
        watched = self._steps <= self._WHOLE_STEPS or at % self._TURNS == self._steps % self._TURNS
        if tensor is not None and watched:
            self._marks[at] = self._mark(tensor)

    def changed(self, tensors: Sequence[Optional[torch.Tensor]]) -> Optional[int]:
        """The number of the first that is not as it was kept."""
        for at, mark in self._marks.items():
            tensor = tensors[at]
            if tensor is None or not torch.equal(self._mark(tensor), mark):
                return at
        return None

    @staticmethod
    def _mark(tensor: torch.Tensor) -> torch.Tensor:
        bits = local_of(tensor).detach()
        if bits.is_contiguous():
            bits = bits.view(-1)
        try:
            bits = bits.view(torch.int64)  # by two: a sum of 32 bits does not see an even number of signs that turn
        except RuntimeError:  # it does not lie in memory by two
            bits = bits.view(torch.int32)
        return bits.sum(dtype=bits.dtype)  # in its own type 16 times as fast as in another


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal, a NaN to itself too."""
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def view_of(address: int, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """A tensor of `shape` over memory at `address`, which it does not own."""
    count = shape.numel()
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    size = count * torch.empty((), dtype=dtype).element_size()
    memory = (ctypes.c_char * size).from_address(address)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)


class _Tensor:
    """A tensor of the state. `get` returns it as it stands, or None while there is none; `put` sets
    one where there is none."""

    def __init__(self, name: str, get: Callable[[], Any], put: Callable[[Any], None],
                 tensor: torch.Tensor) -> None:
        like = local_of(tensor)
        if like.is_complex() or like.layout != torch.strided or like.device.type not in _DEVICES:
            raise JobError(f"{name} is a {like.dtype} tensor of layout {like.layout} on {like.device};"
                           " expected a dense real one on the CPU or a CUDA device")
        self.name, self._get, self._put = name, get, put
        self._dtype, self._shape, self._device = like.dtype, like.shape, like.device
        # Not the tensor itself, which would stay in memory beside the state's.
        self._like = tensor if is_sharded(tensor) else torch.empty(like.shape, dtype=like.dtype, device="meta")
        self.bytes = bytes_of(like)

    def entry(self) -> Dict[str, Any]:
        """What the tensor table says of it."""
        return {"dtype": dtype_of(self._dtype), **part_of(self._like)}

    def bind(self, address: int) -> None:
        self._address = address
        self._memory = view_of(address, self._dtype, self._shape)
        self.gather()

    @property
    def _view(self) -> torch.Tensor:
        """The memory at the address: share_memory() and what sends tensors to other processes move a
        storage, under all that view it."""
        if self._memory.data_ptr() != self._address:
            self._memory = view_of(self._address, self._dtype, self._shape)
        return self._memory

    def gather(self) -> None:
        held = self._get()
        if held is None:
            self._view.zero_()
            return
        tensor = local_of(held)
        if tensor.data_ptr() == self._address:
            return
        if tensor.dtype != self._dtype or tensor.shape != self._shape:
            raise JobError(f"{self.name} was {self._dtype} of shape {tuple(self._shape)} and has become "
                           f"{tensor.dtype} of shape {tuple(tensor.shape)}; a state keeps its layout")
        self._view.copy_(tensor.detach())
        self._move(tensor)

    def scatter(self) -> None:
        held = self._get()
        if held is None:
            self._put(self._lent())
        elif local_of(held).data_ptr() != self._address:
            self._take(local_of(held))

    def _lent(self) -> torch.Tensor:
        return alike(self._view, self._like)

    def _move(self, tensor: torch.Tensor) -> None:
        tensor.data = self._view

    def _take(self, tensor: torch.Tensor) -> None:
        tensor.data = self._view


class _Copied(_Tensor):
    """One that stays where it is: on a GPU, or because fully_shard() gathers parameters from memory of
    its own."""

    def _lent(self) -> torch.Tensor:
        return alike(self._view.to(self._device, copy=True), self._like)

    def _move(self, tensor: torch.Tensor) -> None:
        pass

    def _take(self, tensor: torch.Tensor) -> None:
        tensor.detach().copy_(self._view)


class _Number:
    """A number, a truth value or None; any of them may take the place of another."""

    _KINDS: Tuple[type, ...] = (type(None), bool, int, float)
    bytes = 16

    def __init__(self, name: str, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self.name, self._get, self._put = name, get, put

    def entry(self) -> Dict[str, Any]:
        return {"dtype": "NUMBER", "shape": []}

    def bind(self, address: int) -> None:
        self._memory = (ctypes.c_char * self.bytes).from_address(address)
        self.gather()

    def gather(self) -> None:
        value = self._get()
        if type(value) not in self._KINDS:
            raise JobError(f"{self.name} has become {value!r}; expected a number")
        form = "<qd" if isinstance(value, float) else "<qq"
        struct.pack_into(form, self._memory, 0, self._KINDS.index(type(value)), value or 0)

    def scatter(self) -> None:
        self._put(self.held())

    def held(self) -> Any:
        """The value in the memory."""
        kind = self._KINDS[struct.unpack_from("<q", self._memory)[0]]
        value = struct.unpack_from("<d" if kind is float else "<q", self._memory, 8)[0]
        return None if kind is type(None) else kind(value)


def _slot(name: str, get: Callable[[], Any], put: Callable[[Any], None], value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return _Number(name, get, put)
    return (_Tensor if local_of(value).device.type == "cpu" else _Copied)(name, get, put, value)


def _leaves(name: str, tree: Any, path: Tuple[Any, ...] = ()) -> Iterator[Tuple[str, Tuple[Any, ...], Any]]:
    """(name, path, value) of the tensors and numbers in nested dictionaries, lists and tuples."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(f"{name}.{key}", value, (*path, key))
    elif isinstance(tree, (list, tuple)):
        for at, value in enumerate(tree):
            yield from _leaves(f"{name}[{at}]", value, (*path, at))
    elif tree is None or isinstance(tree, (bool, int, float, torch.Tensor)):
        yield name, path, tree


def _at(tree: Any, path: Tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _put(tree: Any, path: Tuple[Any, ...], value: Any) -> Any:
    """`tree` with the leaf at `path` replaced; tuples are made anew."""
    if not path:
        return value
    changed = _put(tree[path[0]], path[1:], value)
    if isinstance(tree, tuple):
        return tree[:path[0]] + (changed,) + tree[path[0] + 1:]
    tree[path[0]] = changed
    return tree


def _is_data(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_data, value.values()))
    if isinstance(value, (list, tuple, set)):
        return all(map(_is_data, value))
    return value is None or isinstance(value, (bool, int, float, str, torch.Tensor))


_OF_THE_STATE = {"state", "param_groups", "params"}


def _copies(holder: Dict[str, Any], itself: Dict[int, Any]) -> Dict[str, Tuple[Any, Any]]:
    """(value, copy) by key, of what is no part of the state; what is no data is its own copy, as are the
    objects in `itself`, by their id."""
    return {key: (value, copy.deepcopy(value, dict(itself)) if _is_data(value) else value)
            for key, value in holder.items() if key not in _OF_THE_STATE}


def _put_back(holder: Dict[str, Any], before: Dict[str, Tuple[Any, Any]]) -> None:
    """Objects keep their identity: others may hold them."""
    for key in set(holder) - set(before) - _OF_THE_STATE:
        del holder[key]
    for key, (value, copied) in before.items():
        holder[key] = value
        if copied is value:
            continue
        if isinstance(value, torch.Tensor):
            value.data.copy_(copied)
        elif isinstance(value, (dict, set)):
            value.clear()
            value.update(copied)
        elif isinstance(value, list):
            value[:] = copied


class State:
    """Parameters, persistent buffers, the optimizer's and the scheduler's state, in that order.

    JobError, naming the module or parameter, when something cannot be part of it.
    """

    _REPLACED = {
        "DistributedDataParallel": "averages gradients itself; register the module in it",
        "FullyShardedDataParallel": "keeps parameters in flat ones that come and go; use fully_shard() of "
                                    "torch.distributed.fsdp",
    }

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any,
                 buffers_reduced: bool = False) -> None:
        self._model, self._optimizer, self._scheduler = model, optimizer, scheduler
        self._buffers_reduced = buffers_reduced
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._check()
        self._aliases: List[Tuple[str, str]] = []
        self._saved_names: Dict[int, str] = {}  # in the model's state_dict()
        for name, value in model.state_dict(keep_vars=True).items():
            first = self._saved_names.setdefault(id(value), name)
            if first != name:
                self._aliases.append((name, first))
        self.trained: List[torch.nn.Parameter] = [
            p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if not self.trained:
            raise JobError("the optimizer has no parameter that requires a gradient")
        self.parameters = parameters = list(model.parameters())
        self._are_sharded = any(is_sharded(p) for p in parameters)
        self._slots: List[Any] = []
        for p in parameters:
            slot = (_Copied if is_apart(p) else _Tensor)(self.name_of(p), lambda p=p: p, lambda _: None, p)
            self._add(slot, "parameter", [self._saved_name(p)])
        self._lay_out_buffers(parameters)
        first = len(self._slots)
        self._lay_out_optimizer()
        self._optimizers_own = self._slots[first:]
        if scheduler is not None:
            self._lay_out_scheduler()
        self.bytes = 0
        self.parameter_bytes = 0
        for at, slot in enumerate(self._slots):
            slot.offset = self.bytes
            self.bytes += -(-slot.bytes // _ALIGN) * _ALIGN
            if at < len(parameters):
                self.parameter_bytes = self.bytes
        self._kept_buffers = {key for name, value in self._persistent_buffers() for key in (name, id(value))}

    def _add(self, slot: Any, kind: str, path: List[Any]) -> None:
        slot.kind, slot.path = kind, path
        self._slots.append(slot)

    def _saved_name(self, parameter: torch.nn.Parameter) -> str:
        return self._saved_names.get(id(parameter), self._names[id(parameter)])

    def table(self, model: str) -> Dict[str, Any]:
        """Which tensors the state's bytes are, by the names of state_dict(). `model`: its name."""
        tensors = []
        for slot in self._slots:
            entry = {"name": ".".join(map(str, slot.path)), "kind": slot.kind, "offset": slot.offset,
                     **slot.entry()}
            if slot.kind not in ("parameter", "buffer"):
                entry["path"] = slot.path
                if slot.kind == "optimizer" and entry["dtype"] == "NUMBER":
                    entry["kind"] = "number"
            tensors.append(entry)
        fixed: List[Tuple[List[Any], Any]] = [(["optimizer", "state"], {})]
        for at, group in enumerate(self._optimizer.param_groups):
            path = ["optimizer", "param_groups", at]
            fixed.append(([*path, "params"], [self._saved_name(p) for p in group["params"]]))
            options = {key: value for key, value in group.items() if key != "params"}
            fixed.extend(constants(path, options) if options else [])
        if self._scheduler is not None:
            fixed.extend(constants(["scheduler"], self._scheduler_state))
        return {"version": 1, "model": model, "state_bytes": self.bytes, "tensors": tensors,
                "aliases": [{"name": name, "of": of} for name, of in self._aliases],
                "constants": [{"path": path, "value": value} for path, value in fixed]}

    def name_of(self, parameter: torch.nn.Parameter) -> str:
        return "parameter " + self._names[id(parameter)]

    def bind(self, address: int) -> None:
        """Moves the state into `bytes` zeroed bytes at `address`, where it stays."""
        for slot in self._slots:
            slot.bind(address + slot.offset)

    def gather(self) -> None:
        """The memory becomes what the state is."""
        if self._scheduler is not None:
            self._scheduler_state = self._scheduler.state_dict()
        self._check_optimizer()
        for slot in self._slots:
            slot.gather()

    def _check_optimizer(self) -> None:
        """JobError when the optimizer keeps what its first step did not make: it has no place."""
        name = type(self._optimizer).__name__
        for p in self.trained:
            more = set(self._optimizer.state.get(p, ())) - self._kept.get(p, set())
            if more:
                raise JobError(f"the optimizer {name} keeps {', '.join(sorted(map(str, more)))} of {self.name_of(p)}, "
                               "which its first step did not make; a state keeps its layout: let it make all that it "
                               "keeps in its first step")
        for at, (group, keys) in enumerate(zip(self._optimizer.param_groups, self._group_keys)):
            if set(group) - keys:
                raise JobError(f"the optimizer {name} has {', '.join(sorted(set(group) - keys))} in its group {at}, "
                               "which was not there with register(); give it a value before")

    def scatter(self) -> None:
        """The state becomes what the memory is."""
        for slot in self._slots:
            slot.scatter()
        if self._scheduler is not None:
            self._scheduler.load_state_dict(self._scheduler_state)

    def buffers(self) -> List[Tuple[str, torch.Tensor]]:
        """The persistent buffers and their names."""
        return self._buffers

    def check_parameters(self) -> None:
        """JobError when optimizer or model has other parameters, or the optimizer another state, than it had."""
        now = [p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad]
        if len(now) != len(self.trained) or any(p is not q for p, q in zip(now, self.trained)):
            raise JobError(f"the optimizer {type(self._optimizer).__name__} trains {len(now)} parameters, with "
                           f"register() it had {len(self.trained)}, or others; add groups and freeze parameters "
                           "before register()")
        if self._optimizer.state is not self._optimizer_state:
            raise JobError(f"{type(self._optimizer).__name__}.load_state_dict() after register() put another state in "
                           "place of the job's; load it before register()")
        for name, value in self._persistent_buffers():
            if name not in self._kept_buffers and id(value) not in self._kept_buffers:
                raise JobError(f"buffer {name} was added after register(), where no checkpoint and no joiner has it; "
                               "add it (prune, say) before register(), or with persistent=False")
        if self._are_sharded:  # fully_shard() puts whole ones in their place while it computes
            return
        for name, p in self._model.named_parameters():
            if id(p) not in self._names:
                raise JobError(f"parameter {name} is another tensor than register() was given, which nothing "
                               "trains; write into it (with torch.no_grad(): p.copy_(...)), or replace it before "
                               "register()")

    def _persistent_buffers(self) -> List[Tuple[str, torch.Tensor]]:
        return [(f"{module}.{name}" if module else name, value) for module, of in self._model.named_modules()
                for name, value in of._buffers.items()
                if value is not None and name not in of._non_persistent_buffers_set]

    def optimizer_marks(self) -> List[Any]:
        """They differ when the optimizer's options or its state were changed."""
        values = (slot._get() for slot in self._optimizers_own)
        return [(id(value), local_of(value)._version) if isinstance(value, torch.Tensor) else value
                for value in values]

    def optimizer_change(self, before: List[Any]) -> str:
        """The name of the first that differs from optimizer_marks() as it was."""
        now = self.optimizer_marks()
        return next((slot.name for slot, a, b in zip(self._optimizers_own, before, now) if a != b), "the optimizer")

    def _check(self) -> None:
        for name, module in self._model.named_modules():
            where = f"module {name or 'model'} ({type(module).__name__})"
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.track_running_stats \
                    and not self._buffers_reduced:
                raise JobError(f"{where} keeps running statistics, which differ between replicas; "
                               "register(buffers=\"reduced\") makes them the mean over all replicas, or use "
                               "LayerNorm, GroupNorm or track_running_stats=False")
            if getattr(module, "sparse", False) is True:
                raise JobError(f"{where} has sparse gradients; set sparse=False")
            if type(module).__name__ in self._REPLACED:
                raise JobError(f"{where} {self._REPLACED[type(module).__name__]}")
            if hasattr(module, "set_gradient_divide_factor"):  # of fully_shard(): sums, not means
                module.set_force_sum_reduction_for_comms(True)
                module.set_gradient_divide_factor(1.0)
        for name, whole in self._model.named_parameters():
            p = local_of(whole)
            if p.dtype != torch.float32 or p.device.type not in _DEVICES or not p.is_contiguous():
                raise JobError(f"parameter {name} is {p.dtype} on {p.device}"
                               f"{'' if p.is_contiguous() else ', not contiguous'}; expected contiguous "
                               "torch.float32 on cpu or cuda" +
                               ("; train torch.view_as_real() of it" if p.is_complex() else ""))
        if isinstance(self._optimizer, torch.optim.LBFGS):
            raise JobError("the optimizer LBFGS evaluates its loss again and again; use one whose step() "
                           "needs no closure")
        for at, group in enumerate(self._optimizer.param_groups):
            for place, p in enumerate(group["params"]):
                if id(p) not in self._names:
                    raise JobError(f"parameter {place} of the optimizer's group {at} is not the model's; "
                                   "register a model that holds all parameters")

    def _lay_out_buffers(self, parameters: List[torch.nn.Parameter]) -> None:
        known = {id(p) for p in parameters}
        self._buffers = []
        for name, value in self._model.state_dict(keep_vars=True).items():
            if id(value) in known:
                continue
            if not isinstance(value, torch.Tensor):
                raise JobError(f"{name} in the model's state_dict() is a {type(value).__name__}; expected "
                               "tensors only")
            known.add(id(value))
            self._buffers.append((name, value))
            self._add(_slot("buffer " + name, lambda v=value: v, lambda _: None, value), "buffer", [name])

    def _lay_out_optimizer(self) -> None:
        created = self._created()
        state = self._optimizer_state = self._optimizer.state
        self._kept: Dict[Any, set] = {p: set(example) for p, example in created}
        self._group_keys = [set(group) for group in self._optimizer.param_groups]
        for p, example in created:
            def alive(p: Any = p) -> bool:
                return p in state and len(state[p]) > 0

            def revive(present: Any, p: Any = p) -> None:
                if not present:
                    state.pop(p, None)

            name = f"optimizer state of {self.name_of(p)}"
            there = _Number(name, alive, revive)
            path = ["optimizer", "state", self._saved_name(p)]
            self._add(there, "presence", path)
            for key, value in example.items():
                def get(p: Any = p, key: str = key) -> Any:
                    return state[p].get(key) if p in state else None

                def put(new: Any, p: Any = p, key: str = key, there: _Number = there) -> None:
                    if there.held():
                        state[p][key] = new

                self._add(_slot(f"{name}: {key}", get, put, value), "optimizer", [*path, word_of(key)])
        for at, group in enumerate(self._optimizer.param_groups):
            options = {key: value for key, value in group.items() if key != "params"}
            for name, path, value in _leaves(f"optimizer group {at}", options):
                def get_option(group: Any = group, path: Any = path) -> Any:
                    return _at(group, path)

                def put_option(new: Any, group: Any = group, path: Any = path) -> None:
                    _put(group, path, new)

                self._add(_slot(name, get_option, put_option, value), "optimizer",
                          ["optimizer", "param_groups", at, *map(word_of, path)])

    def _created(self) -> List[Tuple[torch.nn.Parameter, Any]]:
        """What the optimizer keeps of each parameter once it has taken a step. It takes one on
        gradients of ones, because some keep nothing of zeros, and is put back."""
        optimizer = self._optimizer
        itself = {id(p): p for group in optimizer.param_groups for p in group["params"]}
        held = [(holder, _copies(holder, itself)) for holder in (vars(optimizer), *optimizer.param_groups)]
        before = {p: {key: value.clone() if isinstance(value, torch.Tensor) else value
                      for key, value in kept.items()} for p, kept in optimizer.state.items()}
        values = [local_of(p).detach().clone() for p in self.trained]
        grads = [p.grad for p in self.trained]
        for p in self.trained:
            p.grad = torch.ones_like(p)
        try:
            optimizer.step()
        except (TypeError, RuntimeError) as error:
            raise JobError(f"the optimizer {type(optimizer).__name__} cannot take a step: {error}") from error
        created = [(p, dict(optimizer.state[p])) for p in self.trained if optimizer.state.get(p)]
        for p, value, grad in zip(self.trained, values, grads):
            local_of(p).data.copy_(value)
            p.grad = grad
        for holder, of_it in held:
            _put_back(holder, of_it)
        optimizer.state.clear()
        optimizer.state.update(before)
        for p, kept in created:
            for key, value in kept.items():
                if not isinstance(value, (torch.Tensor, bool, int, float, type(None))):
                    raise JobError(f"the optimizer keeps {key} of {self.name_of(p)}, a {type(value).__name__}; "
                                   "expected tensors and numbers only")
        return created

    def _lay_out_scheduler(self) -> None:
        try:
            inspect.signature(self._scheduler.step).bind()
        except ValueError:  # it has none that can be read
            pass
        except TypeError:
            raise JobError(f"{type(self._scheduler).__name__}.step() needs an argument, which a replica that catches "
                           "up does not have; use a scheduler whose step() takes none") from None
        self._scheduler_state = self._scheduler.state_dict()
        for name, path, value in _leaves("scheduler", self._scheduler_state):
            if isinstance(value, torch.Tensor):
                raise JobError(f"{name} is a tensor; expected numbers only in a scheduler's state")

            def get(path: Any = path) -> Any:
                return _at(self._scheduler_state, path)

            def put(new: Any, path: Any = path) -> None:
                self._scheduler_state = _put(self._scheduler_state, path, new)

            self._add(_Number(name, get, put), "optimizer", ["scheduler", *map(word_of, path)])
