# SPDX-License-Identifier: Apache-2.0
"""python3 -m bulkhead doctor: what a program under Bulkhead needs, and what of it is here.
python3 -m bulkhead safetensors FILE.pt NEW: a file of torch.save() as one that bulkheadctl imports."""

import os
import shutil
import subprocess
import sys
from typing import Iterator, Tuple


def _library() -> Tuple[bool, str]:
    from . import _library as library
    try:
        return True, f"library {library.Library().version().decode()}, {library.PATH}"
    except OSError as error:
        return False, f"library: {error}; install what it names, or build it with ./dev wheel"


def _torch() -> Tuple[bool, str]:
    try:
        import torch
    except ImportError as error:
        return False, f"torch: {error}; install python3-torch, or torch 1.13 or newer by pip"
    number = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return number >= (1, 13), f"torch {torch.__version__}" + (
        "" if number >= (1, 13) else "; expected 1.13 or newer")


def _program() -> Tuple[bool, str]:
    path = shutil.which("bulkheadctl")
    if path is None:
        return False, "bulkheadctl: not found by PATH; it starts jobs"
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10).stdout.split()
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, f"bulkheadctl: {error}"
    from . import _library as library
    try:
        ours = library.Library().version().decode()
    except OSError:  # told by _library()
        return True, f"bulkheadctl: {path}"
    if said[-1:] != [ours]:
        return False, (f"bulkheadctl: {path} is of version {said[-1] if said else 'unknown'}, the library of {ours}; "
                       "put the program of this package's build first in PATH")
    return True, f"bulkheadctl: {path}"


def _checks() -> Iterator[Tuple[bool, str]]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield sys.version_info >= (3, 9), f"Python {version}" + (
        "" if sys.version_info >= (3, 9) else "; expected 3.9 or newer")
    yield _torch()
    yield _library()
    memory = os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK)
    yield memory, "shared memory" + ("" if memory else ": /dev/shm cannot be written; ranks go by TCP")
    yield _program()


def _safetensors(source: str, target: str) -> int:
    good, line = _torch()
    if not good:
        print(line, file=sys.stderr)
        return 1
    from ._convert import to_safetensors
    try:
        print(f"{target}: {to_safetensors(source, target)} tensors")
    except Exception as error:  # of torch or pickle: whatever is in the file
        print(f"cannot make {target} of {source}: {error}", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    if sys.argv[1:2] == ["safetensors"] and len(sys.argv) == 4:
        return _safetensors(*sys.argv[2:])
    if sys.argv[1:] != ["doctor"]:
        print("usage: python3 -m bulkhead doctor | safetensors FILE.pt NEW", file=sys.stderr)
        return 2
    results = list(_checks())
    for good, line in results:
        print("ok      " if good else "MISSING ", line)
    run = os.environ.get("BULKHEAD_JOB")
    print(f"this process is a rank of {run}" if run else "this process is no rank: no agent started it")
    return 0 if all(good for good, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
