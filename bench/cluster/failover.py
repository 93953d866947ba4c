# SPDX-License-Identifier: Apache-2.0
"""What it costs a job when the controller that leads is killed, stopped or cut off, or etcd is.

Three controllers, three members of etcd, three agents and a job of three ranks on this host. Each round does one thing
at a random moment, measures the longest time in which no step was committed, and puts things back. When all of etcd is
away nobody may lead: there the time counts from its return. At the end the ledger has to add up.
"""

import argparse
import os
import random
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
    args = parser.parse_args()
    moments = random.Random(args.seed)
    missed = 0
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
                missed += sum(wait > args.limit for wait in waits)
                print(
                    f"{kind:12} {args.rounds:6}  {statistics.median(waits):21.2f} "
                    f"{waits[int(0.9 * (len(waits) - 1))]:6.2f} {waits[-1]:6.2f}  {moved}",
                    flush=True,
                )
            cluster.until("a job that stops", lambda: cluster.ctl("stop", "--yes").returncode == 0 or None)
            cluster.until("its end", lambda: "finished" in cluster.ctl("jobs").stdout or None)
            audit = cluster.ctl("ledger", "--check")
            print(audit.stdout, audit.stderr, sep="", end="")
            if missed:
                print(f"{missed} rounds took longer than {args.limit:g} s")
            return 1 if missed or audit.returncode != 0 else 0
        finally:
            cluster.end()


if __name__ == "__main__":
    sys.exit(main())
