#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Finds the places of the protocol, coordinator and replica rooms where a bug can be planted, and writes
copies of the sources in which every place is behind BULKHEAD_MUTANT(number).

    places.py OUT [--jobs N]     writes OUT/<source>.cpp and OUT/places.json

One program holds all mutants and is compiled once; BULKHEAD_MUTANT=number in the environment chooses one.

Kinds of change, each found in the syntax tree by libclang:
  condition   a condition negated, or an operand of && or || dropped
  comparison  < to <=, > to >=, == to != and back, and "+ 1" or "- 1" dropped
  statement   a call, assignment or increment whose value nobody uses, dropped
  fence       an if whose branch leaves (return, continue, break) never holds

Left out by rule, because all they can change is text for people, a measurement or a hint:
  - what lies in an argument of spdlog, absl::Str*, *printf, or in such a call itself;
  - an assignment or append to a value whose name says that it is such text (TEXT_NAMES);
  - functions whose name says that they make such text (TEXT_FUNCTIONS), the sources in TELEMETRY;
  - reserve() and shrink_to_fit();
  - < to <= and back between times (MonoNs): nobody can rely on a single nanosecond;
  - what lies inside a macro, a constexpr, a static_assert or a case label.
"""
import argparse
import hashlib
import json
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("protocol", "coordinator", "replica")
TELEMETRY = {"backend/runtime/coordinator/telemetry.cpp"}
TEXT_CALLS = re.compile(r"^(spdlog::|absl::Str(Cat|Append|Format|Join)\b|(std::|::)?f?printf\b)")
TEXT_NAMES = re.compile(
    r"^(why|explanation|title|detail|text|message|note|error|output|reason|sentence|words|said|what)_?$")
TEXT_FUNCTIONS = re.compile(r"^(describe|explain|name|text|say|tell\w*Name)|(Name|Text|Words|Said|InWords)$")
FLAGS = ["-x", "c++", "-std=c++20", f"-I{ROOT}", f"-I{ROOT}/plugins/include", "-w",
         '-DBULKHEAD_VERSION="0"', '-DBULKHEAD_SOURCE_MODEL_DIR="."']
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}


def sources():
    for room in ROOMS:
        yield from sorted((ROOT / "backend/runtime" / room).rglob("*.cpp"))


def squeeze(text):
    return " ".join(text.split())


class Source:
    """One source's places. Offsets are bytes; the text is kept as latin-1 so that both agree."""

    def __init__(self, path):
        import clang.cindex as ci
        self.ci = ci
        self.kind = ci.CursorKind
        self.path = path
        self.name = str(path.relative_to(ROOT))
        self.text = path.read_bytes().decode("latin-1")
        self.edits = []  # (begin, end, order, kind, change, wrap)
        self.seen = set()
        options = ci.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD
        self.unit = ci.Index.create().parse(str(path), args=FLAGS, options=options)
        # clang 14 does not know that a lambda may capture a structured binding; the rest it reads all the same.
        errors = [str(d) for d in self.unit.diagnostics if d.severity >= ci.Diagnostic.Error
                  and "reference to local binding" not in d.spelling]
        if errors:
            sys.exit(f"places.py: libclang cannot read {self.name}: {errors[0]}")
        self.macros = []
        for c in self.unit.cursor.get_children():
            if c.location.file is None or c.location.file.name != str(path):
                continue
            if c.kind == self.kind.MACRO_INSTANTIATION:
                self.macros.append((c.extent.start.offset, c.extent.end.offset))
        for c in self.unit.cursor.get_children():
            if c.location.file is not None and c.location.file.name == str(path):
                self.declaration(c, [])

    # --- walking -----------------------------------------------------------------------------------
    def declaration(self, c, scope):
        k = self.kind
        if c.kind in (k.NAMESPACE, k.CLASS_DECL, k.STRUCT_DECL, k.LINKAGE_SPEC, k.UNEXPOSED_DECL):
            named = c.kind in (k.CLASS_DECL, k.STRUCT_DECL) and c.spelling
            for child in c.get_children():
                self.declaration(child, scope + [c.spelling] if named else scope)
        elif c.kind in (k.FUNCTION_DECL, k.CXX_METHOD, k.CONSTRUCTOR, k.DESTRUCTOR, k.FUNCTION_TEMPLATE,
                        k.CONVERSION_FUNCTION):
            if self.name in TELEMETRY or TEXT_FUNCTIONS.search(c.spelling):
                return
            body = [b for b in c.get_children() if b.kind in (k.COMPOUND_STMT, k.CXX_TRY_STMT)]
            if not body or "constexpr" in self.of(c).split("{")[0].split():
                return
            owner = []
            parent = c.semantic_parent
            while parent is not None and parent.kind in (k.CLASS_DECL, k.STRUCT_DECL, k.CLASS_TEMPLATE):
                owner.insert(0, parent.spelling)
                parent = parent.semantic_parent
            self.function = "::".join(owner + [c.spelling.split("<")[0]])
            for child in c.get_children():
                if child.kind.is_expression() or child.kind.is_statement():
                    self.walk(child)

    def walk(self, c):
        k = self.kind
        if c.kind in (k.STATIC_ASSERT, k.TYPE_REF, k.NAMESPACE_REF, k.TEMPLATE_REF, k.PARM_DECL):
            return
        if c.kind == k.VAR_DECL and re.match(r"(static\s+)?constexpr\b", self.of(c)):
            return
        if c.kind == k.CALL_EXPR and TEXT_CALLS.match(self.of(c).lstrip(":")):
            return
        if c.kind == k.VAR_DECL and TEXT_NAMES.match(c.spelling) or self.changesText(c):
            return
        children = list(c.get_children())
        if c.kind in (k.COMPOUND_STMT,):
            for child in children:
                self.statement(child)
        elif c.kind == k.IF_STMT:
            self.branch(c, children)
        elif c.kind in (k.WHILE_STMT, k.DO_STMT, k.FOR_STMT, k.CXX_FOR_RANGE_STMT):
            if c.kind == k.WHILE_STMT and children[0].kind.is_expression():
                self.condition(children[0])
            elif c.kind == k.DO_STMT:
                self.condition(children[-1])
            body = children[0] if c.kind == k.DO_STMT else children[-1]
            self.statement(body)
        elif c.kind in (k.CASE_STMT, k.DEFAULT_STMT):
            self.statement(children[-1])
            return
        elif c.kind == k.CONDITIONAL_OPERATOR:
            self.condition(children[0])
        elif c.kind == k.BINARY_OPERATOR and len(children) == 2:
            self.binary(c, *children)
        elif c.kind == k.CALL_EXPR and c.spelling in ("operator==", "operator!=") and self.of(c).count("=") >= 2:
            self.add(c, "comparison", f"{c.spelling[8:]} to {COMPARISONS[c.spelling[8:]]}",
                     lambda n, inner, raw: f"({n} != static_cast<bool>({inner}))")
        for child in children:
            self.walk(child)

    # --- changes -----------------------------------------------------------------------------------
    def statement(self, c):
        k = self.kind
        if self.bare(c).kind not in (k.CALL_EXPR, k.BINARY_OPERATOR, k.COMPOUND_ASSIGNMENT_OPERATOR, k.UNARY_OPERATOR,
                             k.CSTYLE_CAST_EXPR, k.CXX_DELETE_EXPR):
            return
        text = self.of(c)
        if TEXT_CALLS.match(text.lstrip(":")) or re.search(r"[.>](reserve|shrink_to_fit)\(", text):
            return
        if self.changesText(c):
            return
        begin, end = self.range(c)
        semicolon = re.compile(r"\s*;").match(self.text, end)
        if not semicolon:
            return
        self.add(c, "statement", "dropped", lambda n, inner, raw: f"{{ if (!{n}) {inner} }}", end=semicolon.end())

    def changesText(self, c):
        target = re.match(r"[\w.\->\[\]()*:]*?(\w+)\s*(\+?=(?!=)|\.append\(|\.assign\()", self.of(c))
        return c.kind.is_expression() and target and TEXT_NAMES.match(target.group(1))

    def branch(self, c, children):
        k = self.kind
        if re.match(r"if\s+constexpr", self.of(c)):
            return
        rest = [x for x in children]
        if rest and rest[0].kind == k.DECL_STMT:
            rest = rest[1:]
        if not rest or not rest[0].kind.is_expression():
            for child in children[1:]:
                if child.kind.is_expression() or child.kind == k.UNEXPOSED_EXPR:
                    self.statement(child)
            return
        # An init statement that is an expression comes before a condition that is one as well.
        head = self.text[self.range(c)[0]:self.range(rest[1])[0]] if len(rest) > 1 else ""
        if children and children[0].kind.is_expression() and ";" in self.plain(head):
            rest = rest[1:]
        condition, then = rest[0], rest[1]
        self.condition(condition)
        for child in rest[1:]:
            self.statement(child)
        if len(rest) == 2 and self.leaves(then):
            self.add(condition, "fence", "removed",
                     lambda n, inner, raw: f"(!{n} && static_cast<bool>({inner}))")

    def plain(self, text):
        return re.sub(r"\[[^\]]*\]\s*(\([^)]*\))?\s*\{.*\}", "", text, flags=re.S)

    def leaves(self, c):
        k = self.kind
        if c.kind == k.COMPOUND_STMT:
            children = list(c.get_children())
            return bool(children) and self.leaves(children[-1])
        return c.kind in (k.RETURN_STMT, k.CONTINUE_STMT, k.BREAK_STMT)

    def condition(self, c):
        if not c.kind.is_expression():
            return
        text = self.of(c)
        if text in ("true", "false", "1"):
            return
        # An equality that is the whole condition is negated as a comparison.
        inner = self.bare(c)
        if self.operatorOf(inner) in ("==", "!="):
            return
        if inner.kind == self.kind.CALL_EXPR and inner.spelling in ("operator==", "operator!="):
            return
        self.add(c, "condition", "negated", lambda n, inner, raw: f"({n} != static_cast<bool>({inner}))")

    def bare(self, c):
        while c.kind == self.kind.UNEXPOSED_EXPR and len(list(c.get_children())) == 1:
            c = next(c.get_children())
        return c

    def operatorOf(self, c):
        c = self.bare(c)
        binary = c.kind == self.kind.BINARY_OPERATOR and len(list(c.get_children())) == 2
        return self.operator(c) if binary else ""

    def operator(self, c):
        left, right = list(c.get_children())
        between = self.text[self.range(left)[1]:self.range(right)[0]]
        between = re.sub(r"//[^\n]*|/\*.*?\*/", "", between, flags=re.S).strip()
        return between

    def binary(self, c, left, right):
        op = self.operator(c)
        if op in ("&&", "||"):
            for side in (left, right):
                if self.operatorOf(side) == op:
                    continue  # of a && b && c each is dropped, not two at once
                if op == "&&":
                    self.add(side, "condition", "operand of && dropped",
                             lambda n, inner, raw: f"({n} || static_cast<bool>({inner}))")
                else:
                    self.add(side, "condition", "operand of || dropped",
                             lambda n, inner, raw: f"(!{n} && static_cast<bool>({inner}))")
        elif op in ("==", "!="):
            self.add(c, "comparison", f"{op} to {COMPARISONS[op]}",
                     lambda n, inner, raw: f"({n} != static_cast<bool>({inner}))")
        elif op in COMPARISONS and self.arithmetic(left) and self.arithmetic(right):
            if self.isTime(left) or self.isTime(right):
                return
            at = self.text.index(op, self.range(left)[1])
            begin, end = self.range(c)
            changed = self.text[begin:at] + COMPARISONS[op] + self.text[at + len(op):end]
            self.add(c, "comparison", f"{op} to {COMPARISONS[op]}",
                     lambda n, inner, raw: f"({n} ? ({changed}) : ({inner}))")
        elif op in ("+", "-") and re.fullmatch(r"1[uUlL]*", self.of(right)) and self.arithmetic(left):
            kept = self.of(left)
            self.add(c, "comparison", f"{op} 1 dropped", lambda n, inner, raw: f"({n} ? ({kept}) : ({inner}))")

    def isTime(self, c):
        return "MonoNs" in c.type.spelling or any(
            "MonoNs" in x.type.spelling for x in c.walk_preorder() if x.kind.is_expression())

    def arithmetic(self, c):
        t = self.ci.TypeKind
        kind = c.type.get_canonical().kind
        return t.BOOL.value <= kind.value <= t.LONGDOUBLE.value or kind in (t.ENUM, t.POINTER)

    # --- text --------------------------------------------------------------------------------------
    def range(self, c):
        return c.extent.start.offset, c.extent.end.offset

    def of(self, c):
        begin, end = self.range(c)
        return self.text[begin:end]

    def add(self, c, kind, change, wrap, end=None):
        begin, stop = self.range(c)
        end = end or stop
        if any(b <= begin and stop <= e for b, e in self.macros) or end <= begin:
            return
        if (begin, end, kind, change) in self.seen:
            return
        self.seen.add((begin, end, kind, change))
        self.edits.append({"begin": begin, "end": end, "kind": kind, "change": change, "wrap": wrap,
                           "function": self.function, "order": len(self.edits)})

    def places(self):
        """What a person needs to know of each place, in the order of the text."""
        self.edits.sort(key=lambda e: (e["begin"], -e["end"], e["order"]))
        count = {}
        out = []
        for e in self.edits:
            place = squeeze(self.text[e["begin"]:e["end"]])
            key = (e["function"], e["kind"], e["change"], place)
            count[key] = count.get(key, 0) + 1
            out.append({"file": self.name, "line": self.text.count("\n", 0, e["begin"]) + 1,
                        "function": e["function"], "kind": e["kind"], "change": e["change"], "place": place,
                        "nth": count[key]})
        return out

    def mutated(self, first):
        def render(begin, end, edits):
            out, at, i = [], begin, 0
            while i < len(edits):
                n, e = edits[i]
                j = i + 1
                while j < len(edits) and edits[j][1]["begin"] < e["end"]:
                    if edits[j][1]["end"] > e["end"]:
                        sys.exit(f"places.py: {self.name}: places overlap: "
                                 f"{self.text[e['begin']:e['end']]} and another")
                    j += 1
                inner = render(e["begin"], e["end"], edits[i + 1:j])
                out.append(self.text[at:e["begin"]])
                out.append(e["wrap"](f"BULKHEAD_MUTANT({n})", inner, self.text[e["begin"]:e["end"]]))
                at, i = e["end"], j
            out.append(self.text[at:end])
            return "".join(out)

        body = render(0, len(self.text), [(first + i, e) for i, e in enumerate(self.edits)])
        return f'#include "bench/mutants/mutant.h"\n#line 1 "{self.name}"\n' + body


