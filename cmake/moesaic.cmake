# One static library per folder of src/. A library sees only the headers of what it links: each target exports
# a directory that holds one link, <name> -> src/<name>, so an include against the dependency order does not build.
# In src/backend/cuda the same holds for its own folders.

# Other compilers than the tested ones (GCC 12 to 14, clang 14) warn about more; there a warning must not end somebody's
# build. GCC 11 for one warns wrongly about its own std::string.
set(tested OFF)
if((CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12 AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15) OR
   (CMAKE_CXX_COMPILER_ID STREQUAL Clang AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15))
  set(tested ON)
endif()
option(MOESAIC_WERROR "Warnings are errors" ${tested})

add_library(moesaic_flags INTERFACE)
target_compile_features(moesaic_flags INTERFACE cxx_std_20)
target_compile_options(moesaic_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic
  $<$<BOOL:${MOESAIC_WERROR}>:-Werror> -Wshadow -Wno-missing-field-initializers -fno-math-errno -ffp-contract=off>)
# GCC 12 reports both of these inside its own and nlohmann's headers (GCC bugs 105651 and 105562).
target_compile_options(moesaic_flags INTERFACE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict -Wno-maybe-uninitialized>)
# A unity build includes the sources, which GCC then takes for headers with types of an anonymous namespace.
target_compile_options(moesaic_flags INTERFACE $<$<AND:$<BOOL:${CMAKE_UNITY_BUILD}>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-Wno-subobject-linkage>)
# Failed checks name their place as src/x.cpp, not with the folder of whoever built the program.
set(short_names -fmacro-prefix-map=${PROJECT_BINARY_DIR}/= -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
target_compile_options(moesaic_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${short_names}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=$<JOIN:${short_names},$<COMMA>>>")
target_include_directories(moesaic_flags INTERFACE ${PROJECT_SOURCE_DIR}/include)
# lld, where there is one, links Debug builds and the tests of a build that is made once. GCC looks for it in a folder of -B; a
# cross compiler only there.
option(MOESAIC_BUILT_ONCE "Compile in less time, for a build that is made once, as CI's" OFF)
set(links_of_tests "")
if(CMAKE_BUILD_TYPE STREQUAL Debug OR MOESAIC_BUILT_ONCE)
  find_program(MOESAIC_LLD ld.lld)
  mark_as_advanced(MOESAIC_LLD)
  if(MOESAIC_LLD)
    file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/lld)
    file(CREATE_LINK ${MOESAIC_LLD} ${PROJECT_BINARY_DIR}/lld/ld.lld SYMBOLIC)
    set(links_of_tests -fuse-ld=lld -B${PROJECT_BINARY_DIR}/lld)
  endif()
  if(CMAKE_BUILD_TYPE STREQUAL Debug)
    add_link_options(${links_of_tests})
  endif()
endif()
if(MOESAIC_SANITIZE)
  target_compile_options(moesaic_flags INTERFACE -fsanitize=${MOESAIC_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer -g1)
  # Clang 14 cannot mark the parts of a coroutine for this check ("Cannot represent a difference across sections").
  if(MOESAIC_SANITIZE MATCHES undefined)
    target_compile_options(moesaic_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=function>)
  endif()
  target_link_options(moesaic_flags INTERFACE -fsanitize=${MOESAIC_SANITIZE})
endif()

# clang precompiles the headers of other projects that most sources include: that saves a second or two for each source, with
# GCC half a second. ccache would want options of its own for it, and a source that forgets an include is not found out.
# GCC tidies its memory up less often: an eighth of its time, for a quarter more memory.
if((MOESAIC_BUILT_ONCE OR MOESAIC_THIS_MACHINE) AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=524288>")
endif()
if(MOESAIC_BUILT_ONCE AND CMAKE_CXX_COMPILER_ID STREQUAL Clang)
  set(common_headers <algorithm> <array> <atomic> <chrono> <cmath> <cstring> <deque> <filesystem> <functional> <map> <memory> <mutex>
    <numeric> <optional> <random> <ranges> <set> <span> <string> <string_view> <thread> <unordered_map> <unordered_set> <variant> <vector>
    <fmt/format.h> <nlohmann/json.hpp>)
  file(WRITE ${PROJECT_BINARY_DIR}/precompiled.cpp "")
  foreach(kind libraries busy_libraries tests)
    add_library(moesaic_precompiled_${kind} OBJECT ${PROJECT_BINARY_DIR}/precompiled.cpp)
    target_link_libraries(moesaic_precompiled_${kind} PRIVATE moesaic_flags fmt::fmt nlohmann_json::nlohmann_json)
    target_precompile_headers(moesaic_precompiled_${kind} PRIVATE ${common_headers})
  endforeach()
  target_compile_options(moesaic_precompiled_busy_libraries PRIVATE -O1)
  if(MOESAIC_FUZZ)
    target_compile_options(moesaic_precompiled_libraries PRIVATE -fsanitize=fuzzer-no-link)
    target_compile_options(moesaic_precompiled_busy_libraries PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  if(MOESAIC_TESTS)
    target_link_libraries(moesaic_precompiled_tests PRIVATE GTest::gtest)
    target_precompile_headers(moesaic_precompiled_tests PRIVATE <gtest/gtest.h>)
  endif()
endif()

# moesaic_precompiled(TARGET KIND): compiles the target's sources with the precompiled headers of libraries or of tests. Targets
# with options of their own for a processor or for optimising disable them; so do those that libFuzzer does not count in.
function(moesaic_precompiled target kind)
  if(kind STREQUAL libraries AND CMAKE_CXX_FLAGS_DEBUG MATCHES "-O1$")
    set(kind busy_libraries)
  endif()
  get_target_property(options ${target} COMPILE_OPTIONS)
  if(MOESAIC_FUZZ AND kind MATCHES libraries AND NOT options MATCHES fuzzer-no-link)
    return()
  endif()
  if(TARGET moesaic_precompiled_${kind})
    target_precompile_headers(${target} REUSE_FROM moesaic_precompiled_${kind})
    target_compile_options(${target} PRIVATE -fPIC)  # as they were precompiled; programs would have -fPIE
  endif()
endfunction()

# moesaic_link_headers(TO OWN): makes TO a link to the current folder; if OWN, a folder with a link to each of its headers,
# so that the folders in it, which are libraries of their own, are not seen through it.
function(moesaic_link_headers to own)
  get_filename_component(parent ${to} DIRECTORY)
  file(MAKE_DIRECTORY ${parent})
  if(NOT own)
    file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${to} SYMBOLIC)
    return()
  endif()
  if(IS_SYMLINK ${to})  # of an older build: links would be made in the sources
    file(REMOVE ${to})
  endif()
  file(MAKE_DIRECTORY ${to})
  file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} *.h)
  foreach(header ${headers})
    file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/${header} ${to}/${header} SYMBOLIC)
  endforeach()
