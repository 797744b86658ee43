# Decides whether CUDA and NCCL code is compiled.
# Sets FSDP_HAVE_CUDA, FSDP_HAVE_NCCL and FSDP_CUDA_INCLUDES.
#
# CUDA means: nvcc and the toolkit's headers. NCCL means: its header; the library is loaded at run time.

set(FSDP_CUDA AUTO CACHE STRING "CUDA code: ON, OFF, or AUTO (on when nvcc is found)")
set(FSDP_NCCL AUTO CACHE STRING "NCCL backend: ON, OFF, or AUTO (on with CUDA when nccl.h is found)")
set_property(CACHE FSDP_CUDA FSDP_NCCL PROPERTY STRINGS AUTO ON OFF)

set(FSDP_HAVE_CUDA OFF)
set(FSDP_HAVE_NCCL OFF)
set(FSDP_CUDA_INCLUDES "")

if(FSDP_CUDA)
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
    set(FSDP_HAVE_CUDA ON)
    list(APPEND FSDP_CUDA_INCLUDES ${CUDAToolkit_INCLUDE_DIRS})
  elseif(NOT FSDP_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "FSDP_CUDA is ON but no CUDA toolkit with nvcc was found. Set CUDAToolkit_ROOT, or use AUTO.")
  endif()
endif()

if(FSDP_NCCL AND FSDP_HAVE_CUDA)
  file(GLOB beside_torch "${FSDP_TORCH_DIR}/../nvidia/*/include")
  find_path(FSDP_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${beside_torch})
  mark_as_advanced(FSDP_NCCL_INCLUDE)
  if(FSDP_NCCL_INCLUDE)
    set(FSDP_HAVE_NCCL ON)
    list(APPEND FSDP_CUDA_INCLUDES "${FSDP_NCCL_INCLUDE}")
  endif()
endif()
if(FSDP_NCCL AND NOT FSDP_NCCL STREQUAL "AUTO" AND NOT FSDP_HAVE_NCCL)
  message(FATAL_ERROR "FSDP_NCCL is ON but CUDA is off or nccl.h was not found. Install libnccl-dev, or use AUTO.")
endif()

list(REMOVE_DUPLICATES FSDP_CUDA_INCLUDES)
message(STATUS "fsdp: CUDA ${FSDP_HAVE_CUDA}, NCCL ${FSDP_HAVE_NCCL}")
