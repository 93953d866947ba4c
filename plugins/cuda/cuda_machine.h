// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "bulkhead/data_plane.h"
#include "plugins/cuda/device.h"
#include "plugins/cuda/ftar/machine.h"

namespace bulkhead::cuda {

/// A GPU for a data plane. Other processes' memory is mapped through CUDA IPC; that of ranks which
/// live in this process is used as it is. The kernel has a stream of its own, before all others.
/// `device` outlives it.
class CudaMachine final : public Machine {
  public:
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<CudaMachine>> create(
        bulkhead_device* device);
    ~CudaMachine() override;

    absl::StatusOr<void*> allocatePinned(size_t bytes) override;
    void freePinned(void* memory) override;
    absl::Status launch(Queue* queue, uint32_t blocks, uint64_t run) override;
    absl::Status health() override;
    absl::StatusOr<Place> place(const void* memory, size_t bytes) override;
    absl::StatusOr<Block> map(const Place& place) override;
    void unmap(const Block& block) override;
    void epochBegan() override;
    bool givesBack() override;
    void membersMet() override;

  private:
    explicit CudaMachine(bulkhead_device* device) : device_(device) {}
    absl::Status enter() const;
    absl::StatusOr<Block> own(const Place& place) const;

    bulkhead_device* const device_;
    cudaStream_t stream_ = nullptr;
};

/// Opens a data plane; passed to planeApi().
bulkhead_status openPlane(bulkhead_device* device, uint32_t blocks, bulkhead_plane** out);

}  // namespace bulkhead::cuda
