#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one bug after another into the protocol, the coordinator and the replica, and counts which of
them the unit tests, the simulator and the jobs of real processes notice. README.md says how."""
import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import places

ROOT = places.ROOT
BUILD = ROOT / "build-mutants"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
BAR = 90  # per cent of the bugs that are none of them equivalent

UNIT = ["protocol_parts_test", "protocol_machine_test", "protocol_job_test", "checkpoint_test", "coordinator_test",
        "replica_corpus_test", "replica_state_test", "replica_shm_lease_test", "replica_checkpoint_desk_test",
        "replica_fault_desk_test", "replica_links_test", "replica_step_exchange_test", "replica_catch_up_test",
        "replica_rank_arguments_test", "replica_snapshot_cache_test", "replica_plugin_host_test",
        "replica_device_copy_test", "replica_device_choice_test", "replica_training_queue_test"]
SIMULATOR = ["driven_test", "simulation_test"]
# Not those of tests/fault that stand or fall with the moment at which something is killed: on a busy
# machine they fail without a bug as well.
JOB = ["controller_test", "replica_worker_job_test", "replica_device_job_test", "training_test", "layout_test",
       "agent_loss_test", "spares_test", "lasting_faults_test", "control_link_test", "campaign_job_test",
       "command_job_test"]
HELPERS = ["bin/bulkhead-worker", "bin/bulkhead-test-agent", "bin/bulkhead-test-controller",
           "bin/bulkhead-scripted-worker", "tests/fault/bulkhead_embedded_rank", "python/bulkhead/libbulkhead_rank.so"]
# Of bulkhead-sim: name, options, seeds, faults of a seed.
RUNS = [("sim", [], 150, 60), ("sim --drivers", ["--drivers"], 60, 60)]
SEEDS = {"DrivenTest.SeedsNobodyHasSeenKeepEveryInvariantAndHeal",
         "SimulationTest.ASliceOfSeedsKeepsEveryInvariantAndHeals"}  # the same as RUNS
KINDS = ("condition", "comparison", "statement", "fence")


def die(why):
    sys.exit(f"mutants: {why}")


# --- running one program ---------------------------------------------------------------------------
def leftovers(tag):
    """Processes that a test left running: those that have its tag in their environment."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if tag in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            pass


def limits():
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Ran:
    def __init__(self, failed, how, seconds, hung=False):
        self.failed, self.how, self.seconds, self.hung = failed, how, seconds, hung


def run(command, environment, limit):
    """In a folder of its own; failed when it says so, crashes or does not end."""
    folder = tempfile.mkdtemp(prefix="mutant-")
    tag = f"BULKHEAD_MUTANT_RUN={os.path.basename(folder)}"
    name, _, value = tag.partition("=")
    env = {**os.environ, "TMPDIR": folder, name: value, **environment}
    began = time.monotonic()
    with open(f"{folder}/output", "wb") as out:
        p = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT,
                             stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=limits)
        try:
            code = p.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
    seconds = time.monotonic() - began
    leftovers(tag.encode())
    text = Path(f"{folder}/output").read_text(errors="replace")
    shutil.rmtree(folder, ignore_errors=True)
    if code == 0:
        return Ran(False, "", seconds)
    if code is None:
        return Ran(True, f"did not end in {limit:.0f} s", seconds, True)
    named = re.search(r"\[  FAILED  \] (\S+?)[, ]", text) or re.search(r"^(seed \d+: [^\n]{0,90})", text, re.M)
    last = (re.findall(r"\[ RUN      \] (\S+)", text) or [""])[-1]
    how = named.group(1) if named else f"{last} ended by signal {-code}" if code < 0 else f"{last} status {code}"
    return Ran(True, how.strip(), seconds)


# --- what there is to run --------------------------------------------------------------------------
class Check:
    """One test case, or one run of the simulator."""

    def __init__(self, program, case, kind, command, digest):
        self.program, self.case, self.kind, self.command, self.digest = program, case, kind, command, digest
        self.seconds, self.reached = 0.0, frozenset()

    @property
    def key(self):
        return f"{self.program}/{self.case}/{self.digest}"


def digest(paths, salt=""):
    h = hashlib.sha256(salt.encode())
    for p in paths:
        h.update(p.read_bytes())
    return h.hexdigest()[:16]


