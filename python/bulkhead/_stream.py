# SPDX-License-Identifier: Apache-2.0
"""Datasets that are read in order: sample n is the n-th that they yield."""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.utils.data

from ._local import Local
from ._state import JobError, bytes_of

_MARKS = 8
_TRIED = 16
_NOTHING: Tuple[int, Any] = (-1, None)


def is_stream(data: Any) -> bool:
    """It is iterated over, having no [index] that says which sample is which."""
    # A torch IterableDataset inherits a __getitem__ that only raises.
    return isinstance(data, torch.utils.data.IterableDataset) or \
        (hasattr(data, "__iter__") and not hasattr(data, "__getitem__"))


def digest(value: Any) -> str:
    """Equal for equal samples; of what is no tensor, number, string or container the type counts."""
    found = hashlib.sha256()
    _feed(found, value)
    return found.hexdigest()


def _feed(to: Any, value: Any) -> None:
    to.update(type(value).__name__.encode() + b"\0")
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type == "cpu":
        dense = value.detach().contiguous()
        to.update(f"{dense.dtype} {tuple(dense.shape)} ".encode())
        to.update(ctypes.string_at(dense.data_ptr(), bytes_of(dense)) if dense.numel() else b"")
    elif isinstance(value, dict):
        to.update(b"%d " % len(value))
        for key, of in value.items():
            _feed(to, key)
            _feed(to, of)
    elif isinstance(value, (list, tuple)):
        to.update(b"%d " % len(value))
        for of in value:
            _feed(to, of)
    elif isinstance(value, (bytes, bytearray)):
        to.update(b"%d " % len(value) + value)
    elif value is None or isinstance(value, (bool, int, float, str)):
        to.update(repr(value).encode() + b"\0")
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes") and not value.dtype.hasobject:
        to.update(f"{value.dtype} {value.shape} ".encode() + value.tobytes())


