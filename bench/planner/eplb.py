# SPDX-License-Identifier: Apache-2.0
"""EPLB's steps, written from their description, in NumPy, all layers at once, to time and to compare.

Hierarchical: router groups are packed into nodes (heaviest first, equal counts); inside each node the
expert with most load for each of its replicas gets another one until the node's slots are full; the
replicas are packed into the node's GPUs (heaviest first, equal counts). Global: one node, one group.

Reads float64 loads [layers][experts]; prints one line of JSON: best seconds of five, balancedness
(mean / max of GPU load, a replica carrying an equal share) as mean over layers and of the worst one.
"""
import argparse
import json
import time

import numpy as np


def pack(weight, bins):
    """[rows, items] -> bin of each item; as many items in each bin."""
    rows, items = weight.shape
    each = items // bins
    order = np.argsort(-weight, axis=1, kind="stable")
    load = np.zeros((rows, bins))
    count = np.zeros((rows, bins), dtype=np.int64)
    where = np.zeros((rows, items), dtype=np.int64)
    row = np.arange(rows)
    for i in range(items):
        item = order[:, i]
        chosen = np.where(count < each, load, np.inf).argmin(axis=1)
        where[row, item] = chosen
        load[row, chosen] += weight[row, item]
        count[row, chosen] += 1
    return where


def replicate(weight, slots):
    """[rows, experts] -> expert of each of the slots, and replicas of each expert."""
    rows, experts = weight.shape
    count = np.ones((rows, experts), dtype=np.int64)
    expert = np.empty((rows, slots), dtype=np.int64)
    expert[:, :experts] = np.arange(experts)
    row = np.arange(rows)
    for slot in range(experts, slots):
        most = (weight / count).argmax(axis=1)
        expert[:, slot] = most
        count[row, most] += 1
    return expert, count


def plan(load, slots, groups, nodes, gpus):
    """-> [layers, slots] expert of each slot, GPU by GPU."""
    layers, experts = load.shape
    if groups % nodes != 0:
        groups = nodes = 1
    size = experts // groups
    node_of_group = pack(load.reshape(layers, groups, size).sum(axis=2), nodes)
    by_node = np.argsort(node_of_group, axis=1, kind="stable")
    logical = (by_node[:, :, None] * size + np.arange(size)).reshape(layers * nodes, experts // nodes)
    mine = np.take_along_axis(np.repeat(load, nodes, axis=0), logical, axis=1)
    expert, count = replicate(mine, slots // nodes)
    share = np.take_along_axis(mine / count, expert, axis=1)
    gpu = pack(share, gpus // nodes)
    order = np.argsort(gpu, axis=1, kind="stable")
    placed = np.take_along_axis(np.take_along_axis(logical, expert, axis=1), order, axis=1)
    return placed.reshape(layers, slots)


def balancedness(load, placed, gpus):
    layers, experts = load.shape
    count = np.zeros((layers, experts))
    np.add.at(count, (np.arange(layers)[:, None], placed), 1)
    share = np.take_along_axis(load / count, placed, axis=1).reshape(layers, gpus, -1).sum(axis=2)
    return share.mean(axis=1) / share.max(axis=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", required=True)
    for name in ("layers", "slots", "groups", "nodes", "gpus"):
        parser.add_argument("--" + name, type=int, required=True)
    args = parser.parse_args()
    load = np.fromfile(args.loads).reshape(args.layers, -1)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        placed = plan(load, args.slots, args.groups, args.nodes, args.gpus)
        best = min(best, time.perf_counter() - start)
    even = balancedness(load, placed, args.gpus)
    print(json.dumps({"seconds": best, "mean": even.mean(), "worst": even.min()}))


main()
