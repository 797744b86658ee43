# fsdp_part(name): a static library of the *.cpp beside it that needs no LibTorch, for the command and the trainer.
# Includes are written from the root of the repository.
find_package(nlohmann_json REQUIRED)

function(fsdp_part name)
  file(GLOB sources CONFIGURE_DEPENDS "*.cpp")
  if(NOT sources)
    return()
  endif()
  add_library(${name} STATIC ${sources})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>")
  target_link_libraries(${name} PUBLIC fsdp_files PRIVATE nlohmann_json::nlohmann_json)
  fsdp_target_options(${name})
endfunction()
