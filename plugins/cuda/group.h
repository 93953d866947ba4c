// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/cuda/device.h"

/// The group part of the device table: the ranks of one replica.
namespace bulkhead::cuda {

bulkhead_status createGroup(bulkhead_device* device, const bulkhead_group_desc* desc,
                            bulkhead_group** out);
void destroyGroup(bulkhead_group* group);
void abortGroup(bulkhead_group* group);
bulkhead_status allGather(bulkhead_group* group, const void* from, void* to, size_t count,
                          bulkhead_dtype type, bulkhead_stream* stream);
bulkhead_status reduceScatter(bulkhead_group* group, const void* from, void* to, size_t count,
                              bulkhead_dtype type, bulkhead_stream* stream);
bulkhead_status allToAll(bulkhead_group* group, const void* from, const size_t* sendBytes, void* to,
                         const size_t* recvBytes, bulkhead_stream* stream);
bulkhead_status barrier(bulkhead_group* group);

}  // namespace bulkhead::cuda
