#!/usr/bin/env bash
# check_public_includes.sh COMPILER FLAG...: fails when <fsdp/fsdp.h> reaches, through any header, a private library.
set -euo pipefail

headers=$(echo '#include <fsdp/fsdp.h>' | "$@" -std=c++20 -x c++ -M - | tr -s ' \\' '\n')
if ! grep -q '/fsdp/fsdp\.h$' <<<"$headers"; then
  echo "the compiler listed no headers"
  exit 1
fi
if grep -E '/(nccl\.h|xxhash\.h|(gtest|gmock|benchmark|CLI|yaml-cpp|nlohmann)/[^/]*)$' <<<"$headers"; then
  echo "these headers must not be reached from <fsdp/fsdp.h>"
  exit 1
fi
