#!/usr/bin/env bash
# run.sh CASE: configures, builds and runs the project in the folder CASE as a user would. Some cases differ: `prefix`
# installs fsdp for the others, `command` runs the installed fsdp command, `moved` looks for LibTorch elsewhere (moved.sh), and
# `with_peer_torch` is with_torch_package with the whole PyTorch of the peers.
# Exits 77 (skipped) where the case cannot be tried.
#
# From ctest: CMAKE, SOURCE (of fsdp), BUILD (of fsdp), WORK (a folder for us), TORCH (of the build), LAUNCHER (ccache),
# and BUILD_TYPE, CXX_FLAGS and OPTIONS of the build, so that ccache has already seen the files.
set -euo pipefail
case=$1
project=$1
prefix=$WORK/prefix
here=$(cd "$(dirname "$0")" && pwd)
# What is tested are the defaults: the user's own settings must not leak in.
unset FSDP_TORCH_ROOT RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
export CCACHE_NOHASHDIR=1

options=("-DCMAKE_CXX_COMPILER_LAUNCHER=$LAUNCHER" -DCMAKE_BUILD_TYPE=Release "-DCMAKE_PREFIX_PATH=$prefix")
case $case in
  prefix)
    rm -rf "$prefix"
    exec "$CMAKE" --install "$BUILD" --prefix "$prefix"
    ;;
  add_subdirectory)
    options+=("-DFSDP_SOURCE=$SOURCE" "-DFSDP_TORCH_ROOT=$TORCH" "-DCMAKE_BUILD_TYPE=$BUILD_TYPE"
      "-DCMAKE_CXX_FLAGS_${BUILD_TYPE^^}=$CXX_FLAGS" $OPTIONS)
    ;;
  with_torch_package) options+=("-DTorch_DIR=$TORCH/share/cmake/Torch") ;;
  with_peer_torch)
    project=with_torch_package
    python=$("$SOURCE/scripts/setup-peers" | tail -n 1)
    options+=("-DTorch_DIR=$("$python" -c 'import torch; print(torch.utils.cmake_prefix_path)')/Torch")
    ;;
  command)
    cd "$WORK"
    unset FSDP_WORKER
    exec "$prefix/bin/fsdp" train --mode smoke --devices 2
    ;;
  moved) exec "$here/moved.sh" "$prefix" ;;
  debug_without_ndebug) options+=(-DCMAKE_BUILD_TYPE=Debug) ;;
esac

log=$WORK/$case.log
rm -rf "${WORK:?}/$case"
mkdir -p "$WORK"
if ! "$CMAKE" -S "$here/$project" -B "$WORK/$case" -G Ninja "${options[@]}" >"$log" 2>&1; then
  cat "$log"
  if [ $project = with_torch_package ] && ! grep -q 'find_package(Torch) worked' "$log"; then
    echo "skipped: find_package(Torch) itself does not work here"
    exit 77
  fi
  exit 1
fi
"$CMAKE" --build "$WORK/$case" -j 2

# The small LibTorch lacks libraries that find_package(Torch) links; there, that it builds has to do.
if [ "$case" = with_torch_package ] && ldd "$WORK/$case/consumer" | grep 'not found'; then
  echo "built, but not run: libraries of the whole PyTorch are not installed"
  exit 0
fi
cd "$WORK/$case"  # what it writes stays there
./consumer
