# Installs libfsdp, its headers, and the package that find_package(fsdp CONFIG) reads.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/fsdp")

install(TARGETS fsdp EXPORT fsdpTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(TARGET fsdp_app)
  install(TARGETS fsdp_app RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" OPTIONAL)
endif()
# The trainer has an export set of its own: it needs packages that programs without it need not have.
if(TARGET fsdp_worker)
  # INSTALL_RPATH_USE_LINK_PATH leaves out what is inside the clone, as .venv is.
  set(libraries "$ORIGIN/../../${CMAKE_INSTALL_LIBDIR}" "${FSDP_TORCH_DIR}/lib")
  if(TARGET fsdp::cudart)
    get_target_property(cudart fsdp::cudart IMPORTED_LOCATION)
    cmake_path(GET cudart PARENT_PATH cudart_folder)
    list(APPEND libraries "${cudart_folder}")
  endif()
  set_target_properties(fsdp_worker PROPERTIES INSTALL_RPATH "${libraries}" INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS fsdp_worker RUNTIME DESTINATION "${CMAKE_INSTALL_LIBEXECDIR}/fsdp" OPTIONAL)
  install(TARGETS fsdp_train fsdp_config fsdp_data fsdp_watch fsdp_control fsdp_doctor fsdp_files EXPORT fsdpTrainTargets
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT fsdpTrainTargets NAMESPACE fsdp:: DESTINATION "${package_dir}")
endif()
if(TARGET fsdp_models)
  install(TARGETS fsdp_models EXPORT fsdpTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/models/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/fsdp/models"
    FILES_MATCHING PATTERN "*.h" PATTERN "cuda" EXCLUDE)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/fsdp" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(EXPORT fsdpTargets NAMESPACE fsdp:: DESTINATION "${package_dir}")

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/fsdpConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/fsdpConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/fsdpConfig.cmake"
  "${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FsdpTorch.cmake"
  DESTINATION "${package_dir}")
