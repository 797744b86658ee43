#!/usr/bin/env bash
# Starts an example under a real launcher and checks that all ranks met and moved data.
#
# Usage: run.sh torchrun|torchrun_rank0_store|torchrun_restart|mpirun|srun BIN_FOLDER
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
launcher=$1
hello=$2/01_hello_ranks
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export FSDP_DEVICE=cpu OMP_NUM_THREADS=1

torch_bin() { dirname "$("$root/scripts/setup-peers" | tail -n 1)"; }

# Every rank has said hello and the results were right, exactly once.
check() {
  for rank in 0 1 2 3; do
    grep -q "hello from rank $rank of 4" "$work/out" || { echo "rank $rank said nothing"; cat "$work/out"; exit 1; }
  done
  [ "$(grep -c 'every result was checked: ok' "$work/out")" = 1 ] || { cat "$work/out"; exit 1; }
  grep -q "rank and size from $1" "$work/out" || { echo "the source is not $1"; cat "$work/out"; exit 1; }
  echo "$launcher: four ranks met and moved data"
}

case $launcher in
  torchrun)
    "$(torch_bin)/torchrun" --standalone --no-python --nproc-per-node 4 "$hello" >"$work/out" 2>&1 || { cat "$work/out"; exit 1; }
    check 'RANK and WORLD_SIZE (torchrun)'
    ;;
  torchrun_rank0_store) # without the agent's store rank 0 serves one
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 "$(torch_bin)/torchrun" --standalone --no-python --nproc-per-node 4 "$hello" \
      >"$work/out" 2>&1 || { cat "$work/out"; exit 1; }
    check 'RANK and WORLD_SIZE (torchrun)'
    ;;
  torchrun_restart) # ranks of the second attempt meet at the store that the first one used
    cat >"$work/flaky" <<END
#!/bin/sh
[ "\$TORCHELASTIC_RESTART_COUNT" = 0 ] && [ "\$RANK" = 2 ] || exec "$hello"
"$hello" >"$work/first" 2>&1 &
until grep -q "hello from rank 2" "$work/first"; do sleep 0.02; done # a group has been made
kill -9 \$!
exit 1
END
    chmod +x "$work/flaky"
    "$(torch_bin)/torchrun" --standalone --max-restarts 1 --no-python --nproc-per-node 4 "$work/flaky" >"$work/out" 2>&1 ||
      { cat "$work/out"; exit 1; }
    check 'RANK and WORLD_SIZE (torchrun)'
    ;;
  mpirun)
    "$root/scripts/setup-peers" >/dev/null
    mpirun --allow-run-as-root --oversubscribe --bind-to none -n 4 "$hello" >"$work/out" 2>&1 || { cat "$work/out"; exit 1; }
    check 'OMPI_COMM_WORLD_RANK (OpenMPI)'
    ;;
  srun)
    "$root/scripts/setup-peers" >/dev/null
    . "$here/slurm.sh"
    slurm_start "$work/slurm"
    trap 'slurm_stop "$work/slurm"; rm -rf "$work"' EXIT
    # The made-up node names do not resolve, so the meeting point is given.
    MASTER_ADDR=127.0.0.1 timeout 60 srun -N2 -n4 --ntasks-per-node=2 "$hello" >"$work/out" 2>&1 || { cat "$work/out" "$work"/slurm/*.log; exit 1; }
    check 'SLURM_PROCID and SLURM_NTASKS (srun)'
    ;;
  *)
    echo "unknown launcher $launcher"
    exit 2
    ;;
esac
