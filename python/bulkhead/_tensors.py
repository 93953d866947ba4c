# SPDX-License-Identifier: Apache-2.0
"""Names, dtypes and shapes of what is in a state, for checkpoints that others read.

A table lies beside each shard of a checkpoint; docs/checkpoints.md describes it.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, Iterator, List, Tuple

import torch

_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
           "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16",
           "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}


def is_named(dtype: torch.dtype) -> bool:
    """A safetensors file can hold it."""
    return str(dtype).replace("torch.", "") in _DTYPES


def dtype_of(dtype: torch.dtype) -> str:
    """Its name in a safetensors file; torch's own for one that has none there."""
    name = str(dtype).replace("torch.", "")
    return _DTYPES.get(name, name)


def sharding() -> Any:
    """torch.distributed.tensor, which takes a second to import, once the program has done so; else None."""
    return sys.modules.get("torch.distributed.tensor")


def is_sharded(tensor: torch.Tensor) -> bool:
    """It is a part of a tensor that the ranks of a replica hold together."""
    return sharding() is not None and isinstance(tensor, sharding().DTensor)


def part_of(tensor: torch.Tensor) -> Dict[str, Any]:
    """The whole tensor's shape, and which part of it this rank has."""
    if not is_sharded(tensor):
        return {"shape": list(tensor.shape)}
    begin, extent = [0] * tensor.dim(), list(tensor.shape)
    known = True
    for axis, placement in enumerate(tensor.placements):
        if type(placement) is sharding().Shard:
            d = placement.dim % tensor.dim()
            chunk = -(-extent[d] // tensor.device_mesh.size(axis))
            first = min(chunk * tensor.device_mesh.get_coordinate()[axis], extent[d])
            begin[d] += first
            extent[d] = min(chunk, extent[d] - first)
        else:
            known = known and placement.is_replicate()
    local = list(tensor._local_tensor.shape)
    if not known or extent != local:
        return {"shape": local, "unknown_layout": str(tuple(tensor.placements))}
    return {"shape": list(tensor.shape), "begin": begin, "extent": extent}


def word_of(key: Any) -> Any:
    """A dictionary's key as a word of a path."""
    return key if isinstance(key, str) or (type(key) is int and key >= 0) else str(key)


def constants(path: List[Any], tree: Any) -> Iterator[Tuple[List[Any], Any]]:
    """(path, value) of the strings and the empty containers in nested ones: no number is there to tell
    them by."""
    if isinstance(tree, str):
        yield path, tree
    elif isinstance(tree, dict):
        if not tree:
            yield path, {}
        for key, value in tree.items():
            yield from constants([*path, word_of(key)], value)
    elif isinstance(tree, (list, tuple)):
        if not tree:
            yield path, []
        for at, value in enumerate(tree):
            yield from constants([*path, at], value)
