#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a message, field, enum value, service or method of the public API has no comment.

usage: proto_comments.py ROOT

A comment stands on the lines above a declaration or behind it. One comment above a run of fields of
one kind (no empty line between them) belongs to all of them only if it opens with "Both", "All" or
"Each"; such a run ends at an empty line, a comment or a closing brace.
"""
import pathlib
import re
import subprocess
import sys

DECLARATION = re.compile(
    r"^\s*(?:(message|enum|service|rpc|oneof)\s+(\w+)|"
    r"(?:optional |repeated )?(?:map<[^>]+>|[\w.]+)\s+(\w+)\s*=\s*\d+\b|([A-Z][A-Z0-9_]+)\s*=\s*\d+\b)")


def undocumented(text: str) -> list[tuple[int, str]]:
    """Line number and name of each declaration without a comment."""
    found, above, shared = [], "", False
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if stripped.startswith("//"):
            above = above or stripped.lstrip("/ ")
            shared = False
            continue
        declared = DECLARATION.match(line)
        if declared and not stripped.startswith(("option ", "syntax", "package", "import", "reserved")):
            name = next(g for g in declared.groups()[1:] if g)
            if above:
                shared = above.startswith(("Both", "All", "Each"))
            elif "//" not in line and not shared:
                found.append((number, name))
        elif not stripped or stripped.startswith("}"):
            shared = False
        if stripped:
            above = ""
    return found


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    root = pathlib.Path(sys.argv[1])
    names = subprocess.run(["git", "-C", str(root), "ls-files", "*bulkhead/v1/*.proto"], check=True,
                           stdout=subprocess.PIPE, text=True).stdout.split()
    count = 0
    for name in names:
        for line, declared in undocumented((root / name).read_text()):
            count += 1
            print(f"{name}:{line}: {declared} has no comment")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
