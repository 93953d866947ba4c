#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: manpage.py PROGRAM SECTION VERSION: a manual page on standard output, made of the program's --help and
that of each of its verbs."""
import pathlib
import re
import subprocess
import sys

# The heads of what CLI11 prints below its usage line; what follows the last of them is the footer.
HEADS = ("Positionals:", "Options:", "Subcommands:")


def read_help(program: str, verbs: list[str]) -> tuple[str, str, dict[str, list[tuple[str, str]]], list[str]]:
    """Description, usage, the items below each head as (name, text), and the lines of the footer."""
    lines = subprocess.run([program, *verbs, "--help"], check=True, stdout=subprocess.PIPE,
                           text=True).stdout.splitlines()
    usage = next(i for i, line in enumerate(lines) if line.startswith("Usage: "))
    items: dict[str, list[tuple[str, str]]] = {}
    footer, head = [], None
    for line in lines[usage + 1:]:
        if line in HEADS:
            head = line
            items[head] = []
        elif head and re.match(r"  \S", line):
            name, _, text = re.sub(r" {2,}", "\0", line.strip(), count=1).partition("\0")
            items[head].append((name, text))
        elif head and line.startswith("   "):
            name, text = items[head].pop()
            items[head].append((name, f"{text} {line.strip()}".strip()))
        elif line:
            footer.append(line)
    return " ".join(lines[:usage]), lines[usage].removeprefix("Usage: "), items, footer


def roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in ".'" else text


def write_items(items: list[tuple[str, str]]):
    for name, text in items:
        print(f".TP\n.B {roff(name)}\n{roff(text)}")


def write_verbs(program: str, name: str, verbs: list[str], found: list[tuple[str, str]]):
    for verb, _ in found:
        path = [*verbs, verb]
        description, usage, items, _ = read_help(program, path)
        print(f".SS {roff(' '.join([name, *path]))}\n{roff(description)}\n.PP\n{roff(usage)}")
        write_items(items.get("Positionals:", []))
        write_items([item for item in items.get("Options:", []) if not item[0].startswith("-h,")])
        write_verbs(program, name, path, items.get("Subcommands:", []))


def main():
    program, section, version = sys.argv[1:]
    name = pathlib.Path(program).name
    description, usage, items, footer = read_help(program, [])
    print(f'.TH {name.upper()} {section} "" "Bulkhead {version}"\n.SH NAME\n{name} \\- {roff(description)}')
    print(f".SH SYNOPSIS\n{roff(usage)}\n.SH OPTIONS")
    write_items(items["Options:"])
    if items.get("Subcommands:"):
        print(".SH VERBS")
        write_verbs(program, name, [], items["Subcommands:"])
    if footer:
        print(".SH NOTES\n" + "\n.br\n".join(roff(line) for line in footer))


if __name__ == "__main__":
    main()
