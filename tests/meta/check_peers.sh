#!/usr/bin/env bash
# The peers' environment is made when it is not there, and holds a working PyTorch.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=$(scripts/setup-peers | tail -n 1)
"$python" -c 'import torch; assert torch.arange(4).sum().item() == 6; print("torch", torch.__version__)'
