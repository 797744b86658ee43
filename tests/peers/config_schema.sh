#!/usr/bin/env bash
# config_schema.sh FSDP: runs config_schema.py in the peers' environment. Exits 77 (skipped) without it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$("$here/../../scripts/setup-peers" | tail -n 1) || { echo "skipped: no environment of peers"; exit 77; }
exec "$python" "$here/config_schema.py" "$@"
