#!/usr/bin/env bash
# dcp_load.sh SAVE_RUN: our ranks save, PyTorch's FSDP2 loads through torch.distributed.checkpoint.
# Exits 77 (skipped) where there is no PyTorch and it cannot be installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$("$here/../../scripts/setup-peers" | tail -n 1) || { echo "skipped: no environment of peers"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$1" "$folder"
"$python" -W ignore "$here/dcp_load.py" "$folder"
