# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU that the job's library exchanges where it is, as torch sees it."""

from __future__ import annotations

import ctypes as c
from typing import Any, Dict, Optional, Sequence, Tuple

import torch

from ._tensors import is_sharded


class _Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32), ("ndim", c.c_int32),
                ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16),
                ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]


class _Managed(c.Structure):
    """DLManagedTensor of dlpack.h, the form that every torch reads; nobody is told when it ends."""
    _fields_ = [("tensor", _Tensor), ("context", c.c_void_p), ("deleter", c.c_void_p)]


_views: Dict[Tuple[int, int], Tuple[Any, ...]] = {}  # by address and floats, with what torch reads at their end
_CAPSULE = b"dltensor"
_FLOAT = 2


class Gpu:
    """The one that this process sees. Its work is what torch's current stream has been given."""

    _TYPE = 2  # kDLCUDA

    def view(self, address: int, floats: int) -> torch.Tensor:
        """`floats` float32, one at least, at `address`: memory that nobody frees, of which there are few."""
        if (address, floats) in _views:
            return _views[address, floats][0]
        shape = (c.c_int64 * 1)(floats)
        managed = _Managed(_Tensor(address, self._TYPE, 0, 1, _FLOAT, 32, 1, shape, None, 0), None, None)
        make = c.pythonapi.PyCapsule_New
        make.restype, make.argtypes = c.py_object, [c.c_void_p, c.c_char_p, c.c_void_p]
        made = torch.utils.dlpack.from_dlpack(make(c.byref(managed), _CAPSULE, None))
        _views[address, floats] = made, managed, shape
        return made

    def mark(self) -> Any:
        """An event: query() says whether all work so far is done, synchronize() waits for it."""
        event = torch.cuda.Event()
        event.record()
        return event

    def wait(self) -> None:
        """Returns when all work so far is done."""
        torch.cuda.current_stream().synchronize()


def gpu_of(parameters: Sequence[torch.Tensor]) -> Optional[Gpu]:
    """Where all of them are, if that is the GPU that the library can exchange on."""
    here = all(p.is_cuda and p.device.index == 0 and not is_sharded(p) for p in parameters)
    return Gpu() if here else None
