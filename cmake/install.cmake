# What `make install` puts where, and the two ways to find it: find_package(unfence) and pkg-config.
include(CMakePackageConfigHelpers)

set_target_properties(unfence PROPERTIES EXPORT_NAME unfence)
set_target_properties(unfence_static PROPERTIES EXPORT_NAME unfence_static)
# The rooms' libraries, for those who link statically: Threads always, libfabric with its fabric.
target_link_libraries(unfence_static INTERFACE $<INSTALL_INTERFACE:Threads::Threads>)
if(UNFENCE_WITH_OFI)
  target_link_libraries(unfence_static INTERFACE $<INSTALL_INTERFACE:PkgConfig::UNFENCE_LIBFABRIC>)
  set(requires_private libfabric)
endif()

install(TARGETS unfence unfence_static unfence_nvshmem EXPORT unfence
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET unfence_tool)
  install(TARGETS unfence_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")
install(DIRECTORY include/unfence DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh")
# NVSHMEM's names, in a folder that only programs written for it name (-I).
install(DIRECTORY compat/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/unfence/compat FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh")
# What kernels of command queues share with the library lies beside the header that includes it.
install(FILES src/engine/command.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/unfence/engine)
install(FILES src/base/shared.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/unfence/base)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/unfence)
install(EXPORT unfence NAMESPACE unfence:: FILE unfence-targets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/unfence-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/unfence-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/unfence-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/unfence-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/unfence-config-version.cmake
  DESTINATION ${package_dir})

# From the file's own folder, so that an installed tree may be moved.
file(RELATIVE_PATH pc_up ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_up "${pc_up}")
configure_file(cmake/unfence.pc.in ${CMAKE_CURRENT_BINARY_DIR}/unfence.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/unfence.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
