// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "plugins/cuda/device.h"

/// The memory part of the device table, and what of it other parts need.
namespace bulkhead::cuda {

bulkhead_status allocate(bulkhead_device* device, bulkhead_memory kind, size_t bytes, void** out);
void release(bulkhead_device* device, void* memory);
bulkhead_status copy(bulkhead_device* device, void* to, const void* from, size_t bytes,
                     bulkhead_stream* stream);
bulkhead_status zero(bulkhead_device* device, void* to, size_t bytes, bulkhead_stream* stream);
bulkhead_status reduceCopy(bulkhead_device* device, void* to, const void* const* from,
                           int32_t sources, size_t count, bulkhead_dtype fromType,
                           bulkhead_dtype toType, bulkhead_stream* stream);

/// An epoch of the exchange begins: what was given back before it goes once its members have
/// unmapped it.
void epochBegan(bulkhead_device* device);
/// They have, or nobody maps anything any more. The device is current.
void freeLeaving(bulkhead_device* device);

struct PeerBlock {
    void* base = nullptr;
    cudaIpcMemHandle_t handle{};
};
/// The block of kind PEER in which all of these bytes lie.
std::optional<PeerBlock> peerBlockOf(bulkhead_device* device, const void* memory, size_t bytes);

}  // namespace bulkhead::cuda
