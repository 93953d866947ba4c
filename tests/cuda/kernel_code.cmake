# SPDX-License-Identifier: Apache-2.0
# cmake -DNVCC=... -DPTXAS=... -DROOT=... -DSOURCE=x.cu -DARCH=90 -DFTAR=1 -DOUT=folder -P this
# The code that a GPU gets of a source: no kernel may spill registers, and with FTAR the exchange's
# kernel has its bounds, tells the host its words in the right order and fetches ahead. Without, the kernels that
# multiply tiles take the tensor cores for it, with operands that came into the block's own memory
# while it computed; for Hopper alone (90a) experts' products are its own, one behind the other.
file(MAKE_DIRECTORY ${OUT})
set(ptx ${OUT}/kernels_${ARCH}.ptx)
execute_process(COMMAND ${NVCC} -ptx -arch=compute_${ARCH} -O3 -std=c++17 -I${ROOT}
    -I${ROOT}/plugins/include ${ROOT}/${SOURCE} -o ${ptx}
  RESULT_VARIABLE code ERROR_VARIABLE said)
if(code)
  message(FATAL_ERROR "${SOURCE} does not compile: ${said}")
endif()
execute_process(COMMAND ${PTXAS} -v -arch=sm_${ARCH} ${ptx} -o ${OUT}/kernels_${ARCH}.cubin
  RESULT_VARIABLE code OUTPUT_VARIABLE said ERROR_VARIABLE said)
if(code)
  message(FATAL_ERROR "ptxas refuses ${ptx}: ${said}")
endif()

string(REGEX MATCHALL "Compiling entry function[^\n]*\n[^\n]*\n[^\n]*\n[^\n]*" kernels "${said}")
list(LENGTH kernels count)
if(count EQUAL 0)
  message(FATAL_ERROR "ptxas names no kernel; it said: ${said}")
endif()
foreach(kernel IN LISTS kernels)
  string(REGEX MATCH "'([^']+)'" ignored "${kernel}")
  set(name ${CMAKE_MATCH_1})
  if(NOT kernel MATCHES " 0 bytes spill stores, 0 bytes spill loads")
    message(SEND_ERROR "${name} spills registers for sm_${ARCH}: ${kernel}")
  endif()
  string(REGEX MATCH "Used ([0-9]+) registers" ignored "${kernel}")
  set(used ${CMAKE_MATCH_1})
  message(STATUS "sm_${ARCH} ${used} registers: ${name}")
  if(FTAR AND name MATCHES "4ftarE")
    set(registers ${used})
  endif()
endforeach()
# What ptxas says where it makes such products wait for each other.
if(said MATCHES "C75[12][0-9]")
  message(SEND_ERROR "ptxas holds products up for sm_${ARCH}: ${said}")
endif()
if(NOT FTAR)
  file(READ ${ptx} text)
  string(REGEX MATCHALL "\\.entry [a-zA-Z0-9_]*(Attention|MultiplyGroups)[a-zA-Z0-9_]*" entries
    "${text}")
  list(LENGTH entries count)
  if(count LESS 11)
    message(SEND_ERROR "${SOURCE} has ${count} kernels of tiles, expected 11: ${entries}")
  endif()
  foreach(entry IN LISTS entries)
    string(FIND "${text}" "${entry}" begin)
    string(SUBSTRING "${text}" ${begin} -1 body)
    string(FIND "${body}" "\n}" end)
    string(SUBSTRING "${body}" 0 ${end} body)
    set(instructions "mma.sync.aligned.m16n8k16" "ldmatrix.sync.aligned.m8n8.x4.shared"
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared" "cp.async")
    if(ARCH STREQUAL "90a" AND entry MATCHES "MultiplyGroups")
      set(instructions "wgmma.mma_async.sync.aligned.m64n256k16" "fence.proxy.async.shared"
        "cp.async")
    endif()
    foreach(instruction ${instructions})
      if(NOT body MATCHES "${instruction}")
        message(SEND_ERROR "${entry} has no ${instruction} for sm_${ARCH}")
      endif()
    endforeach()
  endforeach()
  return()
endif()

if(NOT registers)
  message(FATAL_ERROR "${SOURCE} has no kernel of the exchange; found ${kernels}")
endif()
# Of 65,536 on a multiprocessor, 512 threads then leave half to training.
if(registers GREATER 64)
  message(SEND_ERROR "the exchange's kernel uses ${registers} registers for sm_${ARCH}, at most 64 are free")
endif()
file(READ ${ptx} text)
if(NOT text MATCHES "\\.extern \\.shared \\.align 128 [^\n]*ringOfBlock")
  message(SEND_ERROR "the ring does not begin with a line of 128 bytes")
endif()
string(REGEX MATCH "\\.entry [a-zA-Z0-9_]*4ftarE.*" body "${text}")
string(FIND "${body}" "\n}" end)
string(SUBSTRING "${body}" 0 ${end} body)
# Posted, stop and fence are read so, finished, entered and left written so; entered is seen before
# what is read after it. While the block adds, the next pieces come into its own memory.
foreach(word "ld.acquire.sys.u64:3" "st.release.sys.u64:3" "fence.sc.sys:1"
        "cp.async.cg.shared.global:3" "cp.async.wait_group:3")
  string(REGEX REPLACE ":.*" "" instruction ${word})
  string(REGEX REPLACE ".*:" "" least ${word})
  string(REGEX MATCHALL "${instruction}" found "${body}")
  list(LENGTH found found)
  if(found LESS least)
    message(SEND_ERROR "the exchange's kernel has ${found} ${instruction}, expected ${least} or more")
  endif()
endforeach()
