#!/usr/bin/env bash
# check_public_includes.sh COMPILER FLAG...: fails when <fsdp/fsdp.h> reaches, through any header, a private library
# or record_function.h, whose layout depends on NDEBUG.
set -euo pipefail

headers=$(echo '#include <fsdp/fsdp.h>' | "$@" -std=c++20 -x c++ -M - | tr -s ' \\' '\n')
if ! grep -q '/fsdp/fsdp\.h$' <<<"$headers"; then
  echo "the compiler listed no headers"
  exit 1
fi
if grep -E '/(record_function\.h|nccl\.h|xxhash\.h|(gtest|gmock|benchmark|CLI|yaml-cpp|nlohmann)/[^/]*)$' <<<"$headers"; then
  echo "these headers must not be reached from <fsdp/fsdp.h>"
  exit 1
fi
