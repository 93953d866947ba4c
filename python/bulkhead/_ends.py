# SPDX-License-Identifier: Apache-2.0
"""How a rank's process ends, told as what it is: exceptions, programs that stand still, forks."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
import time
import traceback
from typing import Any, Callable, Iterable, Optional

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_PLACES = 3
_LONGEST = 400  # characters: some messages name every tensor of a model
_PR_SET_PDEATHSIG = 1


def places(frames: Iterable[traceback.FrameSummary]) -> str:
    """The last places of the program's own in `frames`, the innermost one last."""
    own = [f for f in frames if os.path.dirname(os.path.abspath(f.filename)) != _PACKAGE]
    return ", ".join(f"{os.path.basename(f.filename)}:{f.lineno} in {f.name}" for f in own[-_PLACES:])


def one_line(words: str) -> str:
    """`words` as a line that a log and an incident's title can hold."""
    line = " ".join("".join(c if c.isprintable() else " " for c in words).split())
    return line if len(line) <= _LONGEST else line[:_LONGEST - 4] + " ..."


def cause(error: BaseException) -> str:
    """One line: the exception and where it came from."""
    line = one_line(traceback.format_exception_only(type(error), error)[-1])
    if isinstance(error, MemoryError) or "allocate memory" in line:
        line = "out of memory: " + line
    where = _places_there(error) or places(traceback.extract_tb(error.__traceback__))
    return f"{line}; at {where}" if where else line


def _places_there(error: BaseException) -> str:
    """Where another process raised it, of which concurrent.futures tells the traceback as text."""
    if type(error.__cause__).__name__ != "_RemoteTraceback":
        return ""
    found = re.findall(r'^  File "(.*)", line (\d+), in (.*)$', str(error.__cause__), re.MULTILINE)
    ours = [at for at, (file, _, _) in enumerate(found) if os.path.dirname(file) == _PACKAGE]
    return places(traceback.FrameSummary(file, int(line), name, lookup_line=False)
                  for file, line, name in found[ours[-1] + 1 if ours else 0:])


def is_of_a_group(error: BaseException) -> bool:
    """A collective ended because a rank of the process group is gone: Gloo names its source file."""
    return isinstance(error, RuntimeError) and "gloo/" in str(error)


class Watch:
    """Calls `stuck` (seconds, where), once and from a thread of its own, when the program has had the
    word for too long without progress: a little less than what the controller allows it.

    A context manager around what the program does; it is entered by the thread that trains.
    """

    _SOONER = 0.8

    def __init__(self, floor: float, multiple: int, stuck: Callable[[float, str], None]) -> None:
        self._floor, self._multiple, self._stuck = floor, multiple, stuck
        self._since: Optional[float] = None
        self._entered: float = 0
        self._longest = 0.0
        self._thread: Optional[threading.Thread] = None

    def __enter__(self) -> None:
        if self._thread is None:
            self._trains = threading.get_ident()
            self._thread = threading.Thread(target=self._run, name="bulkhead watch", daemon=True)
            self._thread.start()
        self._entered = self._since = time.monotonic()

    def __exit__(self, *raised: Any) -> None:
        self._since = None
        self._longest = max(self._longest, time.monotonic() - self._entered)

    def moved(self) -> None:
        """The program got on."""
        if self._since is not None:
            self._since = time.monotonic()

    def _run(self) -> None:
        while True:
            limit = self._SOONER * max(self._floor, self._multiple * self._longest)
            time.sleep(min(1.0, limit / 20))
            since = self._since
            if since is None or time.monotonic() - since < limit:
                continue
            frame = sys._current_frames().get(self._trains)
            return self._stuck(time.monotonic() - since, places(traceback.extract_stack(frame)))


def mind_forks(forked: Callable[[], None]) -> None:
    """Children of this process (workers of a DataLoader) die with it, and a SIGTERM to one of them is
    not one to the rank. `forked` is called in each."""
    libc = ctypes.CDLL(None)
    by_main = [True]  # the kernel sends the signal when the thread that forked ends
    parent = [0]

    def before() -> None:
        by_main[0] = threading.current_thread() is threading.main_thread()
        parent[0] = os.getpid()

    def in_child() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if by_main[0]:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent[0]:  # it died before it could be asked for that
            os.kill(os.getpid(), signal.SIGKILL)
        forked()

    os.register_at_fork(before=before, after_in_child=in_child)


def without_torch(error: ImportError) -> Callable[[str], Any]:
    """No restart brings torch to a rank: the process ends, and the agent tells the line as the reason.
    Elsewhere there is doctor, and a __getattr__ that says what is missing."""
    def missing(name: str) -> Any:
        if name.startswith("_"):  # a module of the package, which may do without
            raise AttributeError(name)
        raise error

    if "BULKHEAD_JOB" not in os.environ:
        return missing
    print(f"bulkhead critical {sys.executable} cannot import torch: {error}; install python3-torch, or torch "
          "1.13 or newer by pip, for this Python", file=sys.stderr, flush=True)
    os._exit(5)  # no restart can help: backend/runtime/replica/exit_code.h
