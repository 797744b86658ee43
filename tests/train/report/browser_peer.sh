#!/usr/bin/env bash
# browser_peer.sh FSDP WRITE_RUN: runs browser_peer.py, with Chromium installed where it is missing. Exits 77 (skipped)
# without it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../../scripts/packages.sh"
have chromium || install_packages chromium || { echo "skipped: no chromium"; exit 77; }
PYTHONDONTWRITEBYTECODE=1 exec python3 "$here/browser_peer.py" "$@"
