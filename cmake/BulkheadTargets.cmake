# SPDX-License-Identifier: Apache-2.0
# How every target of ours is made: one place for warnings, sanitizers, linker and naming. The
# presets compile several sources at a time, since what they include takes longer than they do:
# names in the anonymous namespaces of one target must differ.

option(BULKHEAD_GRPC "Build the gRPC services, client, daemon and CLI" ON)
option(BULKHEAD_APP "Build the Qt console" ON)
option(BULKHEAD_NATIVE "Compile kernels for this machine's processor" ON)
option(BULKHEAD_CUDA "Build the CUDA device where CUDA Toolkit and NCCL are found" ON)
option(BULKHEAD_FUZZ "Build the readers under libFuzzer (needs clang)" OFF)
set(BULKHEAD_MUTANTS "" CACHE PATH "Folder with the sources that bench/mutants/places.py planted bugs into")
set(BULKHEAD_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined or thread")

add_library(bulkhead_options INTERFACE)
target_compile_features(bulkhead_options INTERFACE cxx_std_20)
target_compile_options(bulkhead_options INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wconversion -Werror>
  # It does not see that a generic lambda uses `this` in some of its instantiations.
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-unused-lambda-capture>)
target_include_directories(bulkhead_options INTERFACE ${PROJECT_SOURCE_DIR})

set(bulkhead_test_optimize -O1)  # built more often than run; what they test is -O2
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)  # what a source keeps to itself
endif()
if(BULKHEAD_SANITIZE)
  set(bulkhead_test_optimize -O0)
  add_compile_options(-fsanitize=${BULKHEAD_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${BULKHEAD_SANITIZE})
  # The optimizer takes minutes over instrumented field walks, and finds no more faults for it; see
  # bulkhead_runs_hot.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O0 -g1")
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # GCC 12 finds maybe-uninitialized values in its own library when instrumented.
    add_compile_options(-fno-var-tracking-assignments -Wno-maybe-uninitialized)
  endif()
  # Null and alignment are asked at every member access, which takes as long to compile as all the
  # rest. A null pointer ends at the address sanitizer anyway; see bulkhead_casts_bytes.
  add_compile_options(-fno-sanitize=null,alignment)
  add_compile_definitions(BULKHEAD_SANITIZED=1)
endif()

# bulkhead_casts_bytes(NAME): a library that reads values out of bytes has their alignment checked.
function(bulkhead_casts_bytes name)
  if(BULKHEAD_SANITIZE MATCHES undefined)
    target_compile_options(${name} PRIVATE -fsanitize=alignment)
  endif()
endfunction()

# bulkhead_runs_hot(NAME...): libraries in which tests spend their time are optimized all the same.
function(bulkhead_runs_hot)
  if(BULKHEAD_SANITIZE)
    foreach(name ${ARGN})
      target_compile_options(${name} PRIVATE -O1)
    endforeach()
  endif()
endfunction()

# bulkhead_mutated(NAME...): targets that are compiled from the copies in BULKHEAD_MUTANTS, where that
# is set. Each copy has the code of a place twice, so that what warns says little; a variable whose
# assignment is dropped must not have the dropped value by chance, and an index out of bounds must not
# pass: the tests run under sanitizers too.
function(bulkhead_mutated)
  if(NOT BULKHEAD_MUTANTS)
    return()
  endif()
  foreach(name ${ARGN})
    get_target_property(folder ${name} SOURCE_DIR)
    get_target_property(sources ${name} SOURCES)
    list(TRANSFORM sources PREPEND ${folder}/)
    list(TRANSFORM sources REPLACE "^${PROJECT_SOURCE_DIR}" "${BULKHEAD_MUTANTS}")
    set_target_properties(${name} PROPERTIES SOURCES "${sources}")
    target_compile_options(${name} PRIVATE -w -O1 -g0 -ftrivial-auto-var-init=pattern
                                           -D_GLIBCXX_ASSERTIONS)
  endforeach()
endfunction()

find_program(BULKHEAD_CCACHE ccache)
if(BULKHEAD_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${BULKHEAD_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${BULKHEAD_CCACHE})
endif()
find_program(BULKHEAD_MOLD mold)
if(BULKHEAD_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# bulkhead_library(NAME sources... LINK libs...): a static library with our warnings.
function(bulkhead_library name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${name} PUBLIC ${ARG_LINK} PRIVATE bulkhead_options)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_features(${name} PUBLIC cxx_std_20)
endfunction()

# bulkhead_program(NAME sources... LINK libs...): an executable in <build>/bin.
function(bulkhead_program name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} bulkhead_options)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# bulkhead_test(NAME sources... LINK libs... [JOB]): a GoogleTest executable, its cases in ctest.
# JOB marks tests that start whole jobs: they run one at a time, two cores are few.
function(bulkhead_test name)
  cmake_parse_arguments(ARG "JOB" "TIMEOUT" "LINK" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gmock GTest::gtest_main bulkhead_options)
  target_compile_options(${name} PRIVATE ${bulkhead_test_optimize})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(BULKHEAD_SANITIZE)
    math(EXPR ARG_TIMEOUT "5 * ${ARG_TIMEOUT}")  # instrumented programs run that much slower
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
  if(BULKHEAD_SANITIZE)
    # GCC 12's leak sanitizer takes the thread-local memory of plugins for what it is not, and crashes
    # at the end of a program whose threads use it.
    set_tests_properties(${name} PROPERTIES
      ENVIRONMENT_MODIFICATION "ASAN_OPTIONS=set:intercept_tls_get_addr=0")
  endif()
  if(ARG_JOB)
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK whole_job)
  endif()
endfunction()