def cases(program):
    out = subprocess.run([BUILD / "tests" / program, "--gtest_list_tests"], capture_output=True, text=True,
                         cwd=tempfile.gettempdir())
    if out.returncode != 0:
        die(f"{program} does not list its cases: {out.stderr}")
    suite, found = "", []
    for line in out.stdout.splitlines():
        line = line.split("#")[0].rstrip()
        if line.endswith(".") and not line.startswith(" "):
            suite = line
        elif line.startswith("  ") and suite and not line.strip().startswith("DISABLED_"):
            found.append(suite + line.strip())
    return found


def checks(seed):
    out = []
    sim = BUILD / "bin/bulkhead-sim"
    helpers = [BUILD / h for h in HELPERS]
    for kind, programs in (("unit", UNIT), ("simulator", SIMULATOR), ("job", JOB)):
        for program in programs:
            path = BUILD / "tests" / program
            d = digest([path] + (helpers if kind == "job" else []))
            out += [Check(program, case, kind, [path, f"--gtest_filter={case}"], d)
                    for case in cases(program) if case not in SEEDS]
    first = seed * 1_000_000 + 1
    for name, options, seeds, faults in RUNS:
        command = [sim, "run", *options, "--seeds", f"{first}..{first + seeds - 1}", "--faults", str(faults), "--whole"]
        out.append(Check(name, f"{first}+{seeds}x{faults}", "simulator", command, digest([sim])))
    return out


def record(all_checks, jobs):
    """Every check without a bug: how long it takes and which places it reaches. All must pass."""
    folder = BUILD / "record"
    folder.mkdir(exist_ok=True)

    def one(check):
        kept = folder / (hashlib.sha256(check.key.encode()).hexdigest()[:24] + ".json")
        if kept.exists():
            data = json.loads(kept.read_text())
        else:
            with tempfile.NamedTemporaryFile(prefix="reached-") as file:
                file.truncate(1 << 16)
                environment = {"BULKHEAD_MUTANT_REACHED": file.name}
                ran = run(check.command, environment, 300)
                if ran.failed:
                    return f"{check.program} {check.case} fails without a bug: {ran.how}"
                reached = Path(file.name).read_bytes()
            data = {"seconds": ran.seconds, "reached": [i for i, b in enumerate(reached) if b]}
            kept.write_text(json.dumps(data))
        check.seconds, check.reached = data["seconds"], frozenset(data["reached"])
        return None

    wrong = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for why in pool.map(one, [c for c in all_checks if c.kind != "job"]):
            wrong += [why] if why else []
    for check in all_checks:  # whole jobs one at a time: two cores are few
        if check.kind == "job" and (why := one(check)):
            wrong.append(why)
    if wrong:
        die("the tests must pass before bugs are planted:\n  " + "\n  ".join(wrong))


# --- one bug ---------------------------------------------------------------------------------------
def attempts(number, all_checks, job_seconds):
    """What is run against a bug, the fastest first: (kind, name, command, usual seconds)."""
    reaching = [c for c in all_checks if number in c.reached]
    out = []
    for kind in ("unit", "simulator"):
        by_program = collections.defaultdict(list)
        for c in reaching:
            if c.kind == kind:
                by_program[c.program].append(c)
        stage = []
        for program, mine in by_program.items():
            seconds = sum(c.seconds for c in mine)
            if program.startswith("sim"):
                stage.append((kind, program, mine[0].command, seconds))
                continue
            filters = ":".join(c.case for c in sorted(mine, key=lambda c: c.seconds))
            stage.append((kind, program, [mine[0].command[0], f"--gtest_filter={filters}", "--gtest_fail_fast"],
                          seconds))
        out += sorted(stage, key=lambda s: s[3])
    # Of jobs the fastest case of each program, then the next fastest: other programs try other things.
    turn, spent = collections.Counter(), 0.0
    ordered = []
    for c in sorted((c for c in reaching if c.kind == "job"), key=lambda c: c.seconds):
        ordered.append((turn[c.program], c.seconds, c))
        turn[c.program] += 1
    for _, _, c in sorted(ordered, key=lambda o: o[:2]):
        spent += c.seconds
        if spent > job_seconds:
            break
        out.append((c.kind, c.program, c.command, c.seconds))
    return out


def noticed(command, environment, limit):
    """A real job on a busy machine may fail by itself. It counts when it fails three times in a row with the
    bug (once when it hangs) and then passes twice without it."""
    for _ in range(3):
        ran = run(command, environment, limit)
        if not ran.failed:
            return ran
        if ran.hung:
            break
    innocent = {k: v for k, v in environment.items() if k != "BULKHEAD_MUTANT"}
    if any(run(command, innocent, limit).failed for _ in range(2)):
        return Ran(False, "", ran.seconds)
    return ran


