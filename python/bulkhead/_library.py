# SPDX-License-Identifier: Apache-2.0
"""libbulkhead_rank.so by ctypes: a mirror of backend/runtime/replica/embed/rank.h.

ctypes gives up the interpreter's lock around every call, and takes it for every callback.
"""

from __future__ import annotations

import ctypes as c
import os

STEP, LEFT, EXPELLED, ORPHANED, FAILED = 0, 1, 2, 3, -1
EXIT_EXPELLED, EXIT_ORPHANED, EXIT_HOPELESS, EXIT_SIBLING_LOST = 3, 4, 5, 6


class JobSays(c.Structure):
    _fields_ = [("job", c.c_char_p), ("device", c.c_char_p),
                ("replica", c.c_int32), ("shard", c.c_int32),
                ("address", c.c_char_p), ("run_dir", c.c_char_p),
                ("replicas", c.c_uint32), ("shards", c.c_uint32), ("incarnation", c.c_uint32),
                ("sequence_length", c.c_uint32), ("samples_per_replica", c.c_uint32),
                ("progress_floor_ms", c.c_uint32), ("progress_multiple", c.c_uint32),
                ("seed", c.c_uint64),
                ("domains", c.c_uint32), ("domain_names", c.POINTER(c.c_char_p))]


class Sizes(c.Structure):
    _fields_ = [("state_bytes", c.c_uint64), ("parameter_bytes", c.c_uint64),
                ("gradient_floats", c.c_uint64), ("other_floats", c.c_uint64), ("on_device", c.c_uint32)]


class Blocks(c.Structure):
    _fields_ = [("state", c.c_void_p), ("gradient", c.c_void_p), ("on_device", c.c_uint32)]


class Update(c.Structure):
    _fields_ = [("step", c.c_uint64), ("updates", c.c_uint64), ("samples", c.c_uint64),
                ("gradient_scale", c.c_float), ("lr_factor", c.c_float)]


MOVE = c.CFUNCTYPE(c.c_int, c.c_void_p)
UPDATE = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.POINTER(Update))
SAVE_LOCAL = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_uint64, c.POINTER(c.c_void_p), c.POINTER(c.c_uint64))
LOAD_LOCAL = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_uint64)
SUM_OF_SQUARES = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_uint64, c.POINTER(c.c_double))


class Program(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("context", c.c_void_p),
                ("gather", MOVE), ("scatter", MOVE), ("update", UPDATE),
                ("save_local", SAVE_LOCAL), ("load_local", LOAD_LOCAL), ("sum_of_squares", SUM_OF_SQUARES),
                ("model", c.c_char_p), ("parameters", c.c_uint64),
                ("data_hash", c.c_uint64), ("data", c.c_char_p), ("tensors", c.c_char_p),
                ("moe_layers", c.c_uint32), ("experts", c.c_uint32), ("top_k", c.c_uint32),
                ("expert_shard", c.POINTER(c.c_int32))]


class Range(c.Structure):
    _fields_ = [("domain", c.c_uint32), ("begin", c.c_uint64), ("end", c.c_uint64)]


class Sample(c.Structure):
    _fields_ = [("domain", c.c_uint32), ("index", c.c_uint64)]


class Work(c.Structure):
    _fields_ = [("step", c.c_uint64), ("range_count", c.c_uint32), ("ranges", c.POINTER(Range)),
                ("sample_count", c.c_uint64), ("samples", c.POINTER(Sample)), ("why", c.c_char_p)]


class Figures(c.Structure):
    _fields_ = [("loss", c.c_double), ("tokens", c.c_uint64),
                ("domain_loss", c.POINTER(c.c_double)), ("domain_tokens", c.POINTER(c.c_uint64)),
                ("scalars", c.c_uint32), ("scalar_names", c.POINTER(c.c_char_p)),
                ("scalar_values", c.POINTER(c.c_double)), ("expert_counts", c.POINTER(c.c_uint64))]


_SIGNATURES = {
    "version": (c.c_char_p, []),
    "attach": (c.c_void_p, [c.c_char_p, c.c_size_t]),
    "describe": (None, [c.c_void_p, c.POINTER(JobSays)]),
    "memory": (c.c_int, [c.c_void_p, c.POINTER(Sizes), c.POINTER(Blocks)]),
    "start": (c.c_int, [c.c_void_p, c.POINTER(Program)]),
    "next": (c.c_int, [c.c_void_p, c.POINTER(Work)]),
    "gradient_ready": (None, [c.c_void_p, c.c_uint64, c.c_uint64]),
    "progress": (None, [c.c_void_p, c.c_uint64]),
    "computed": (None, [c.c_void_p, c.POINTER(Figures)]),
    "leaving": (c.c_int, [c.c_void_p]),
    "error": (c.c_char_p, [c.c_void_p]),
    "exit_code": (c.c_int, [c.c_void_p]),
    "hopeless": (None, [c.c_void_p, c.c_char_p]),
    "close": (None, [c.c_void_p]),
    "place": (c.c_uint64, [c.c_void_p, c.c_uint32, c.c_uint64, c.c_uint64]),
    "log": (None, [c.c_int, c.c_char_p]),
}

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libbulkhead_rank.so")


class Library:
    """The functions of rank.h without their prefix. OSError when the library cannot be loaded."""

    def __init__(self) -> None:
        loaded = c.CDLL(PATH)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, "bulkhead_rank_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
