#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every C++ source of a build folder with clang -Wthread-safety, without code generation.

usage: thread_safety.py BUILD [PART...]

BUILD holds compile_commands.json, and what its sources include has been generated. With PART, only
commands whose file or folder contains one of them are run. Prints what clang says; exits with 1 when
an access without its mutex was found or a source does not parse, with 2 on wrong arguments.
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

CHECK = ["-fsyntax-only", "-Wno-everything", "-Wthread-safety", "-Werror=thread-safety",
         "-ferror-limit=0"]
GCC_ONLY = ("-fno-var-tracking-assignments", "-Wno-subobject-linkage", "-march=native")


def check(command: dict) -> tuple[int, str]:
    """The exit status and messages of clang for one entry of compile_commands.json."""
    words = shlex.split(command["command"])
    while words and not words[0].startswith("-"):
        del words[0]  # the compiler, and what caches it
    if "-o" in words:
        at = words.index("-o")
        del words[at:at + 2]
    words = [word for word in words if word not in GCC_ONLY]
    done = subprocess.run(["clang++", *words, *CHECK], cwd=command["directory"], text=True,
                          stderr=subprocess.PIPE)
    return done.returncode, done.stderr


def main() -> int:
    if len(sys.argv) < 2 or not (pathlib.Path(sys.argv[1]) / "compile_commands.json").exists():
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    commands = json.loads((pathlib.Path(sys.argv[1]) / "compile_commands.json").read_text())
    parts = sys.argv[2:]
    commands = [c for c in commands if c["file"].endswith((".cpp", ".cxx"))
                and "/proto/gen/" not in c["file"] and "_autogen/" not in c["file"]
                and "cmake_pch" not in c["file"]
                and (not parts or any(part in c["file"] for part in parts))]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for status, messages in pool.map(check, commands):
            failed += status != 0
            sys.stderr.write(messages)
            sys.stderr.flush()
    print(f"{len(commands)} compilations, {failed} with errors of thread safety")
    return 1 if failed else 0


sys.exit(main())
