# Finds LibTorch and makes the imported targets fsdp::torch and, where a CUDA runtime lies beside it, fsdp::cudart.
#
# We do not use find_package(Torch): it fails without a CUDA toolkit, and links libtorch_cuda.
# Used by our own build and, installed, by fsdpConfig.cmake.
include_guard(GLOBAL)

set(FSDP_TORCH_ROOT "" CACHE PATH "LibTorch to use: a `torch` folder of a wheel, a libtorch distribution, or a venv")

# The folder that holds lib/ and include/ of LibTorch, for a root the user may name in several ways; empty if none.
function(_fsdp_torch_dir root out)
  file(GLOB in_venv "${root}/lib*/python3*/site-packages/torch" "${root}/lib*/python3*/dist-packages/torch")
  foreach(dir IN ITEMS "${root}" "${root}/torch" "${root}/libtorch" LISTS in_venv)
    if(EXISTS "${dir}/lib/libtorch_cpu.so" AND EXISTS "${dir}/lib/libc10.so" AND EXISTS "${dir}/include/ATen/ATen.h")
      file(REAL_PATH "${dir}" dir)
      set(${out} "${dir}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${out} "" PARENT_SCOPE)
endfunction()

# "2.11" or "2.11.0"; empty when no version header is there.
function(_fsdp_torch_version dir out)
  set(version "")
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(NOT version AND EXISTS "${dir}/include/${header}")
      file(STRINGS "${dir}/include/${header}" lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
      string(REGEX REPLACE "[^0-9;]" "" numbers "${lines}")
      list(JOIN numbers "." version)
    endif()
  endforeach()
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

function(_fsdp_torch_targets dir)
  if(TARGET fsdp::torch)
    return()
  endif()
  foreach(library torch_cpu c10)
    add_library(fsdp::${library} SHARED IMPORTED)
    set_target_properties(fsdp::${library} PROPERTIES IMPORTED_LOCATION "${dir}/lib/lib${library}.so")
  endforeach()
  add_library(fsdp::torch INTERFACE IMPORTED)
  target_include_directories(fsdp::torch SYSTEM INTERFACE
    "${dir}/include" "${dir}/include/torch/csrc/api/include")
  target_link_libraries(fsdp::torch INTERFACE fsdp::torch_cpu fsdp::c10)
  # The wheel's libraries need CUDA libraries that may be absent where we link.
  target_link_options(fsdp::torch INTERFACE "LINKER:--allow-shlib-undefined")

  file(GLOB cudart "${dir}/lib/libcudart*.so.*" "${dir}/../nvidia/*/lib/libcudart.so.*")
  if(cudart)
    list(GET cudart 0 cudart)
    file(REAL_PATH "${cudart}" cudart)
    add_library(fsdp::cudart SHARED IMPORTED)
    set_target_properties(fsdp::cudart PROPERTIES IMPORTED_LOCATION "${cudart}")
  endif()
endfunction()

# fsdp_find_torch(error [HINTS root...])
# Sets FSDP_TORCH_DIR and FSDP_TORCH_VERSION, and `error` to "" or to what is wrong. The root is, in this order:
# the variable FSDP_TORCH_ROOT, the environment's, the LibTorch an earlier find_package(Torch) found, the hints.
function(fsdp_find_torch error)
  cmake_parse_arguments(arg "" "" "HINTS" ${ARGN})
  set(minimum 2.11)
  if(FSDP_TORCH_ROOT)
    set(roots "${FSDP_TORCH_ROOT}")
  elseif(NOT "$ENV{FSDP_TORCH_ROOT}" STREQUAL "")
    set(roots "$ENV{FSDP_TORCH_ROOT}")
  elseif(TORCH_INSTALL_PREFIX)
    set(roots "${TORCH_INSTALL_PREFIX}")
  else()
    set(roots ${arg_HINTS})
  endif()

  set(dir "")
  foreach(root IN LISTS roots)
    if(NOT dir)
      _fsdp_torch_dir("${root}" dir)
    endif()
  endforeach()
  if(NOT dir)
    list(JOIN roots ", " looked)
    set(${error} "No LibTorch found in: ${looked}." PARENT_SCOPE)
    return()
  endif()

  _fsdp_torch_version("${dir}" version)
  if(NOT version OR version VERSION_LESS minimum)
    set(${error} "fsdp needs LibTorch ${minimum} or newer; ${dir} holds version '${version}'." PARENT_SCOPE)
    return()
  endif()

  _fsdp_torch_targets("${dir}")
  set(FSDP_TORCH_DIR "${dir}" PARENT_SCOPE)
  set(FSDP_TORCH_VERSION "${version}" PARENT_SCOPE)
  set(${error} "" PARENT_SCOPE)
endfunction()
