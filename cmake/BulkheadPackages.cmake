# SPDX-License-Identifier: Apache-2.0
# What an installation has, and three Debian packages of it: programs in bin, plugins in lib/bulkhead,
# what they read in share/bulkhead. `./dev package` makes the packages.
#   bulkhead-cli      bulkheadctl, alert rules and dashboard for Prometheus, manifests for Kubernetes
#   bulkhead-node     bulkheadd, bulkhead-worker, plugins, systemd units, the Python package
#   bulkhead-console  the console and its demo
include(GNUInstallDirs)
set(share ${CMAKE_INSTALL_DATADIR}/bulkhead)

# bulkhead_installs(COMPONENT programs...): those of them that this build has.
function(bulkhead_installs component)
  foreach(name ${ARGN})
    if(TARGET ${name})
      install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${component})
    endif()
  endforeach()
endfunction()
bulkhead_installs(cli bulkheadctl)
bulkhead_installs(node bulkheadd bulkhead-worker)
bulkhead_installs(console bulkhead)

foreach(plugin bulkhead_workload_llama_moe bulkhead_device_cuda bulkhead_llama_moe_cuda)
  if(TARGET ${plugin})
    install(TARGETS ${plugin} LIBRARY DESTINATION lib/bulkhead COMPONENT node)
  endif()
endforeach()
install(DIRECTORY plugins/include/bulkhead DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT node)
install(DIRECTORY ${PROJECT_BINARY_DIR}/python DESTINATION ${share} COMPONENT node
        PATTERN "CMakeFiles" EXCLUDE PATTERN "*.cmake" EXCLUDE PATTERN "__pycache__" EXCLUDE)
install(DIRECTORY resources/workloads DESTINATION ${share} COMPONENT node)
install(DIRECTORY resources/systemd/ DESTINATION lib/systemd/system COMPONENT node
        FILES_MATCHING PATTERN "*.service")
install(FILES resources/systemd/bulkhead.sysusers DESTINATION lib/sysusers.d RENAME bulkhead.conf COMPONENT node)
install(DIRECTORY resources/prometheus resources/campaigns resources/kubernetes resources/container DESTINATION ${share}/resources COMPONENT cli)
install(DIRECTORY resources/jobs DESTINATION ${share}/resources COMPONENT cli)
# The text that the demo learns, where its job file looks for it.
install(DIRECTORY app backend plugins docs cmake LICENSES DESTINATION ${share} COMPONENT cli
        FILES_MATCHING REGEX "\\.(h|cpp|cu|md|txt|cmake|proto)$")
install(FILES README.md LICENSE CMakeLists.txt CMakePresets.json dev DESTINATION ${share} COMPONENT cli)

# Manual pages, made of the programs' help.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/man)
function(bulkhead_manpage component program section)
  if(NOT TARGET ${program})
    return()
  endif()
  set(page ${PROJECT_BINARY_DIR}/man/${program}.${section})
  set(script ${PROJECT_SOURCE_DIR}/cmake/manpage.py)
  add_custom_command(OUTPUT ${page} DEPENDS ${program} ${script} VERBATIM
    COMMAND Python3::Interpreter ${script} $<TARGET_FILE:${program}> ${section} ${PROJECT_VERSION} > ${page})
  add_custom_target(manpage_${program} ALL DEPENDS ${page})
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} COMPONENT ${component})
endfunction()
bulkhead_manpage(cli bulkheadctl 1)
bulkhead_manpage(node bulkheadd 8)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "The Bulkhead developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Training jobs that survive the loss of replicas")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_COMPONENTS_ALL cli node console)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
foreach(component cli node console)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME bulkhead-${component})
endforeach()
set(CPACK_COMPONENT_CLI_DESCRIPTION "bulkheadctl, for terminals and scripts")
set(CPACK_COMPONENT_NODE_DESCRIPTION "The daemon, the ranks and their plugins, for every node")
set(CPACK_COMPONENT_CONSOLE_DESCRIPTION "The operator's console, with a demo job")
set(CPACK_DEBIAN_CONSOLE_PACKAGE_DEPENDS "bulkhead-cli (= ${PROJECT_VERSION}), bulkhead-node (= ${PROJECT_VERSION}), fonts-roboto-unhinted, qt6-qpa-plugins")
set(CPACK_DEBIAN_CLI_PACKAGE_RECOMMENDS "bulkhead-node")
set(CPACK_DEBIAN_NODE_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/resources/systemd/postinst)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