endfunction()

# moesaic_library(NAME [SOURCES ...] [AT folder] [OWN_HEADERS] [DEPS ...] [PRIVATE_DEPS ...]): without sources it has headers
# alone. They are included as <folder>/x.h, <NAME>/x.h without AT. A library may only link one that stands before it, so there is
# no circle.
function(moesaic_library name)
  cmake_parse_arguments(ARG "OWN_HEADERS" "AT" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  if(NOT ARG_AT)
    set(ARG_AT ${name})
  endif()
  set(links ${PROJECT_BINARY_DIR}/links/${name})
  moesaic_link_headers(${links}/${ARG_AT} ${ARG_OWN_HEADERS})
  list(TRANSFORM ARG_DEPS PREPEND moesaic_)
  foreach(dep ${ARG_DEPS})
    if(NOT TARGET ${dep})
      message(FATAL_ERROR "moesaic_${name} comes before ${dep}, so it cannot link it: CONTRIBUTING.md has the order of the folders")
    endif()
  endforeach()
  if(NOT ARG_SOURCES)
    add_library(moesaic_${name} INTERFACE)
    target_include_directories(moesaic_${name} INTERFACE ${links})
    target_link_libraries(moesaic_${name} INTERFACE ${ARG_DEPS})
    return()
  endif()
  add_library(moesaic_${name} STATIC ${ARG_SOURCES})
  # Most of the time goes into headers, which fewer and larger units read less often.
  set_target_properties(moesaic_${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 16)
  set_property(GLOBAL APPEND PROPERTY moesaic_libraries moesaic_${name})
  target_include_directories(moesaic_${name} PUBLIC ${links})
  target_link_libraries(moesaic_${name} PUBLIC moesaic_flags ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  # What libFuzzer steers by, in all that reads foreign bytes. Counting branches would slow the arithmetic down.
  if(MOESAIC_FUZZ AND NOT name MATCHES "^(mx|moe|tuning|backend.*|model)$")
    target_compile_options(moesaic_${name} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  moesaic_precompiled(moesaic_${name} libraries)
endfunction()

# All tests that an emulated processor runs too.
if(MOESAIC_TESTS)
  add_custom_target(emulated_tests)
endif()

include(${CMAKE_CURRENT_LIST_DIR}/all_skipped.cmake)

# moesaic_test(NAME SOURCES ... DEPS ... [LABELS ...]): a GoogleTest binary registered as one ctest. Labels: `device` (uses
# a GPU where there is one), `native` (not under an emulator: runs whole models, looks at clocks, or has nothing that another
# processor would do otherwise). Tests are compiled quickly rather than well: those that compute name options of their own.
function(moesaic_test name)
  if(NOT MOESAIC_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND moesaic_)
  target_link_libraries(${name} PRIVATE moesaic_flags ${ARG_DEPS} ${ARG_LIBS} GTest::gtest_main)
  target_link_options(${name} PRIVATE ${links_of_tests})
  moesaic_precompiled(${name} tests)
  target_compile_definitions(${name} PRIVATE MOESAIC_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:$<$<CONFIG:Release>:-O1>$<$<CONFIG:Debug>:-O0>>)
  if(NOT native IN_LIST ARG_LABELS)
    add_dependencies(emulated_tests ${name})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" SKIP_REGULAR_EXPRESSION "${moesaic_all_skipped}")
endfunction()

# moesaic_untested(PROGRAM ...): programs that no test runs, so a sanitizer's build of everything leaves them out, and CI's.
function(moesaic_untested)
  if(MOESAIC_SANITIZE OR MOESAIC_BUILT_ONCE)
    set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# moesaic_needs_gpu(TEST ...): tests without a case for a machine that has no GPU, where a build that is made once leaves them out.
function(moesaic_needs_gpu)
  find_program(MOESAIC_NVIDIA_SMI nvidia-smi)
  mark_as_advanced(MOESAIC_NVIDIA_SMI)
  if(MOESAIC_TESTS AND MOESAIC_BUILT_ONCE AND NOT MOESAIC_NVIDIA_SMI)
    set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL ON)
    set_tests_properties(${ARGN} PROPERTIES DISABLED ON)
  endif()
endfunction()

# All fuzz targets and nothing else.
if(MOESAIC_FUZZ)
  add_custom_target(fuzzers)
endif()

# moesaic_fuzzer(NAME SOURCES ... DEPS ... CORPUS dir): a libFuzzer target (clang only), run for a bounded time by ctest.
function(moesaic_fuzzer name)
  if(NOT MOESAIC_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "CORPUS" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND moesaic_)
  target_link_libraries(${name} PRIVATE moesaic_flags ${ARG_DEPS})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer-no-link)
  moesaic_precompiled(${name} libraries)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzzers ${name})
  # libFuzzer writes what it finds into the first folder, in the build; the seeds in the second are only read.
  add_test(NAME ${name} COMMAND sh -c "mkdir -p corpus_${name} && $<TARGET_FILE:${name}> -max_total_time=${MOESAIC_FUZZ_SECONDS} -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 corpus_${name} ${ARG_CORPUS}")
  set_tests_properties(${name} PROPERTIES LABELS fuzz)
endfunction()
