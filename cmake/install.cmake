# What `make install` installs and `make package` packs. The layers' libraries become one, moesaic::moesaic, of which
# strangers see the public headers alone: static, or shared with -DBUILD_SHARED_LIBS=ON. Included when the layers up to api
# exist and those above them do not yet.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(layers GLOBAL PROPERTY moesaic_libraries)
list(TRANSFORM layers REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")
add_library(moesaic_whole ${layers})
add_library(moesaic::moesaic ALIAS moesaic_whole)
set_target_properties(moesaic_whole PROPERTIES OUTPUT_NAME moesaic EXPORT_NAME moesaic LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_compile_features(moesaic_whole PUBLIC cxx_std_20)
target_include_directories(moesaic_whole INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
set(moesaic_whole_links fmt::fmt Threads::Threads PkgConfig::PCRE2 $<$<BOOL:${MOESAIC_CUDA}>:CUDA::cudart_static>)
target_link_libraries(moesaic_whole PRIVATE ${moesaic_whole_links})

# A shared library shows the names of include/moesaic and no others.
function(moesaic_exports target)
  set(exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)
  target_link_options(${target} PRIVATE LINKER:--version-script=${exports})
  set_target_properties(${target} PROPERTIES LINK_DEPENDS ${exports})
endfunction()
set(moesaic_shared moesaic_whole)
if(BUILD_SHARED_LIBS)
  moesaic_exports(moesaic_whole)
elseif(MOESAIC_TESTS AND NOT MOESAIC_SANITIZE)
  # For tests/install, which looks at its names.
  set(moesaic_shared moesaic_shared)
  add_library(moesaic_shared SHARED ${layers})
  set_target_properties(moesaic_shared PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(moesaic_shared PRIVATE ${moesaic_whole_links})
  moesaic_exports(moesaic_shared)
endif()

# Static libraries that moesaic.pc names for `pkg-config --static`. CUDA's needs the folder it was found in.
set(moesaic_cxx_libraries ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
list(FILTER moesaic_cxx_libraries INCLUDE REGEX "^(stdc\\+\\+|c\\+\\+|c\\+\\+abi|m)$")
list(REMOVE_DUPLICATES moesaic_cxx_libraries)
list(JOIN moesaic_cxx_libraries " -l" pc_libs)
set(pc_libs "-l${pc_libs} -pthread")
if(MOESAIC_CUDA)
  string(PREPEND pc_libs "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl ")
endif()
# A shared library names what it needs: its users need no other -dev package.
set(pc_private "")
if(NOT BUILD_SHARED_LIBS)
  set(pc_private "Requires.private: fmt libpcre2-8\nLibs.private: ${pc_libs}\n")
endif()
set(cmake_folder ${CMAKE_INSTALL_LIBDIR}/cmake/moesaic)
file(RELATIVE_PATH pc_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/moesaic.pc.in moesaic.pc @ONLY)
configure_package_config_file(cmake/moesaic-config.cmake.in moesaic-config.cmake INSTALL_DESTINATION ${cmake_folder})
write_basic_package_version_file(moesaic-config-version.cmake COMPATIBILITY SameMinorVersion)

# Three components: the program and all that it uses, the shared library where one is built, and what developers need.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME program)

# moesaic_installs(COMPONENT FILES...): before anything is installed, one line says which of these files no build has made.
# `make demo`, for one, builds the program alone.
function(moesaic_installs component)
  install(CODE "set(missing \"\")
  foreach(file IN ITEMS ${ARGN})
    if(NOT EXISTS \"\${file}\")
      string(APPEND missing \" \${file}\")
    endif()
  endforeach()
  if(missing)
    message(FATAL_ERROR \"not built yet:\${missing}\n`make install` builds it, and so does\n\"
      \"cmake --build ${PROJECT_BINARY_DIR} --target moesaic moesaic_whole pages\")
  endif()" COMPONENT ${component})
endfunction()
set(pages ${PROJECT_BINARY_DIR}/apps/pages)
moesaic_installs(program $<TARGET_FILE:moesaic> ${pages}/moesaic.bash ${pages}/_moesaic ${pages}/moesaic.fish ${pages}/moesaic.1)
moesaic_installs(development $<TARGET_LINKER_FILE:moesaic_whole>)
install(TARGETS moesaic_whole EXPORT moesaic
  ARCHIVE COMPONENT development LIBRARY COMPONENT library NAMELINK_COMPONENT development)
install(EXPORT moesaic NAMESPACE moesaic:: DESTINATION ${cmake_folder} FILE moesaic-targets.cmake COMPONENT development)
install(FILES ${PROJECT_BINARY_DIR}/moesaic-config.cmake ${PROJECT_BINARY_DIR}/moesaic-config-version.cmake
  DESTINATION ${cmake_folder} COMPONENT development)
install(FILES ${PROJECT_BINARY_DIR}/moesaic.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
install(DIRECTORY include/moesaic DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
# The program looks for it at ../share/moesaic/models from its own place, so that the prefix can be moved.
install(DIRECTORY models/tiny models/tiny-eagle3 DESTINATION ${CMAKE_INSTALL_DATADIR}/moesaic/models)
install(FILES LICENSE README.md CHANGELOG.md packaging/THIRD_PARTY_NOTICES DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development PATTERN CMakeLists.txt EXCLUDE)
# With the prefix of the moment of installing, which may be another than at configuring.
install(CODE "set(CMAKE_INSTALL_BINDIR \"${CMAKE_INSTALL_BINDIR}\")
  configure_file(\"${PROJECT_SOURCE_DIR}/packaging/moesaic.service.in\"
    \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/systemd/system/moesaic.service\" @ONLY)")
