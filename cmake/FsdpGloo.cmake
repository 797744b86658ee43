# Decides whether the gloo backend is compiled, for CPU ranks of several hosts.
# Sets FSDP_HAVE_GLOO and FSDP_GLOO_INCLUDES.
#
# LibTorch has gloo inside, without its headers. Those of any gloo will do.

set(FSDP_GLOO AUTO CACHE STRING "gloo backend: ON, OFF, or AUTO (on when gloo's headers are found)")
set_property(CACHE FSDP_GLOO PROPERTY STRINGS AUTO ON OFF)

set(FSDP_HAVE_GLOO OFF)
if(FSDP_GLOO)
  find_path(FSDP_GLOO_INCLUDE gloo/algorithm.h)
  mark_as_advanced(FSDP_GLOO_INCLUDE)
  if(FSDP_GLOO_INCLUDE)
    set(FSDP_HAVE_GLOO ON)
    set(FSDP_GLOO_INCLUDES ${FSDP_GLOO_INCLUDE})
    list(REMOVE_ITEM FSDP_GLOO_INCLUDES ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})  # g++ wants their order unchanged
  elseif(NOT FSDP_GLOO STREQUAL "AUTO")
    message(FATAL_ERROR "FSDP_GLOO is ON but gloo/algorithm.h was not found. Install libgloo-dev, or set FSDP_GLOO_INCLUDE.")
  endif()
endif()

if(FSDP_HAVE_GLOO)
  message(STATUS "fsdp: gloo ON")
else()
  message(STATUS "fsdp: gloo OFF: CPU ranks of several hosts cannot be connected (install libgloo-dev)")
endif()
