# SPDX-License-Identifier: Apache-2.0
"""Processes that load samples while the rank trains, and die with it."""

from __future__ import annotations

import hashlib
import random
import sys
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Callable, Deque, Iterable, Iterator, List, Tuple

import torch
import torch.multiprocessing

Batch = List[Tuple[int, int]]
"""(domain, index) of each sample."""

_loads: List[Callable[[Batch], Any]] = []  # of each Workers; its processes are forked from here


def seed_sample(seed: int, domain: int, index: int) -> None:
    """What is drawn while a sample is loaded is that sample's own, whichever process loads it."""
    words = hashlib.sha256(f"{seed} {domain} {index}".encode()).digest()
    number = int.from_bytes(words[:8], "little")
    torch.manual_seed(number)
    random.seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number % 2 ** 32)


def _load(which: int, batch: Batch) -> Any:
    return _loads[which](batch)


class Workers:
    """`count` processes, forked at once; `load` makes a batch of samples in them.

    What `load` raises there is raised here. One that is killed ends the rank by a RuntimeError:
    its samples may be in the middle of a step.
    """

    def __init__(self, count: int, load: Callable[[Batch], Any]) -> None:
        self._which, self._ahead = len(_loads), 2 * count
        _loads.append(load)
        # One thread in each, as in a DataLoader's: more of a fork's hang in OpenMP.
        self._pool = ProcessPoolExecutor(count, torch.multiprocessing.get_context("fork"),
                                         torch.set_num_threads, (1,))
        self._pool.submit(int).result()  # the first one starts all of them

    def loaded(self, batches: Iterable[Batch]) -> Iterator[Any]:
        """The batches, in order; a few are loaded ahead."""
        waiting: Deque[Any] = deque()
        try:
            for batch in batches:
                waiting.append(self._pool.submit(_load, self._which, batch))
                if len(waiting) > self._ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise RuntimeError("a process that loads samples was killed or ended itself; it may have needed more "
                               "memory than there was: use fewer workers, or none to see where it ends") from error

    def close(self) -> None:
        self._pool.shutdown(wait=False)
