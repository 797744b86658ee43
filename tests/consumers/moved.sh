#!/usr/bin/env bash
# moved.sh PREFIX: the LibTorch that fsdp was built with is gone from its place. The package finds another where the user
# says, and says what to set where it finds none. Environment: as run.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
moved=$WORK/moved
log=$WORK/moved.log
rm -rf "$moved"
mkdir -p "$moved"
cp -r "$1" "$moved/prefix"
config=$(find "$moved/prefix" -name fsdpConfig.cmake)
sed -i "s|$TORCH|/no/such/place|g" "$config"
grep -q /no/such/place "$config" || { echo "the package does not name the LibTorch it was built with"; exit 1; }

# configure NAME OPTION...
configure() {
  local name=$1
  shift
  "$CMAKE" -S "$here/find_package" -B "$moved/$name" -G Ninja "-DCMAKE_CXX_COMPILER_LAUNCHER=$LAUNCHER" "$@" >"$log" 2>&1
}
found() { grep -q "^CMAKE_PROJECT_NAME" "$moved/$1/CMakeCache.txt" && echo "$1: found"; }

if configure nowhere "-DCMAKE_PREFIX_PATH=$moved/prefix"; then
  echo "found a LibTorch where there is none"
  exit 1
fi
said=$(tr -s ' \n' ' ' <"$log")
for word in /no/such/place FSDP_TORCH_ROOT Torch_DIR CMAKE_PREFIX_PATH; do
  [[ $said == *"$word"* ]] || { echo "the error does not name $word:"; cat "$log"; exit 1; }
done
configure by_torch_dir "-DCMAKE_PREFIX_PATH=$moved/prefix" "-DTorch_DIR=$TORCH/share/cmake/Torch" || { cat "$log"; exit 1; }
found by_torch_dir
configure by_prefix_path "-DCMAKE_PREFIX_PATH=$moved/prefix;$TORCH" || { cat "$log"; exit 1; }
found by_prefix_path
configure by_cmake_folder "-DCMAKE_PREFIX_PATH=$TORCH/share/cmake;$moved/prefix" || { cat "$log"; exit 1; }
found by_cmake_folder
configure by_root "-DCMAKE_PREFIX_PATH=$moved/prefix" "-DFSDP_TORCH_ROOT=$TORCH" || { cat "$log"; exit 1; }
found by_root
FSDP_TORCH_ROOT=$TORCH configure by_environment "-DCMAKE_PREFIX_PATH=$moved/prefix" || { cat "$log"; exit 1; }
found by_environment