def judge(place, all_checks, job_seconds, seed):
    environment = {"BULKHEAD_MUTANT": str(place["number"]), "BULKHEAD_FRESH_SEED": str(seed)}
    began = time.monotonic()
    tried = attempts(place["number"], all_checks, job_seconds)
    for kind, name, command, usual in tried:
        if kind == "job":
            ran = noticed(command, environment, 20 + 3 * usual)
        else:
            ran = run(command, environment, 10 + 4 * usual)
            # A machine that is busier than when the usual time was taken does not end it either.
            if ran.hung and run(command, {**environment, "BULKHEAD_MUTANT": "0"}, 10 + 4 * usual).failed:
                continue
        if ran.failed:
            return {"by": kind, "how": f"{name}: {ran.how}", "seconds": time.monotonic() - began}
    return {"by": "nothing", "how": f"{len(tried)} programs reach it" if tried else "no test reaches it",
            "seconds": time.monotonic() - began}


# --- the sample and what is said of it -------------------------------------------------------------
FIELDS = ("file", "function", "kind", "change", "place", "nth")


def key(entry):
    return tuple(entry.get(f, 1 if f == "nth" else "") for f in FIELDS)


def equivalents():
    listed = tomllib.loads(EQUIVALENT.read_text()).get("equivalent", []) if EQUIVALENT.exists() else []
    for entry in listed:
        entry["place"] = places.squeeze(entry.get("place", ""))
        lacking = [f for f in (*FIELDS[:5], "reason") if not entry.get(f)]
        if lacking:
            die(f"{EQUIVALENT.name}: an entry of {entry.get('file', '?')} has no {', '.join(lacking)}")
    return listed


def check_equivalents(found):
    known = {key(p) for p in found}
    reasons = {}
    for entry in equivalents():
        if key(entry) not in known:
            die(f"{EQUIVALENT.name}: {entry['file']}, {entry['function']}: no place \"{entry['place']}\" with "
                f"{entry['kind']} {entry['change']} any more: judge the new one, or take the entry out")
        reasons[key(entry)] = entry["reason"]
    return reasons


