# SPDX-License-Identifier: Apache-2.0
"""A cluster on one host: three members of etcd, controllers, agents and a job, as processes of their own."""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import time


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Link:
    """Passes connections on to a port. While it is cut, bytes stay where they are and nobody is told."""

    def __init__(self, to):
        self.to = to
        self.open = threading.Event()
        self.open.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            near, _ = self.listener.accept()
            self.open.wait()
            try:
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                near.close()
                continue
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source, sink):
        try:
            while data := source.recv(65536):
                self.open.wait()
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Cluster:
    """Everything lies in `folder`, which is emptied. Controllers are `c0`, `c1`, ...; agents `n0`, `n1`, ...; members
    of etcd `e0` to `e2`. Each controller reaches each member by a Link of its own, `links[controller][member]`."""

    MEMBERS = 3

    def __init__(self, folder, binaries, controllers=3, agents=3):
        self.folder, self.binaries = folder, binaries
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder + "/state", mode=0o700)
        self.processes = {}
        ports = free_ports(2 * self.MEMBERS + 2 * controllers)
        self.clients, self.peers = ports[: self.MEMBERS], ports[self.MEMBERS : 2 * self.MEMBERS]
        self.control, self.listen = ports[2 * self.MEMBERS :: 2], ports[2 * self.MEMBERS + 1 :: 2]
        self.links = [[Link(port) for port in self.clients] for _ in range(controllers)]
        for i in range(self.MEMBERS):
            self.start_etcd(i)
        for i in range(controllers):
            self.start_controller(i)
        for i in range(agents):
            self.start_agent(i)

    def _spawn(self, name, command):
        with open(f"{self.folder}/{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )

    def start_etcd(self, i):
        members = ",".join(f"e{n}=http://127.0.0.1:{p}" for n, p in enumerate(self.peers))
        client, peer = f"http://127.0.0.1:{self.clients[i]}", f"http://127.0.0.1:{self.peers[i]}"
        self._spawn(
            f"e{i}",
            ["etcd", "--name", f"e{i}", "--data-dir", f"{self.folder}/e{i}", "--listen-client-urls", client]
            + ["--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            + ["--initial-cluster", members, "--initial-cluster-token", self.folder],
        )

    def start_controller(self, i):
        self._spawn(
            f"c{i}",
            [self.binaries + "/bulkheadd", "--role=controller", "--node", f"c{i}"]
            + ["--state-dir", self.folder + "/state", "--socket", f"{self.folder}/c{i}.sock"]
            + ["--control-listen", f"127.0.0.1:{self.control[i]}", "--listen", f"127.0.0.1:{self.listen[i]}"]
            + ["--token-file", self.folder + "/state/admin.token"]
            + [a for link in self.links[i] for a in ("--etcd", f"127.0.0.1:{link.port}")],
        )

    def start_agent(self, i):
        self._spawn(
            f"n{i}",
            [self.binaries + "/bulkheadd", "--role=agent", "--node", f"n{i}", "--address", f"127.0.0.{i + 1}"]
            + ["--state-dir", f"{self.folder}/n{i}-state", "--slots", "16"]
            + ["--control-token", self.folder + "/state/control.token"]
            + [a for port in self.control for a in ("--controller", f"127.0.0.1:{port}")],
        )

    def ctl(self, *args, limit=60):
        """bulkheadctl of an operator, who names all controllers."""
        target = ",".join(f"127.0.0.1:{port}" for port in self.listen)
        command = [self.binaries + "/bulkheadctl", *args, "-t", target]
        command += ["--token-file", self.folder + "/state/admin.token"]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit)

    def etcdctl(self, *args):
        endpoints = ",".join(f"http://127.0.0.1:{p}" for p in self.clients)
        return subprocess.run(
            ["etcdctl", "--endpoints", endpoints, *args],
            env=dict(os.environ, ETCDCTL_API="3"),
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        ).stdout.strip()

    def leader(self):
        """Index of the controller that has the key, or None."""
        found = self.etcdctl("get", "--prefix", "bulkhead/lead/", "--print-value-only")
        return int(found[1:]) if found.startswith("c") else None

    def etcd_leader(self):
        """Index of the member that the others follow."""
        for line in self.etcdctl("endpoint", "status").splitlines():
            fields = [field.strip() for field in line.split(",")]
            if fields[4] == "true":
                return self.clients.index(int(fields[0].rsplit(":", 1)[1]))
        raise RuntimeError("etcd has no leader")

    def until(self, what, condition, limit=60):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if (found := condition()) is not None:
                return found
            time.sleep(0.02)
        raise RuntimeError(f"{limit} s without: {what}")

    def submit(self, replicas, extra=""):
        """Starts a small job on made text."""
        with open(self.folder + "/text.txt", "w") as text:
            text.write("a" * 20000 + "b" * 20000)
        with open(self.folder + "/small.toml", "w") as job:
            job.write(
                f'name = "small"\nreplicas = {replicas}\nshards = 1\n{extra}\n[model]\nsize = "tiny"\n'
                '[policies]\nmin_replicas = 1\n[[domains]]\nname = "t"\npaths = ["text.txt"]\n'
            )
        self.until(
            "a job that starts",
            lambda: self.ctl("start", self.folder + "/small.toml").returncode == 0 or None,
        )

    def query(self, sql, *args):
        """The first row of what the history says, or None."""
        try:
            db = sqlite3.connect(f"file:{self.folder}/state/runs.db?mode=ro", uri=True, timeout=5)
            try:
                return db.execute(sql, args).fetchone()
            finally:
                db.close()
        except sqlite3.OperationalError:
            return None

    def await_step_after(self, unix_ns, limit=60):
        """The time in ns at which the first step was committed after that moment."""

        def first():
            row = self.query("select min(time_ns) from steps where time_ns > ?", unix_ns)
            return row[0] if row else None

        return self.until("a step", first, limit)

    def send(self, name, number):
        self.processes[name].send_signal(number)

    def kill(self, name):
        self.send(name, signal.SIGKILL)
        self.processes.pop(name).wait()

    def end(self):
        for process in self.processes.values():
            process.kill()
        for pid in filter(str.isdigit, os.listdir("/proc")):  # ranks
            try:
                with open(f"/proc/{pid}/cmdline") as line:
                    if self.folder + "/" in line.read() and int(pid) != os.getpid():
                        os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass
        for process in self.processes.values():
            process.wait()
