# SPDX-License-Identifier: Apache-2.0
"""python3 -m bulkhead safetensors FILE.pt NEW: a file of torch.save() as one that bulkheadctl imports."""

from __future__ import annotations

import ctypes
import json
import os
import struct
from typing import Any, Dict

import torch

from ._state import bytes_of
from ._tensors import dtype_of, is_named


def _tensors_of(saved: Any, path: str) -> Dict[str, torch.Tensor]:
    if isinstance(saved, dict) and isinstance(saved.get("model"), dict):
        saved = saved["model"]
    if not isinstance(saved, dict):
        raise ValueError(f"{path} holds a {type(saved).__name__}; expected what model.state_dict() returns, or a "
                         "dictionary with it as \"model\"")
    for name, value in saved.items():
        if not isinstance(value, torch.Tensor) or not is_named(value.dtype):
            kind = f"tensor of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise ValueError(f"{path}: {name} is a {kind}, which no safetensors file holds; save the model's "
                             "state_dict() alone")
    return saved


def to_safetensors(source: str, target: str) -> int:
    """Writes the model's tensors, and returns how many. ValueError or OSError says what is wrong."""
    tensors = _tensors_of(torch.load(source, map_location="cpu", weights_only=True), source)
    header: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    if "__metadata__" in tensors:
        raise ValueError(f"{source}: a tensor is called __metadata__, which safetensors keeps for itself; rename it")
    for name, value in tensors.items():
        end = begin + bytes_of(value)
        header[name] = {"dtype": dtype_of(value.dtype), "shape": list(value.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = f"{target}.{os.getpid()}.partial"
    try:
        with open(partial, "xb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for value in tensors.values():
                dense = value.detach().contiguous()
                file.write(ctypes.string_at(dense.data_ptr(), bytes_of(dense)))
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, target)  # refuses one that is there
    except FileExistsError as error:
        raise ValueError(f"{target} exists; choose another place") from error
    finally:
        if os.path.exists(partial):
            os.unlink(partial)
    return len(tensors)
