# Uses ccache and the mold linker where they are installed.
include(CheckLinkerFlag)

find_program(FSDP_CCACHE ccache)
mark_as_advanced(FSDP_CCACHE)
if(FSDP_CCACHE)
  # Without the build folder in its key, builds in other folders (the consumer tests') find the same objects; with
  # paths relative to this clone (CCACHE_BASEDIR), so do other clones. The rest lets it work with a precompiled header.
  foreach(language CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros "${FSDP_CCACHE}")
    endif()
  endforeach()
endif()

check_linker_flag(CXX -fuse-ld=mold FSDP_HAVE_MOLD)
if(FSDP_HAVE_MOLD)
  add_link_options("$<HOST_LINK:-fuse-ld=mold>")
endif()
