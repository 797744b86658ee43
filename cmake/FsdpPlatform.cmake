# Refuses platforms we do not support, in words.

function(fsdp_require_platform)
  if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux"
     OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64|aarch64|arm64)$")
    message(FATAL_ERROR
      "fsdp supports Linux on x86-64 and arm64 only; this build is for "
      "${CMAKE_SYSTEM_NAME} on ${CMAKE_SYSTEM_PROCESSOR}.")
  endif()
endfunction()
