# fsdp_part(name [ALONE file...]): a static library of the *.cpp beside it that needs no LibTorch, for the command and the trainer.
# Includes are written from the root of the repository.
find_package(nlohmann_json REQUIRED)

function(fsdp_part name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "ALONE")
  file(GLOB sources CONFIGURE_DEPENDS "*.cpp")
  if(NOT sources)
    return()
  endif()
  add_library(${name} STATIC ${sources})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>")
  target_link_libraries(${name} PUBLIC fsdp_files PRIVATE nlohmann_json::nlohmann_json)
  fsdp_target_options(${name})
  # Most of the time goes into nlohmann/json: one reading of it serves several files, but for those in ALONE, whose
  # local names others have too.
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${FSDP_FAST_BUILD} UNITY_BUILD_BATCH_SIZE 6)
  if(arg_ALONE)
    set_source_files_properties(${arg_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()
