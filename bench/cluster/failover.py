# SPDX-License-Identifier: Apache-2.0
"""What it costs a job when the controller that leads is killed, stopped or cut off, or etcd is.

Three controllers, three members of etcd, three agents and a job of three ranks on this host. Each round does one thing
at a random moment, measures the longest time in which no step was committed, and puts things back. When all of etcd is
away nobody may lead: there the time counts from its return. At the end the ledger has to add up.
"""

import argparse
import json
import os
import platform
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time

from cluster import Cluster

LEADER = ("kill", "term", "freeze", "cut")
ETCD = ("etcd-kill", "etcd-freeze", "etcd-away")


def hurt(cluster, kind, leader, seconds):
    """Does it, and returns once its effect is there, with what puts things back."""
    name = f"c{leader}"
    if kind == "kill":
        cluster.kill(name)
        return lambda: cluster.start_controller(leader)
    if kind == "term":
        cluster.send(name, signal.SIGTERM)
        cluster.processes.pop(name).wait()
        return lambda: cluster.start_controller(leader)
    if kind == "freeze":
        cluster.send(name, signal.SIGSTOP)

        def thaw():
            cluster.send(name, signal.SIGCONT)
            cluster.processes.pop(name).wait()  # it leads no more, and ends
            cluster.start_controller(leader)

        return thaw
    if kind == "cut":
        for link in cluster.links[leader]:
            link.open.clear()
        cluster.processes.pop(name).wait()  # by itself

        def mend():
            for link in cluster.links[leader]:
                link.open.set()
            cluster.start_controller(leader)

        return mend
    if kind in ("etcd-kill", "etcd-freeze"):
        member = cluster.etcd_leader()
        if kind == "etcd-kill":
            cluster.kill(f"e{member}")
        else:
            cluster.send(f"e{member}", signal.SIGSTOP)
        time.sleep(5)  # a lead that is lost by it has been lost by then

        def back():
            if kind == "etcd-kill":
                cluster.start_etcd(member)
            else:
                cluster.send(f"e{member}", signal.SIGCONT)
            revive(cluster)

        return back
    for i in range(cluster.MEMBERS):
        cluster.send(f"e{i}", signal.SIGSTOP)
    time.sleep(seconds)
    for i in range(cluster.MEMBERS):
        cluster.send(f"e{i}", signal.SIGCONT)
    revive(cluster)
    return lambda: None


def revive(cluster):
    """Controllers that lost the lead have ended: as a service manager does it."""
    for name in [n for n, p in cluster.processes.items() if n.startswith("c") and p.poll() is not None]:
        cluster.processes.pop(name)
        cluster.start_controller(int(name[1:]))


def longest_wait(cluster, began_ns, ended_ns):
    """Seconds without a commit, from the last one before `began_ns` on."""
    return cluster.query(
        "select max(time_ns - before) from (select time_ns, lag(time_ns) over (order by time_ns) as before from steps)"
        " where time_ns > ? and time_ns <= ?", began_ns, ended_ns)[0] / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=LEADER + ETCD, help="repeat it for several [all]")
    parser.add_argument("--rounds", type=int, default=10, help="of each kind [%(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="of the moments [%(default)s]")
    parser.add_argument("--binaries", default="build/bin", help="folder of the programs [%(default)s]")
    parser.add_argument("--limit", type=float, default=5, help="seconds; a longer wait is a miss [%(default)s]")
    parser.add_argument("--out", default="build/bench", help="folder of cluster.json [%(default)s]")
    args = parser.parse_args()
    if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
        print("bench cluster: etcd is not installed: ./dev deps --cluster", file=sys.stderr)
        return 2
    moments = random.Random(args.seed)
    rows, bars = [], []
    with tempfile.TemporaryDirectory(prefix="bulkhead-cluster-") as folder:
        cluster = Cluster(folder + "/c", os.path.abspath(args.binaries))
        try:
            cluster.submit(3)
            cluster.await_step_after(0)
            print(f"{'what':12} rounds  no step for s: median   90 %    max  lead moved", flush=True)
            for kind in args.kind or LEADER + ETCD:
                waits, moved = [], 0
                for _ in range(args.rounds):
                    time.sleep(moments.uniform(0.2, 2.5))
                    leader = cluster.until("a leader", cluster.leader)
                    began = time.time_ns()
                    back = hurt(cluster, kind, leader, seconds=moments.uniform(1, 6))
                    ended = time.time_ns()
                    if kind == "etcd-away":
                        began = ended
                    waits.append(longest_wait(cluster, began, cluster.await_step_after(ended)))
                    back()
                    moved += cluster.until("a leader", cluster.leader) != leader
                waits.sort()
                median, most = statistics.median(waits), waits[-1]
                late = waits[int(0.9 * (len(waits) - 1))]
                print(f"{kind:12} {args.rounds:6}  {median:21.2f} {late:6.2f} {most:6.2f}  {moved}", flush=True)
                rows.append({"what": kind, "rounds": args.rounds, "median s": median, "90 % s": late, "max s": most,
                             "lead moved": moved})
                bars.append({"name": f"{kind}: longest time without a step", "figure": most, "bound": args.limit,
                             "unit": "s", "sense": "at most", "holds": most <= args.limit})
            cluster.until("a job that stops", lambda: cluster.ctl("stop", "--yes").returncode == 0 or None)
            cluster.until("its end", lambda: "finished" in cluster.ctl("jobs").stdout or None)
            audit = cluster.ctl("ledger", "--check")
            print(audit.stdout, audit.stderr, sep="", end="")
            bars.append({"name": "the ledger adds up", "figure": audit.returncode, "bound": 0, "unit": "exit code",
                         "sense": "at most", "holds": audit.returncode == 0})
        except (RuntimeError, OSError) as why:
            print(f"bench cluster: {why}", file=sys.stderr)
            return 2
        finally:
            cluster.end()
    for bar in bars:
        if not bar["holds"]:
            print(f"MISSED {bar['name']}: {bar['figure']:.2f} {bar['unit']} (at most {bar['bound']:g})")
    with open(f"{args.out}/cluster.json", "w") as out:
        json.dump({"name": "cluster", "machine": platform.node(), "rows": rows, "bars": bars}, out, indent=2)
    return 0 if all(bar["holds"] for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
