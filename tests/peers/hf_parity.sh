#!/usr/bin/env bash
# hf_parity.sh RUN_MODEL: runs hf_parity.py in the peers' environment.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$("$here/../../scripts/setup-peers" | tail -n 1)
exec "$python" "$here/hf_parity.py" "$@"