def read(path):
    return Source(path)


def one(arguments):
    path, cache = arguments
    source = Source(path)
    places = source.places()
    # Numbers begin at 0 here; the offset of each file is put in when all are known.
    text = source.mutated(0)
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps({"places": places, "text": text}))


def generate(out, jobs):
    """Writes the mutated copies below `out`; what did not change is neither read by libclang nor written."""
    rules = Path(__file__).read_bytes()
    wanted = []
    for path in sources():
        # A declaration elsewhere changes what libclang sees of this source only with the headers.
        digest = hashlib.sha256(rules + path.read_bytes()).hexdigest()[:16]
        wanted.append((path, out / "cache" / f"{path.stem}-{digest}.json"))
    with ProcessPoolExecutor(jobs) as pool:
        list(pool.map(one, [w for w in wanted if not w[1].exists()]))
    places = []
    for path, cache in wanted:
        found = json.loads(cache.read_text())
        first = len(places) + 1
        text = re.sub(r"BULKHEAD_MUTANT\((\d+)\)", lambda m: f"BULKHEAD_MUTANT({int(m[1]) + first})", found["text"])
        copy = out / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode("latin-1")
        if not copy.exists() or copy.read_bytes() != data:
            copy.write_bytes(data)
        for i, place in enumerate(found["places"]):
            places.append({"number": first + i, "room": path.relative_to(ROOT).parts[2], **place})
    (out / "places.json").write_text(json.dumps(places, indent=0))
    return places


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    a = parser.parse_args()
    print(len(generate(a.out, a.jobs)), "places")
