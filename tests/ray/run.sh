#!/usr/bin/env bash
# run.sh TEST FSDP: runs a test of fsdp_ray in the peers' environment, which has Ray. Exits 77 (skipped) without it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$("$here/../../scripts/setup-peers" | tail -n 1) || { echo "skipped: no environment of peers"; exit 77; }
exec "$python" "$here/$1_test.py" "${@:2}"
