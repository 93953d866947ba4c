#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kit_test.sh BUILD: the kit of that build in a root that has a shell, core utilities and the C library:
# every part of the proof begins there and says that no GPU answers.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(cd "$1" && pwd)
if ! unshare -rm true 2>/dev/null; then
  echo "skipped: this user may not make a namespace"
  exit 0
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
bench/gpu/pack "$build"

give() { # a program, or a library, at its own place
  install -D "$(readlink -f "$1")" "$root$1"
  ldd "$1" 2>/dev/null | grep -o '/[^ )]*' | while read -r library; do
    [ -e "$root$library" ] || install -D "$(readlink -f "$library")" "$root$library"
  done
}
for program in bash cat cp cut date dirname env grep head ln mkdir printf pwd rm sed tail timeout tr; do
  give "/usr/bin/$program"
done
ln -s usr/bin "$root/bin"
# What programs of the kit take of the C library without naming it to those above.
for library in m dl pthread rt resolv; do
  for file in /lib/x86_64-linux-gnu/lib$library.so.*; do [ -e "$root$file" ] || give "$file"; done
done
mkdir -p "$root/dev" "$root/proc" "$root/tmp" "$root/kit"
tar -C "$root/kit" -xzf "$build/gpu-kit.tar.gz"

code=0
unshare -rm bash -c 'mount --rbind /dev "$1/dev" && mount --rbind /proc "$1/proc" &&
  exec env -i PATH=/usr/bin "$(command -v chroot)" "$1" /usr/bin/bash /kit/dev gpu prove --minutes 10 --out /proof' - "$root" \
  >"$root/said" 2>&1 || code=$?
cat "$root/said"
parts=$(grep -c ' s  ' "$root/said")
silent=$(grep ' s  ' "$root/said" | grep -vc 'no GPU answers' || true)
if [ $code != 2 ] || [ "$parts" -lt 10 ] || [ "$silent" != 0 ]; then
  echo "expected code 2 and that no GPU answers of each part; code $code, $silent of $parts said otherwise"
  for log in "$root"/proof/*.log; do echo "== $log" && tail -n 5 "$log"; done
  exit 1
fi
grep -q '"card": "none"' "$root/proof/gpu.json"
grep -q '| device | ' "$root/proof/gpu.md"

# A whole job starts programs of the kit by their places: here the kit lies where the checkout is.
if /usr/bin/python3 -c 'import torch' 2>/dev/null; then
  inside=$(sed -n 2p "$root/kit/kit")
  unshare -rm bash -c 'mount --bind "$1/kit" "$2" && cd "$2" && exec env LD_LIBRARY_PATH="$2/lib" \
    BULKHEAD_PYTHON=/usr/bin/python3 "$3/tests/gpt_job_test" --gtest_filter="*AKilledReplica*"' - "$root" "$PWD" "$inside"
else
  echo "without torch for /usr/bin/python3 (./dev deps --torch) no whole job was run from the kit"
fi
