#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install.sh BUILD: what is installed runs a job by itself, and has what a package is to have.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cmake --install "$1" --prefix "$dir" >"$dir/log"
for file in bin/bulkheadd lib/bulkhead/bulkhead_workload_llama_moe.so share/bulkhead/workloads/llama_moe/tiny.toml \
  share/bulkhead/resources/jobs/demo.toml share/bulkhead/resources/prometheus/alerts.yml \
  share/bulkhead/resources/kubernetes/base/kustomization.yaml \
  share/bulkhead/python/bulkhead/__init__.py share/bulkhead/docs/clusters.md lib/sysusers.d/bulkhead.conf; do
  [ -f "$dir/$file" ] || { echo "not installed: $file"; exit 1; }
done
# A manual page names each verb, those below another too.
[ -f "$dir/share/man/man8/bulkheadd.8" ] || { echo "not installed: bulkheadd.8"; exit 1; }
for verb in up 'plan solve' 'slurm submit'; do
  grep -qx "\.SS bulkheadctl $verb" "$dir/share/man/man1/bulkheadctl.1" || { echo "no manual of $verb"; exit 1; }
done
HOME=$dir "$dir/bin/bulkheadctl" up --replicas 2 --shards 1 --steps 3 --db "$dir/run.db" | tee "$dir/out"
grep -q 'adds up: 3 steps' "$dir/out"
# Each unit's sandbox; 0 is none at all that is left to close.
command -v systemd-analyze >/dev/null || exit 0
for unit in "$dir"/lib/systemd/system/*.service; do
  systemd-analyze security --offline=true --threshold=20 --no-pager "$unit" >"$dir/unit" 2>&1 ||
    { tail -1 "$dir/unit"; exit 1; }
done