class Stream:
    """One domain's stream, read forward; what lies behind is reached by its state, or by reading it anew.

    It holds one sample and, of a stream with state_dict(), the state of the beginning and the newest
    eight of those that it took, one in `every` samples. These and the length of a pass are in
    state_dict(), for checkpoints, and in `file`, for a replica that is started on this node; they
    hold on all replicas. A state that does not lead to what came next is the last one that is used.

    `passed` is called for each sample that is read for others, `say` with a line for people.
    """

    def __init__(self, name: str, data: Any, every: int, file: str, passed: Callable[[], None],
                 say: Callable[[str], None]) -> None:
        self._name, self._data, self._every, self._file = name, data, every, file
        self._passed, self._say = passed, say
        self._stateful = all(callable(getattr(data, of, None)) for of in ("state_dict", "load_state_dict"))
        self._marks: Dict[int, Tuple[bytes, str]] = {}  # (state, digest of what comes next), the oldest first
        self._marking = self._stateful
        self._newest: Optional[bytes] = None  # a state behind which nothing was read
        self._expected = ""  # of the next sample, behind a mark
        self._length: Optional[int] = None  # of a pass, once one has ended
        self._held = _NOTHING  # (place, sample) of the newest that was read
        self._at = 0  # samples before the one that comes next
        self._opened = self._told = False
        self._start = self._state()
        self._try()

    @property
    def first(self) -> str:
        """Of the first sample: what streams of all replicas have alike."""
        return self._first

    def sample(self, index: int) -> Any:
        """The one of lease index `index`."""
        if not self._opened:
            self._opened = True
            self._open()
        while True:
            place = index if self._length is None else index % self._length
            if place == self._held[0]:
                return self._held[1]
            self._seek(place)
            begun = self._at
            while self._at <= place and self._read():
                if self._at <= place:
                    self._pass_over(begun, place)
            # When it ended before, the index is one of a later pass.

    def state_dict(self) -> Dict[str, Any]:
        return {"first": self._first, "length": self._length, "marks": dict(self._marks)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        if state["first"] != self._first:
            raise JobError(f"the stream of domain {self._name} begins with another sample than the one that "
                           "the checkpoint was written with; give it the same data")
        self._take_over(state)
        self._leave()  # for the others, who were given no such checkpoint

    def _take_over(self, state: Dict[str, Any]) -> None:
        self._length = state["length"]
        if self._marking:
            self._marks = dict(state["marks"])

    def _try(self) -> None:
        """JobError unless it begins anew and goes on as it must, as far as a few samples tell."""
        self._begin()
        if not self._take():
            raise JobError(f"the stream of domain {self._name} is empty")
        self._first = digest(self._held[1])
        if self._stateful:
            state = self._state()
            behind = self._few()
            self._go_to(state, 1)
            if self._few() != behind:
                raise JobError(self._other_next(1) + "set the state before the yield, or give an object with __iter__ "
                               "alone")
        self._begin()
        if not self._take() or digest(self._held[1]) != self._first:
            raise JobError(self._other_first())

    def _few(self) -> List[str]:
        """Digests of the next ones."""
        return [digest(self._held[1]) for _ in range(_TRIED) if self._take()]

    def _other_next(self, at: int) -> str:
        return (f"the stream of domain {self._name} does not go on where its state_dict() was taken, behind sample "
                f"{at - 1}: ")

    def _other_first(self) -> str:
        return (f"the stream of domain {self._name} begins with another sample than before; it must yield the same "
                "in every pass: give an object whose __iter__ begins anew (a generator is read once), shuffle from "
                "a seed of its own, and draw what is random in the loop")

    def _open(self) -> None:
        if self._marks or self._length is not None:
            return
        try:
            with open(self._file, "rb") as file:
                state = Local.read(file.read())
        except (OSError, EOFError, pickle.UnpicklingError):
            return  # nobody on this node has read so far
        if state["first"] == self._first:
            self._take_over(state)

    def _seek(self, place: int) -> None:
        """To where the fewest samples lie before `place`."""
        best = max((at for at in self._marks if at <= place), default=0)
        if place < self._at or self._at < best:
            if best > 0:
                state, self._expected = self._marks[best]
                self._go_to(state, best)
            else:
                self._begin()

    def _pass_over(self, begun: int, place: int) -> None:
        self._passed()
        if self._at - begun > _MARKS * self._every and not self._told:
            self._told = True
            why = "no state of it near that is known here" if self._marking else "it has no state_dict() that holds"
            self._say(f"reads the stream of domain {self._name} from sample {begun} on to find sample {place}: {why}")

    def _begin(self) -> None:
        self._expected = ""
        self._go_to(self._start, 0)

    def _go_to(self, state: bytes, at: int) -> None:
        # A generator that is given up may still write to the state, when it is closed.
        self._reader, self._held, self._newest = None, _NOTHING, None
        if self._stateful:
            self._data.load_state_dict(Local.read(state))
        self._reader, self._at = iter(self._data), at

    def _take(self) -> bool:
        try:
            self._held = self._at, next(self._reader)
        except StopIteration:
            return False
        self._at += 1
        return True

    def _read(self) -> bool:
        """One sample; False when there is none here: at the end of a pass, or behind a state that does
        not hold."""
        taken = self._take()
        if self._expected and (not taken or digest(self._held[1]) != self._expected):
            self._forget()
            return False
        if not taken:
            self._end()
            return False
        if self._at == 1 and digest(self._held[1]) != self._first:
            raise JobError(self._other_first())
        self._expected = ""
        if self._marking:
            self._mark()
        return True

    def _end(self) -> None:
        """A pass was read. JobError when it is not as long as the one before."""
        if self._at == 0:
            raise JobError(self._other_first())
        if self._length not in (None, self._at):
            raise JobError(f"the stream of domain {self._name} ended after {self._at} samples, and after "
                           f"{self._length} in a pass before; it must yield the same in every pass")
        if self._length is None:
            self._length = self._at
            self._leave()

    def _forget(self) -> None:
        """A state did not hold: the others may not either."""
        self._say(self._other_next(max(at for at in self._marks if at <= self._at)) +
                  "no state of it is used any more; a shuffle buffer must be part of it")
        self._marking = False
        self._marks.clear()
        self._leave()
        self._begin()

    def _mark(self) -> None:
        if self._newest is not None:
            self._marks[self._at - 1] = self._newest, digest(self._held[1])
            self._newest = None
            if len(self._marks) > _MARKS:
                del self._marks[next(iter(self._marks))]
            self._leave()
        if self._at - max((at for at in self._marks if at <= self._at), default=0) >= self._every:
            self._newest = self._state()

    def _leave(self) -> None:
        beside = f"{self._file}-{os.getpid()}"
        try:
            with open(beside, "wb") as file:
                file.write(Local.written(self.state_dict()))
            os.replace(beside, self._file)
        except OSError:
            pass  # whoever is started here reads from the beginning

    def _state(self) -> bytes:
        """Of the stream, as it is now; b"" of one that has none."""
        if not self._stateful:
            return b""
        try:
            state = Local.written(self._data.state_dict())
            Local.read(state)
        except Exception as error:  # of pickle, torch or the stream's own
            raise JobError(f"the stream of domain {self._name}: its state_dict() cannot be kept: {error}; expected "
                           "tensors, numbers, strings, and lists, tuples and dictionaries of them, or no "
                           "state_dict()") from error
        return state
