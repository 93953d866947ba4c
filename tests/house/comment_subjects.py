#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the comments that open without a subject, and fails when their share has risen.

usage: comment_subjects.py ROOT [--list FOLDER...] [--bounds FILE]

A comment block is a run of lines that hold nothing but `//` or `///` (C, C++, CUDA, proto), or one
comment behind code. It opens without a subject when its first word is

- a relative or question word (what, who, whom, whose, which, whether, how, why, whatever, whoever):
  the sentence is then a noun clause; or
- of, where, as, from or for in a comment on lines of its own, and the first sentence has no comma:
  there is no main clause. Behind code these qualify the name that is declared there, their subject.

A question ("Who calls?") and a quoted word ("`of` is ...") are sentences and do not count.

Without options prints the share by folder. --list prints each such comment. --bounds FILE holds
lines "FOLDER PERCENT": exit status 1 when the share of a folder is above its bound, or when a folder
has none. Bounds only fall: lower them with each folder that was cleaned up.
"""
import argparse
import collections
import pathlib
import re
import subprocess
import sys

SUFFIXES = (".h", ".cpp", ".c", ".cu", ".cuh", ".proto")
NOUN_CLAUSE = re.compile(
    r"(what|who|whom|whose|which|whether|how|why|whatever|whoever)\b", re.IGNORECASE)
SUBORDINATE = re.compile(r"(of|where|as|from|for)\b", re.IGNORECASE)


def blocks(text: str) -> list[tuple[int, bool, str]]:
    """Line number, whether code stands before it, and text of each comment block, in order.

    Licence lines and linter marks are left out.
    """
    found, current, start = [], [], 0

    def close():
        if current:
            found.append((start, False, " ".join(current)))
            current.clear()

    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        own = re.match(r"///?<?\s?(.*)", stripped)
        if own:
            words = own.group(1).strip()
            if words.startswith(("SPDX-", "NOLINT", "clang-format")) or not words.strip("-= /"):
                close()
                continue
            if not current:
                start = number
            current.append(words)
            continue
        close()
        # Behind code; `//` inside a string (an address) follows a colon or a quote.
        behind = re.search(r"(?<![:\"'/])//[/<]*\s+(\S.*)", line)
        if behind and not behind.group(1).startswith("NOLINT") and line.count('"') % 2 == 0:
            if '"' in line and line.rfind('"') > behind.start():
                continue
            found.append((number, True, behind.group(1)))
    close()
    return found


def lacks_subject(comment: str, behind_code: bool = False) -> bool:
    """True when the comment opens without a subject, as the head of this file defines it."""
    sentence = re.split(r"(?<=[.;:?])\s", comment, maxsplit=1)[0]
    if sentence.endswith("?"):
        return False
    if NOUN_CLAUSE.match(comment):
        return True
    return not behind_code and bool(SUBORDINATE.match(comment)) and "," not in sentence


def folder_of(path: str) -> str:
    parts = path.split("/")
    depth = 3 if parts[:2] == ["backend", "runtime"] else 2 if parts[0] in ("backend", "plugins") else 1
    return "/".join(parts[:min(depth, len(parts) - 1)]) or "."


def sources(root: pathlib.Path) -> list[str]:
    names = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], check=True,
                           stdout=subprocess.PIPE, text=True).stdout.split("\0")
    return [name for name in names if name.endswith(SUFFIXES) and (root / name).is_file()]


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("usage: "))
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--list", nargs="*", metavar="FOLDER")
    parser.add_argument("--bounds", type=pathlib.Path)
    options = parser.parse_args()
    total, bad = collections.Counter(), collections.Counter()
    for name in sources(options.root):
        for line, behind_code, comment in blocks((options.root / name).read_text(errors="replace")):
            total[folder_of(name)] += 1
            if not lacks_subject(comment, behind_code):
                continue
            bad[folder_of(name)] += 1
            if options.list is not None and (not options.list or name.startswith(tuple(options.list))):
                print(f"{name}:{line}: {comment[:110]}")
    if options.list is not None:
        return 0
    bounds = {}
    if options.bounds:
        for line in options.bounds.read_text().splitlines():
            if line and not line.startswith("#"):
                folder, percent = line.split()
                bounds[folder] = float(percent)
    wrong = 0
    for folder in sorted(total):
        share = 100 * bad[folder] / total[folder]
        note = ""
        if options.bounds and folder not in bounds:
            note = "  has no bound: add a line"
        elif options.bounds and share > bounds[folder]:
            note = f"  above its bound of {bounds[folder]} %: --list {folder} shows them"
        wrong += bool(note)
        print(f"{share:5.1f} %  {bad[folder]:4} of {total[folder]:5}  {folder}{note}")
    print(f"{100 * sum(bad.values()) / sum(total.values()):5.1f} %  {sum(bad.values()):4} of "
          f"{sum(total.values()):5}  all")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
