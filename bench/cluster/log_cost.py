# SPDX-License-Identifier: Apache-2.0
"""What a commit costs where it may lie: in a file that is appended to and synced, or on a quorum of three.

The quorum is etcd's: one put, which a majority of its members has synced when it answers, over a connection that stays.
Members are processes of this host and share its disk, so that their network costs nothing.
"""

import argparse
import base64
import http.client
import json
import os
import statistics
import tempfile
import time

from cluster import Cluster


def times(count, act):
    """Milliseconds of each of `count` calls, sorted."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        act()
        took.append(1e3 * (time.perf_counter() - began))
    return sorted(took)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=1000, help="of each kind [%(default)s]")
    parser.add_argument("--bytes", type=int, default=1024, help="of an entry [%(default)s]")
    parser.add_argument("--folder", help="on the disk to measure [a temporary one]")
    args = parser.parse_args()
    entry = os.urandom(args.bytes)
    with tempfile.TemporaryDirectory(prefix="bulkhead-log-", dir=args.folder) as folder:
        log = os.open(folder + "/commit.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

        def append():
            os.write(log, entry)
            os.fdatasync(log)

        cluster = Cluster(folder + "/c", "", controllers=0, agents=0)
        try:
            put = json.dumps({"key": base64.b64encode(b"log").decode(), "value": base64.b64encode(entry).decode()})
            cluster.until("etcd's leader", lambda: cluster.etcdctl("put", "a", "b") or None)
            quorum = http.client.HTTPConnection("127.0.0.1", cluster.clients[cluster.etcd_leader()])

            def commit():
                quorum.request("POST", "/v3/kv/put", put)
                answer = quorum.getresponse()
                if b"revision" not in answer.read() or answer.status != 200:
                    raise RuntimeError(f"etcd answers {answer.status}")

            print(f"{'where':16} {args.bytes} bytes, {args.commits} times, ms: median    90 %    99 %", flush=True)
            for _ in range(2):
                for name, act in (("append and sync", append), ("quorum of 3", commit)):
                    took = times(args.commits, act)
                    at = [statistics.median(took), took[int(0.9 * len(took))], took[int(0.99 * len(took))]]
                    print(f"{name:16} {'':{len(str(args.bytes)) + len(str(args.commits)) + 20}}"
                          f" {at[0]:8.2f} {at[1]:7.2f} {at[2]:7.2f}", flush=True)
        finally:
            cluster.end()


if __name__ == "__main__":
    main()
