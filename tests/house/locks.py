#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that code locks by backend/common/threads.h and that each mutex names what it guards.

usage: locks.py ROOT

clang -Wthread-safety (tests/house/thread_safety.py, `./dev lint`) checks accesses, but only of what
is annotated, and libstdc++ annotates nothing. So this fails on a standard mutex, guard or condition
variable, and on a mutex that no annotation of its file names. Prints the figures.
"""
import pathlib
import re
import subprocess
import sys

HOME = "backend/common/threads.h"  # wraps the standard ones
STANDARD = re.compile(r"std::(\w*mutex|lock_guard|unique_lock|scoped_lock|shared_lock|condition_variable)\b")
DECLARED = re.compile(r"^\s*(?:mutable |static |inline )*(?:bulkhead::|absl::)?(?:Leaf)?Mutex (\w+)\b[^;{]*;", re.M)
# File, name: why no annotation can name it.
WITHOUT = {
    ("plugins/llama_moe/blas.h", "blasMutex"): "guards the work memory of OpenBLAS",
    ("tests/support/controller_main.cpp", "outMutex"): "guards a stream of the process, stdout",
    ("tests/plugins/model.cpp", "mutex"): "guards a member of each model against its own threads",
    ("tests/rpc/jobs_test.cpp", "mutex"): "guards local variables, which clang cannot annotate",
    ("tests/rpc/watch_test.cpp", "mutex"): "guards a local variable",
    ("tests/replica/catch_up_test.cpp", "mutex_"): "guards results that a helper takes by reference",
    ("tests/rpc/rpc_fixture.h", "mutex_"): "guards public data, which predicates of tests read",
    ("tests/replica/step_exchange_test.cpp", "mutex"): "guards local variables",
    ("tests/simulation/fibers_test.cpp", "mutex"): "is itself what is tested",
}


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    root = pathlib.Path(sys.argv[1])
    names = subprocess.run(["git", "-C", str(root), "ls-files", "*.h", "*.cpp", "*.cu"], check=True,
                           stdout=subprocess.PIPE, text=True).stdout.split()
    mutexes = annotated = 0
    problems, unused = [], set(WITHOUT)
    for name in names:
        text = re.sub(r"//.*", "", (root / name).read_text(errors="replace"))
        if name != HOME:
            for found in STANDARD.finditer(text):
                line = text.count("\n", 0, found.start()) + 1
                problems.append(f"{name}:{line}: {found.group()}: use {HOME}, in plugins absl::Mutex")
        for found in DECLARED.finditer(text):
            mutexes += 1
            mutex = found.group(1)
            if re.search(r"ABSL_(PT_)?GUARDED_BY\((\w+(\.|->))?" + mutex + r"\)", text):
                annotated += 1
            elif (name, mutex) in WITHOUT:
                unused.discard((name, mutex))
            else:
                line = text.count("\n", 0, found.start(1)) + 1
                problems.append(f"{name}:{line}: {mutex}: say what it guards with ABSL_GUARDED_BY")
    problems += [f"{name}: {mutex}: remove it from WITHOUT, it needs no exception"
                 for name, mutex in sorted(unused)]
    print("\n".join(problems + [f"{mutexes} mutexes, {annotated} with annotated data, "
                                f"{len(WITHOUT)} places with a reason not to"]))
    return 1 if problems else 0


sys.exit(main())
