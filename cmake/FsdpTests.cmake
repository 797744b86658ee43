# Test binaries, and the ctest entries that run parts of them.

# Test code need not be fast, and -O1 compiles faster.
set(_fsdp_test_flags "$<$<CONFIG:RelWithDebInfo>:-O1>")

# tests/support, compiled once for all test programs.
function(fsdp_test_support)
  if(TARGET test_support)
    return()
  endif()
  file(GLOB support CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/support/*.cpp")
  add_library(test_support OBJECT ${support})
  target_include_directories(test_support PUBLIC "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(test_support PUBLIC fsdp::fsdp fsdp_models GTest::gmock GTest::gtest nlohmann_json::nlohmann_json)
  fsdp_target_options(test_support)
  target_compile_options(test_support PRIVATE ${_fsdp_test_flags})
  fsdp_precompile(test_support)
  set_target_properties(test_support PROPERTIES UNITY_BUILD ${FSDP_FAST_BUILD})
endfunction()

# fsdp_test_binary(NAME name SOURCES a_test.cpp ... [NO_TORCH]): one GoogleTest program. Without sources, none.
# NO_TORCH: of what needs no LibTorch. Such a program names the files of tests/support that it needs.
function(fsdp_test_binary)
  cmake_parse_arguments(PARSE_ARGV 0 arg "NO_TORCH" "NAME" "SOURCES")
  if(NOT arg_SOURCES)
    return()
  endif()
  add_executable(${arg_NAME} ${arg_SOURCES})
  fsdp_target_options(${arg_NAME})
  target_compile_options(${arg_NAME} PRIVATE ${_fsdp_test_flags})
  if(arg_NO_TORCH)
    target_include_directories(${arg_NAME} PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/tests")
    target_link_libraries(${arg_NAME} PRIVATE fsdp_files GTest::gmock_main nlohmann_json::nlohmann_json)
    return()
  endif()
  fsdp_test_support()
  target_link_libraries(${arg_NAME} PRIVATE test_support)
  fsdp_precompile(${arg_NAME})
  set_target_properties(${arg_NAME} PROPERTIES UNITY_BUILD ${FSDP_FAST_BUILD} UNITY_BUILD_BATCH_SIZE 4)
endfunction()

# A test says so where it lacks a package: a GoogleTest case skips itself with these words, a script exits 77. With
# FSDP_STRICT_TESTS that is a failure: a suite that ran nothing must not count as passed.
set(_fsdp_missing_package "missing package")

# fsdp_may_skip(test): exit code 77 means that a package is missing.
function(fsdp_may_skip test)
  if(NOT FSDP_STRICT_TESTS)
    set_tests_properties(${test} PROPERTIES SKIP_RETURN_CODE 77)
  endif()
endfunction()

# fsdp_test(NAME name BINARY binary FILTER "Suite*:Other*" LABELS label...
#           [TIMEOUT seconds] [PROCESSORS n] [RUN_SERIAL] [ENV VAR=value...])
# One ctest entry per file or suite: loading LibTorch for every case would be slow. An entry whose filter matches no
# test fails.
function(fsdp_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "RUN_SERIAL" "NAME;BINARY;FILTER;TIMEOUT;PROCESSORS" "LABELS;ENV")
  foreach(needed NAME BINARY FILTER LABELS)
    if(NOT arg_${needed})
      message(FATAL_ERROR "fsdp_test(${arg_NAME}): ${needed} is missing")
    endif()
  endforeach()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  set(failures "Running 0 tests")
  if(FSDP_STRICT_TESTS)
    list(APPEND failures "${_fsdp_missing_package}")
  endif()
  add_test(NAME ${arg_NAME} COMMAND ${arg_BINARY} "--gtest_filter=${arg_FILTER}")
  set_tests_properties(${arg_NAME} PROPERTIES
    LABELS "${arg_LABELS}"
    TIMEOUT ${arg_TIMEOUT}
    PROCESSORS ${arg_PROCESSORS}
    RUN_SERIAL ${arg_RUN_SERIAL}
    ENVIRONMENT "${arg_ENV}"
    FAIL_REGULAR_EXPRESSION "${failures}")
endfunction()
