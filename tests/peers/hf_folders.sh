#!/usr/bin/env bash
# hf_folders.sh FSDP: runs hf_folders.py in the peers' environment.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$("$here/../../scripts/setup-peers" | tail -n 1)
exec "$python" "$here/hf_folders.py" "$@"
