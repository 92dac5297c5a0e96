# What `make install` installs. The layers' libraries become one, moesaic::moesaic, of which strangers see the public
# headers alone: static, or shared with -DBUILD_SHARED_LIBS=ON. Included when the layers up to api exist and those above
# them do not yet.
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
target_link_libraries(moesaic_whole PRIVATE fmt::fmt Threads::Threads PkgConfig::PCRE2 $<$<BOOL:${MOESAIC_CUDA}>:CUDA::cudart_static>)

# Static libraries that moesaic.pc names for `pkg-config --static`. CUDA's needs the folder it was found in.
set(pc_libs "-lstdc++ -lm -pthread")
if(MOESAIC_CUDA)
  string(PREPEND pc_libs "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl ")
endif()
set(cmake_folder ${CMAKE_INSTALL_LIBDIR}/cmake/moesaic)
file(RELATIVE_PATH pc_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/moesaic.pc.in moesaic.pc @ONLY)
configure_package_config_file(cmake/moesaic-config.cmake.in moesaic-config.cmake INSTALL_DESTINATION ${cmake_folder})
write_basic_package_version_file(moesaic-config-version.cmake COMPATIBILITY SameMinorVersion)

install(TARGETS moesaic_whole EXPORT moesaic)
install(EXPORT moesaic NAMESPACE moesaic:: DESTINATION ${cmake_folder} FILE moesaic-targets.cmake)
install(FILES ${PROJECT_BINARY_DIR}/moesaic-config.cmake ${PROJECT_BINARY_DIR}/moesaic-config-version.cmake
  DESTINATION ${cmake_folder})
install(FILES ${PROJECT_BINARY_DIR}/moesaic.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY include/moesaic DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# The program looks for it at ../share/moesaic/models from its own place, so that the prefix can be moved.
install(DIRECTORY models/tiny models/tiny-eagle3 DESTINATION ${CMAKE_INSTALL_DATADIR}/moesaic/models)
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN CMakeLists.txt EXCLUDE)
# With the prefix of the moment of installing, which may be another than at configuring.
install(CODE "set(CMAKE_INSTALL_BINDIR \"${CMAKE_INSTALL_BINDIR}\")
  configure_file(\"${PROJECT_SOURCE_DIR}/packaging/moesaic.service.in\"
    \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/systemd/system/moesaic.service\" @ONLY)")
