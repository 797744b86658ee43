#!/usr/bin/env bash
# torchscript.sh TRAIN_SCRIPT: PyTorch writes models and trains them, TRAIN_SCRIPT does so sharded and compares.
# Exits 77 (skipped) where there is no PyTorch and it cannot be installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$("$here/../../scripts/setup-peers" | tail -n 1) || { echo "skipped: no environment of peers"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -W ignore::DeprecationWarning "$here/write_scripts.py" "$folder"
"$1" "$folder"
