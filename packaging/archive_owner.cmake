# CPack runs this on a finished package. Its .tar.gz has the owner and the modes that files have on the builder's machine, and root's
# tar would give them to folders such as /usr/local/bin: so it is packed again, as root's files that nobody else can write.
if(NOT CPACK_GENERATOR STREQUAL "TGZ")
  return()
endif()
get_filename_component(above ${CPACK_TEMPORARY_INSTALL_DIRECTORY} DIRECTORY)
get_filename_component(name ${CPACK_TEMPORARY_INSTALL_DIRECTORY} NAME)
execute_process(COMMAND tar --owner=root:0 --group=root:0 --mode=go=rX -czf ${CPACK_PACKAGE_FILES} -C ${above} ${name}
  COMMAND_ERROR_IS_FATAL ANY)
