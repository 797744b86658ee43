#!/usr/bin/env bash
# check_setup.sh ROOT HELLO FSDP: what make and the command promise. `make install` builds nothing but the library, the
# models, the trainer and the command. `fsdp run` starts ranks, and tells that one failed.
set -euo pipefail
cd "$1"
install=$(make -n install PREFIX=/nowhere)
grep -q -e '--build build/release .*--target fsdp --target fsdp_models --target fsdp_app --target fsdp_train --target fsdp_worker$' <<<"$install" || { echo "make install builds more than the library, the models, the trainer and the command:"; echo "$install"; exit 1; }

out=$(FSDP_DEVICE=cpu OMP_NUM_THREADS=1 "$3" run --nproc-per-node 2 "$2" 2>&1) || { echo "$out"; exit 1; }
for rank in 0 1; do
  grep -q "hello from rank $rank of 2" <<<"$out" || { echo "rank $rank said nothing:"; echo "$out"; exit 1; }
done
if "$3" run --nproc-per-node 2 sh -c 'test $RANK = 0' 2>/dev/null; then
  echo "fsdp run does not tell that a rank failed"
  exit 1
fi
