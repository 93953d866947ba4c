# SPDX-License-Identifier: Apache-2.0
"""What a replica keeps for itself: no part of the state that all replicas share."""

from __future__ import annotations

import copy
import ctypes
import io
import pickle
import random
import sys
from collections import OrderedDict
from typing import Any, Dict, Optional, Tuple

import torch

from ._state import JobError, bytes_of


class Rng:
    """The random generators of this process: torch's, those of its CUDA devices once they are used,
    Python's, and numpy's once it is imported. Register it as local state."""

    def state_dict(self) -> Dict[str, Any]:
        state: Dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
        if torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            name, keys, *rest = numpy.random.get_state()
            state["numpy"] = (name, [int(key) for key in keys], *rest)
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        torch.set_rng_state(state["torch"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda"])
        random.setstate(state["python"])
        numpy = sys.modules.get("numpy")
        if numpy is not None and "numpy" in state:
            numpy.random.set_state(state["numpy"])


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        if value.layout != torch.strided or value.device.type != "cpu":
            raise pickle.PicklingError(f"a tensor of layout {value.layout} on {value.device}")
        dense = value.detach().contiguous()
        return str(dense.dtype), tuple(dense.shape), ctypes.string_at(dense.data_ptr(), bytes_of(dense))


class _Unpickler(pickle.Unpickler):
    """Makes values, and calls nothing: a checkpoint from elsewhere runs no code."""

    def persistent_load(self, given: Any) -> torch.Tensor:
        name, shape, content = given
        dtype = getattr(torch, name.replace("torch.", ""))
        return torch.frombuffer(bytearray(content), dtype=dtype).view(shape) if content else \
            torch.empty(shape, dtype=dtype)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"{module}.{name} is in it")


class Local:
    """Named objects with state_dict() and load_state_dict(), as bytes."""

    def __init__(self) -> None:
        self._kept: Dict[str, Any] = {}
        self._begun: Optional[Tuple[int, Dict[str, Any]]] = None  # (step, as it was before it)

    def add(self, name: str, kept: Any) -> None:
        """JobError when it is no Stateful, or its state cannot come back."""
        if name in self._kept:
            raise JobError(f"register_local({name}=...): registered before")
        if not callable(getattr(kept, "state_dict", None)) or \
                not callable(getattr(kept, "load_state_dict", None)):
            raise JobError(f"register_local({name}=...): a {type(kept).__name__} has no state_dict() and "
                           "load_state_dict()")
        try:
            self.read(self.written({name: kept.state_dict()}))
        except Exception as error:  # of pickle, torch or the object's own
            raise JobError(f"register_local({name}=...): its state_dict() cannot be kept: {error}; expected "
                           "tensors, numbers, strings, and lists, tuples and dictionaries of them") from error
        self._kept[name] = kept

    def begins(self, step: int) -> None:
        """The body of `step` is about to run. What is computed anew began where it first did."""
        if self._kept and (self._begun is None or self._begun[0] != step):
            self._begun = step, copy.deepcopy(self._now())

    def bytes(self, step: int) -> bytes:
        """As it was when `step` had been applied and nothing of the next one was computed."""
        if not self._kept:
            return b""
        begun = self._begun is not None and self._begun[0] == step + 1
        return self.written(self._begun[1] if begun else self._now())

    def load(self, given: bytes) -> bool:
        """Takes over what bytes() made, by name. True when random generators are in it."""
        states = self.read(given)
        for name, kept in self._kept.items():
            if name in states:
                kept.load_state_dict(states[name])
        return any(isinstance(kept, Rng) and name in states for name, kept in self._kept.items())

    def _now(self) -> Dict[str, Any]:
        return {name: kept.state_dict() for name, kept in self._kept.items()}

    @staticmethod
    def written(states: Dict[str, Any]) -> bytes:
        file = io.BytesIO()
        _Pickler(file, 4).dump(states)
        return file.getvalue()

    @staticmethod
    def read(given: bytes) -> Dict[str, Any]:
        return _Unpickler(io.BytesIO(given)).load()
