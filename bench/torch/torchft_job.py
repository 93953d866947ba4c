# SPDX-License-Identifier: Apache-2.0
"""A job on torchft: its lighthouse, four replicas, planned kills, and whoever ended started again at once.

--plan: JSON, [[steps with everybody before it, replica, phase], ...].
--out: JSON, what happened, times in Unix nanoseconds:
  {"steps": [[ns, replica, step, committed, contributed], ...],
   "kills": [[ns, replica], ...], "starts": [[ns, replica], ...]}
Ends with one line and a status above 0 where that cannot be had.
"""
import argparse
import json
import os
import subprocess
import sys
import threading
import time

PATIENCE_S = 120
LEAST = 2  # replicas; fewer wait, as in the job under Bulkhead


class Job:
    def __init__(self, args, log):
        self.args = args
        self.log = log
        self.changed = threading.Condition()
        self.record = {"steps": [], "kills": [], "starts": []}
        self.processes = {}
        self.contributed = {}  # by replica: the last step it did, None since it failed to
        self.whole = 0  # steps that everybody contributed to
        self.ending = False

    def keep_running(self, index):
        a = self.args
        command = [sys.executable, os.path.join(os.path.dirname(__file__), "torchft_replica.py"),
                   "--replica", index, "--heartbeat-ms", a.heartbeat_ms,
                   "--replicas", a.replicas, "--gloo-ms", a.gloo_ms, "--least", LEAST, *a.program]
        while not self.ending:
            self.record["starts"].append([time.time_ns(), index])
            process = subprocess.Popen([str(word) for word in command], text=True, stderr=self.log,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.processes[index] = process
            for line in process.stdout:
                with self.changed:
                    self.take(index, *json.loads(line))
                    self.changed.notify_all()
            process.wait()

    def take(self, index, at, step=None, committed=False, contributed=False):
        if step is None:
            self.record["kills"].append([at, index])
            self.contributed[index] = None
            return
        self.record["steps"].append([at, index, step, committed, contributed])
        self.contributed[index] = step if contributed else None
        everybody = list(self.contributed.values()) == [step] * self.args.replicas
        self.whole += contributed and everybody

    def await_whole(self, more):
        """Waits until so many more steps are committed by everybody."""
        with self.changed:
            goal = self.whole + more
            if not self.changed.wait_for(lambda: self.whole >= goal, PATIENCE_S):
                raise TimeoutError(f"no step of all {self.args.replicas} replicas within {PATIENCE_S} s; "
                                   f"see {self.args.out}.log")

    def kill(self, index, phase):
        with self.changed:
            goal = len(self.record["kills"]) + 1
            self.processes[index].stdin.write(phase + "\n")
            self.processes[index].stdin.flush()
            if not self.changed.wait_for(lambda: len(self.record["kills"]) >= goal, PATIENCE_S):
                raise TimeoutError(f"replica {index} did not reach the phase {phase}")

    def run(self, plan):
        for index in range(self.args.replicas):
            threading.Thread(target=self.keep_running, args=(index,), daemon=True).start()
        self.await_whole(60)  # warm, and enough of them to say how long a step takes
        for steps, index, phase in plan:
            self.await_whole(steps)
            self.kill(index, phase)
        self.await_whole(5)

    def end(self):
        self.ending = True
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


def measure(args, log):
    import torchft.coordination
    os.environ["OMP_NUM_THREADS"] = "1"
    lighthouse = torchft.coordination.LighthouseServer(
        bind="[::]:0", min_replicas=LEAST, join_timeout_ms=args.join_ms, quorum_tick_ms=args.tick_ms,
        heartbeat_timeout_ms=args.heartbeat_timeout_ms)
    os.environ["TORCHFT_LIGHTHOUSE"] = lighthouse.address()
    with open(args.plan) as file:
        plan = json.load(file)
    job = Job(args, log)
    try:
        job.run(plan)
    finally:
        job.end()
    return job.record


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("plan", "out"):
        parser.add_argument("--" + name, required=True)
    for name in ("replicas", "heartbeat-ms", "heartbeat-timeout-ms", "tick-ms", "join-ms", "gloo-ms"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("program", nargs="*", help="arguments of examples/gpt")
    args = parser.parse_args()
    refusals = os.dup(2)
    log = open(args.out + ".log", "w")
    for descriptor in (1, 2):  # the lighthouse, in this process, writes many lines a step
        os.dup2(log.fileno(), descriptor)
    try:
        record = measure(args, log)
    except Exception as error:
        os.write(refusals, f"{type(error).__name__}: {error}\n".encode())
        sys.exit(1)
    with open(args.out, "w") as file:
        json.dump(record, file)


main()
