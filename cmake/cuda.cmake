# What is compiled by nvcc: the tests and benchmarks that run on a GPU. The library itself holds no kernel and links no CUDA.
#
# They are built by the target `gpu` alone, on a machine that needs no GPU, and run on one that has by tests/gpu/run and bench/gpu/run. The
# target `gpu_planted` adds the test programs with a bug in each. That all of it compiles for each architecture that we
# promise is a test (scripts/check-cuda).
set(UNFENCE_WITH_CUDA AUTO CACHE STRING "GPU code: AUTO (where CUDA is found), ON, OFF")
set(UNFENCE_CUDA_ARCHS 90 CACHE STRING "Architectures that the target gpu is built for, as 80;90;100")

if(UNFENCE_WITH_CUDA)
  find_program(UNFENCE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT UNFENCE_NVCC AND NOT UNFENCE_WITH_CUDA STREQUAL AUTO)
    message(FATAL_ERROR "UNFENCE_WITH_CUDA=${UNFENCE_WITH_CUDA}, but there is no nvcc: set CUDA_HOME, or UNFENCE_WITH_CUDA=OFF")
  endif()
else()
  unset(UNFENCE_NVCC CACHE)
endif()

set(uf_nvcc_flags -std=c++17 -O2 -Werror all-warnings -Xcompiler -Wall)
foreach(arch ${UNFENCE_CUDA_ARCHS})
  list(APPEND uf_nvcc_flags -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
add_custom_target(gpu)

# uf_cuda_program(NAME sources... [INCLUDES folders...] [LIBRARIES targets...]) makes one program of the target gpu, in this folder of the
# build. LIBRARIES are static ones of this build, in the order of linking; with any, what the library itself links comes after them.
function(uf_cuda_program name)
  cmake_parse_arguments(P "" "" "INCLUDES;LIBRARIES" ${ARGN})
  set(includes -I${CMAKE_SOURCE_DIR}/include -I${CMAKE_SOURCE_DIR}/src) # src: command.h, which is installed beside the others
  foreach(folder ${P_INCLUDES})
    list(APPEND includes -I${CMAKE_SOURCE_DIR}/${folder})
  endforeach()
  foreach(source ${P_UNPARSED_ARGUMENTS})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
    add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM
      COMMAND ${UNFENCE_NVCC} ${uf_nvcc_flags} ${includes} -MD -MF ${object}.d -c -o ${object} ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    list(APPEND objects ${object})
  endforeach()
  foreach(library ${P_LIBRARIES})
    list(APPEND libraries $<TARGET_FILE:${library}>)
  endforeach()
  if(P_LIBRARIES)
    list(APPEND libraries -lpthread -ldl)
    if(TARGET PkgConfig::LIBFABRIC)
      list(APPEND libraries ${pkgcfg_lib_LIBFABRIC_fabric})
    endif()
  endif()
  add_custom_command(OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name} DEPENDS ${objects} ${P_LIBRARIES} VERBATIM
    COMMAND ${UNFENCE_NVCC} ${uf_nvcc_flags} -o ${CMAKE_CURRENT_BINARY_DIR}/${name} ${objects} ${libraries})
  add_custom_target(gpu_${name} DEPENDS ${CMAKE_CURRENT_BINARY_DIR}/${name})
  add_dependencies(gpu gpu_${name})
endfunction()
