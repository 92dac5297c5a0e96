# Which toolkits can be used, and architectures as CMAKE_CUDA_ARCHITECTURES names them, resolved to what the sources are
# compiled for.

# moesaic_default_architectures(OUT VERSION): what this version of nvcc compiles of 9.0, 12.0 and 12.1; nothing where it is
# too old. sm_90a came with CUDA 12.0, sm_120a with 12.8, sm_121a and the family sm_120f with 12.9.
function(moesaic_default_architectures out version)
  set(architectures "")
  if(version VERSION_GREATER_EQUAL 12.9)
    set(architectures 90a-real 120-real)
  elseif(version VERSION_GREATER_EQUAL 12.8)
    set(architectures 90a-real 120a-real)
  elseif(version VERSION_GREATER_EQUAL 12.0)
    set(architectures 90a-real)
  endif()
  set(${out} "${architectures}" PARENT_SCOPE)
endfunction()

# moesaic_nvcc_version(OUT): of the nvcc that CMake would take, such as 13.0; empty where there is none. Asked before CUDA is
# enabled, since an nvcc that lacks an architecture fails there with many lines that do not say so.
function(moesaic_nvcc_version out)
  find_program(MOESAIC_NVCC NAMES ${CMAKE_CUDA_COMPILER} $ENV{CUDACXX} nvcc PATHS /usr/local/cuda/bin)
  mark_as_advanced(MOESAIC_NVCC)
  set(version "")
  if(MOESAIC_NVCC)
    execute_process(COMMAND ${MOESAIC_NVCC} --version OUTPUT_VARIABLE text ERROR_QUIET)
    if(text MATCHES "release ([0-9.]+)")
      set(version ${CMAKE_MATCH_1})
    endif()
  endif()
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# moesaic_nvcc_architectures(OUT TEXT): the numbers in what `nvcc --list-gpu-code` prints, of chips that the sources are
# written for.
function(moesaic_nvcc_architectures out text)
  string(REGEX MATCHALL "sm_[0-9]+\n" names "${text}\n")
  set(numbers "")
  foreach(name IN LISTS names)
    string(REGEX MATCH "[0-9]+" number ${name})
    if(number GREATER_EQUAL 90)
      list(APPEND numbers ${number})
    endif()
  endforeach()
  set(${out} "${numbers}" PARENT_SCOPE)
endfunction()

# moesaic_expand_architectures(OUT NVCC LIST...): native becomes the numbers that CMake has found, all and all-major those
# of the list NVCC, since a CMake older than nvcc does not know them.
function(moesaic_expand_architectures out nvcc)
  set(expanded "")
  set(majors ${nvcc})
  list(FILTER majors INCLUDE REGEX "0$")
  foreach(architecture IN LISTS ARGN)
    set(some ${architecture})
    if(architecture STREQUAL "native")
      set(some ${CMAKE_CUDA_ARCHITECTURES_NATIVE})
    elseif(architecture STREQUAL "all")
      set(some ${nvcc})
    elseif(architecture STREQUAL "all-major")
      set(some ${majors})
    endif()
    if("${some}" STREQUAL "")
      message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES=${architecture}: it is not known which they are here; name them, as in 90a-real;120-real")
    endif()
    list(APPEND expanded ${some})
  endforeach()
  list(REMOVE_DUPLICATES expanded)
  set(${out} "${expanded}" PARENT_SCOPE)
endfunction()

# moesaic_tile_architectures(OUT LIST...): block-scaled MMA exists only in code for one chip of compute capability 12.x
# (120a) or for its family (120f). Plain 12.x code would emulate the instruction, so it becomes such code.
function(moesaic_tile_architectures out)
  set(tiles "")
  foreach(architecture IN LISTS ARGN)
    if(architecture MATCHES "^120(-real)?$")
      list(APPEND tiles 120a-real 121a-real 120f-real)
    elseif(architecture MATCHES "^12[0-9]-virtual$")
      list(APPEND tiles 120f-virtual)
    elseif(architecture MATCHES "^(12[0-9])(-real)?$")
      list(APPEND tiles ${CMAKE_MATCH_1}a-real)
    else()
      list(APPEND tiles ${architecture})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES tiles)
  set(${out} "${tiles}" PARENT_SCOPE)
endfunction()
