#!/usr/bin/env bash
# train_loss.sh FSDP WORKER: runs train_loss.py in the peers' environment.
# Exits 77 (skipped) where there is no PyTorch and it cannot be installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$("$here/../../scripts/setup-peers" | tail -n 1) || { echo "skipped: no environment of peers"; exit 77; }
PYTHONDONTWRITEBYTECODE=1 exec "$python" -W ignore "$here/train_loss.py" "$@"
