#!/usr/bin/env bash
# peer.sh SCRIPT WRITE_RUN...: runs SCRIPT in the peers' environment. Exits 77 (skipped) without it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$("$here/../../../scripts/setup-peers" | tail -n 1) || { echo "skipped: no environment of peers"; exit 77; }
script=$1
shift
PYTHONDONTWRITEBYTECODE=1 exec "$python" -W ignore "$here/$script" "$@"
