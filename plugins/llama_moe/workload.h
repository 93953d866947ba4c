// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bulkhead/workload.h"
#include "plugins/llama_moe/gpu/machine.h"
#include "plugins/llama_moe/shard_model.h"

namespace bulkhead::llama_moe {

/// One shard as the workload ABI sees it, with status values; bulkhead/workload.h says what each
/// function does. Arguments from outside are checked here and nowhere below.
class Workload {
  public:
    /// On `machine`, in bfloat16; without one on the CPU.
    static absl::StatusOr<std::unique_ptr<Workload>> create(const bulkhead_workload_config& config,
                                                            const gpu::MachineApi* machine);

    const bulkhead_host* host() const { return host_; }
    void describe(bulkhead_model_info* out) const;
    uint32_t parameters(bulkhead_parameter* out, uint32_t capacity) const;
    uint32_t stateTensors(bulkhead_state_tensor* out, uint32_t capacity) const;

    absl::Status initialise(uint64_t seed);
    absl::Status forwardBackward(const bulkhead_batch& batch, bulkhead_gradient_ready ready,
                                 void* context);
    absl::Status evaluate(const bulkhead_batch& batch, bulkhead_metrics* metrics);
    absl::Status metrics(bulkhead_metrics* out);
    float* gradient() { return model_->gradient(); }
    uint64_t gradientCount() const { return model_->layout().count(); }

    absl::StatusOr<double> sumOfSquares(const float* reduced) {
        return model_->sumOfSquares(reduced);
    }
    absl::Status apply(const float* reduced, const bulkhead_update& update);

    absl::Status exportState(uint64_t offset, uint64_t bytes, void* to);
    absl::Status exportStateOn(uint64_t offset, uint64_t bytes, void* to, bulkhead_stream* stream);
    absl::Status importState(uint64_t offset, uint64_t bytes, const void* from);
    void imported() { model_->forgetWholeUnits(); }
    absl::StatusOr<uint64_t> hash() { return model_->hash(); }

    absl::Status layout(int32_t* out, uint32_t capacity) const;
    absl::Status adoptLayout(const int32_t* expertShard, uint32_t count);
    absl::StatusOr<uint64_t> changeLayout(const int32_t* expertShard, uint32_t count);
    absl::Status settleLayout(bool keep) { return model_->settleLayout(keep); }
    absl::Status routing(uint32_t sample, uint32_t* out);

  private:
    Workload() = default;
    absl::Status open(const bulkhead_workload_config& config, const gpu::MachineApi* machine);
    template <class A>
    absl::Status makeModel(std::unique_ptr<Math<A>> math);
    absl::Status checkBatch(const bulkhead_batch& batch) const;
    absl::Status checkRange(uint64_t offset, uint64_t bytes) const;
    absl::StatusOr<Placement> checkPlacement(const int32_t* expertShard, uint32_t count) const;
    uint64_t stateBytes() const { return 3 * gradientCount() * sizeof(float); }

    const bulkhead_host* host_ = nullptr;
    bulkhead_workload_config config_{};
    ModelSpec spec_;
    std::unique_ptr<ShardModel> model_;
    Sums sums_;
    Sums evaluation_;
};

/// The table behind bulkhead_workload_get_api.
const bulkhead_workload_api* workloadApi();
/// As the table's create, on `machine`, whatever the device is called.
bulkhead_status createOn(const gpu::MachineApi* machine, const bulkhead_workload_config* config,
                         bulkhead_workload** out);

}  // namespace bulkhead::llama_moe
