# Nearly every file includes torch/torch.h: all targets of ours share one precompiled form of it.

# fsdp_precompile(target): call it after the target's options are set. Does nothing with FSDP_FAST_BUILD off.
function(fsdp_precompile target)
  if(NOT FSDP_FAST_BUILD)
    return()
  endif()
  if(NOT TARGET fsdp_headers)
    file(WRITE "${PROJECT_BINARY_DIR}/fsdp_headers.cpp.in" "// Exists for its precompiled header.\n")
    configure_file("${PROJECT_BINARY_DIR}/fsdp_headers.cpp.in" "${PROJECT_BINARY_DIR}/fsdp_headers.cpp" COPYONLY)
    add_library(fsdp_headers OBJECT "${PROJECT_BINARY_DIR}/fsdp_headers.cpp")
    target_link_libraries(fsdp_headers PRIVATE fsdp::torch)
    fsdp_target_options(fsdp_headers)
    _fsdp_precompile_options(fsdp_headers)
    target_precompile_headers(fsdp_headers PRIVATE <torch/torch.h> <torch/library.h>)
  endif()
  _fsdp_precompile_options(${target})
  target_precompile_headers(${target} REUSE_FROM fsdp_headers)
endfunction()

# A precompiled header fits only where the code generation is the same. -fpch-preprocess is for ccache.
function(_fsdp_precompile_options target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-fPIC>" "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>")
endfunction()