def draw(found, count, seed):
    """Of each room as large a part as of the others. An edit elsewhere does not change what is drawn."""
    out = []
    for room in sorted({p["room"] for p in found}, key=places.ROOMS.index):
        mine = [p for p in found if p["room"] == room]
        mine.sort(key=lambda p: hashlib.sha256(repr((seed, key(p))).encode()).digest())
        out += mine[:-(-count * len(mine) // len(found))]
    return out


def table(rows):
    widths = [max(len(str(r[i])) for r in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(str(c).ljust(w) for c, w in zip(r, widths)) + " |" for r in rows]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]


def report(sample, results, reasons, title):
    def counts(some):
        c = collections.Counter(verdict(p) for p in some)
        real = len(some) - c["equivalent"]
        killed = c["unit"] + c["simulator"] + c["job"]
        return [len(some), c["unit"], c["simulator"], c["job"], c["nothing"], c["equivalent"],
                f"{100 * killed / real:.1f} %" if real else "-"], (100 * killed / real if real else 100.0)

    def verdict(p):
        by = results[key(p)]["by"]
        return "equivalent" if by == "nothing" and key(p) in reasons else by

    rows = [["room", "kind", "planted", "by unit test", "by simulator", "by a real job", "by nothing", "equivalent",
             "score"]]
    for room in places.ROOMS:
        for kind in KINDS:
            some = [p for p in sample if p["room"] == room and p["kind"] == kind]
            if some:
                rows.append([room, kind, *counts(some)[0]])
        if some := [p for p in sample if p["room"] == room]:
            rows.append([room, "all", *counts(some)[0]])
    total, score = counts(sample)
    rows.append(["all", "all", *total])
    lines = [title, "", *table(rows), ""]
    left = [p for p in sample if verdict(p) == "nothing"]
    if left:
        lines += ["Killed by nothing:", ""]
        lines += [f"- `{p['file'].removeprefix('backend/runtime/')}:{p['line']}` {p['function']}: {p['kind']} "
                  f"{p['change']}: `{p['place'][:150]}` ({results[key(p)]['how']})" for p in left]
    return lines, rows, score


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=300, help="how many bugs are tried (default 300)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample and of the simulator's runs")
    parser.add_argument("--without", type=int, action="append", default=[], metavar="SEED",
                        help="leave out what the sample of that seed has: a held out sample")
    parser.add_argument("--room", choices=places.ROOMS, action="append",
                        help="draw from that room alone; may be given more than once (default all)")
    parser.add_argument("--all", action="store_true", help="try every place; takes a day")
    parser.add_argument("--keep", action="store_true",
                        help="keep what the last run with this seed killed; try the rest again")
    parser.add_argument("--show", action="store_true",
                        help="try nothing: say again what the last run with this seed found, as equivalent.toml is now")
    parser.add_argument("--job-seconds", type=float, default=12, metavar="S",
                        help="most time of real jobs for one bug, as they take without it (default 12)")
    parser.add_argument("--jobs", type=int, default=2, help="bugs tried at a time (default 2)")
    parser.add_argument("--no-build", action="store_true", help="take the programs as they are")
    a = parser.parse_args()
    began = time.monotonic()

    mutated = BUILD / "mutated"
    found = json.loads((mutated / "places.json").read_text()) if a.no_build or a.show else places.generate(mutated, a.jobs)
    reasons = check_equivalents(found)
    if not a.no_build and not a.show:
        if not (BUILD / "build.ninja").exists():
            subprocess.run(["cmake", "--preset", "mutants"], cwd=ROOT, check=True)
        programs = [*UNIT, *SIMULATOR, *JOB, *HELPERS, "bulkhead-sim", "bulkhead_workload_llama_moe"]
        if subprocess.run(["ninja", "-C", BUILD, f"-j{a.jobs}", *programs]).returncode != 0:
            die("the sources with bugs in them do not compile")

    found = [p for p in found if not a.room or p["room"] in a.room]
    sample = found if a.all else draw(found, a.sample, a.seed)
    for other in a.without:
        theirs = {key(p) for p in draw(found, max(a.sample, parser.get_default("sample")), other)}
        sample = [p for p in sample if key(p) not in theirs]
    sample.sort(key=lambda p: p["number"])

    kept = BUILD / f"results-{a.seed}.json"
    results = {}
    if (a.keep or a.show) and kept.exists():
        results = {tuple(k): r for k, r in json.loads(kept.read_text()) if a.show or r["by"] != "nothing"}
    if a.show:
        sample = [p for p in sample if key(p) in results]
        every = []
    else:
        os.environ["BULKHEAD_FRESH_SEED"] = str(a.seed)
        every = checks(a.seed)
        record(every, a.jobs)
        print(f"{len(found)} places, {len(sample)} to try; without a bug all {len(every)} checks pass "
              f"({time.monotonic() - began:.0f} s)", flush=True)
    tried = [p for p in sample if key(p) not in results]
    random.Random(a.seed).shuffle(tried)  # so that two whole jobs seldom wait for each other
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        pending = {pool.submit(judge, p, every, a.job_seconds, a.seed): p for p in tried}
        for i, done in enumerate(concurrent.futures.as_completed(pending), 1):
            p, r = pending[done], done.result()
            results[key(p)] = r
            print(f"{i}/{len(tried)} {p['number']} {p['file'].removeprefix('backend/runtime/')}:{p['line']} "
                  f"{p['kind']} {p['change']}: {r['by']}, {r['how']} ({r['seconds']:.0f} s)", flush=True)
            kept.write_text(json.dumps([[list(k), v] for k, v in results.items()]))

    title = (f"{len(found)} places, {len(sample)} tried, seed {a.seed}"
             + "".join(f", without those of seed {s}" for s in a.without)
             + ("" if a.show else f"; {(time.monotonic() - began) / 60:.0f} minutes"))
    lines, rows, score = report(sample, results, reasons, title)
    print("\n" + "\n".join(lines))
    out = ROOT / "build/bench"
    out.mkdir(parents=True, exist_ok=True)
    (out / "mutants.json").write_text(json.dumps({
        "name": "mutants", "notes": [title], "rows": [dict(zip(rows[0], map(str, r))) for r in rows[1:]],
        "bars": [{"name": "bugs killed of those not equivalent", "figure": score, "bound": BAR, "unit": "%",
                  "sense": "at least", "holds": score >= BAR}]}, indent=2) + "\n")
    print(f"\n{'holds ' if score >= BAR else 'MISSED'}  bugs killed of those not equivalent: {score:.2f} % (at least {BAR})")
    return 0 if score >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
