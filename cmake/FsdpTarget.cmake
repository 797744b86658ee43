# fsdp_target_options(target): how every target of ours is compiled. Nothing here reaches consumers.

set(_fsdp_warnings -Wall -Wextra -Wconversion)
if(FSDP_WERROR)
  list(APPEND _fsdp_warnings -Werror)
endif()

function(fsdp_target_options target)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_compile_features(${target} PRIVATE cxx_std_20)
  # ATen's classes have another layout without NDEBUG than the released LibTorch was built with.
  target_compile_definitions(${target} PRIVATE NDEBUG $<$<BOOL:${FSDP_ASSERTS}>:FSDP_ASSERTS=1>)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${_fsdp_warnings}>")
  if(FSDP_SANITIZE)
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${FSDP_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer>")
    target_link_options(${target} PRIVATE -fsanitize=${FSDP_SANITIZE})
  endif()
endfunction()
