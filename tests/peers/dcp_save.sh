#!/usr/bin/env bash
# dcp_save.sh SAVE_RUN FSDP: PyTorch's FSDP2 saves safetensors through torch.distributed.checkpoint, our ranks load them.
# Exits 77 (skipped) where there is no PyTorch and it cannot be installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$("$here/../../scripts/setup-peers" | tail -n 1) || { echo "skipped: no environment of peers"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -W ignore "$here/dcp_save.py" "$folder" "$1" "$2"
