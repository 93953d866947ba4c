// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/threads.h"
#include "backend/runtime/replica/corpus.h"
#include "backend/runtime/replica/device_copy.h"
#include "backend/runtime/replica/plugin_host.h"
#include "backend/runtime/replica/replica_rank.h"
#include "backend/runtime/replica/training_program.h"
#include "bulkhead/device.h"
#include "bulkhead/workload.h"

namespace bulkhead::runtime {

/// One workload plugin on one device, as a program that trains. Where the CPU cannot reach the
/// device's memory, the device exchanges gradients itself; where it cannot do that either, gradient
/// and sum are staged in host memory.
/// Thread: one, except interrupt().
class WorkloadProgram final : public TrainingProgram {
  public:
    /// `modelDir` has a folder of model sizes for each workload. Errors of loadWorkload and
    /// loadDevice, and of opening the device. `corpus` outlives the program.
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<WorkloadProgram>> create(
        const model::JobSpec& spec, RankId rank, const std::string& modelDir, const Corpus* corpus);
    ~WorkloadProgram() override;

    /// Computes the gradient of this shard's part of `work`, telling `rank` as it goes.
    [[nodiscard]] absl::StatusOr<StepFigures> compute(const Work& work, ReplicaRank* rank);

    absl::Status build(const BuildOrder& order) override;
    absl::Status warmUp() override;
    protocol::ModelDescribed describe() const override;
    uint64_t stateBytes() const override { return info_.state_bytes; }
    std::shared_ptr<const std::string> tensorTable() override;
    /// The plugin's state begins with the parameters, as many as the gradient has values.
    uint64_t parameterBytes() const override { return gradient_.size_bytes(); }
    absl::Status exportState(uint64_t offset, std::span<std::byte> to) override;
    absl::Status keepState() override;
    absl::Status restoreKept() override;
    void forgetKept() override;
    void snapshot(StateBytes* to, std::function<void(absl::Status)> done) override;
    void awaitCopies() override;
    absl::Status importState(uint64_t offset, std::span<const std::byte> from) override;
    absl::Status imported() override;
    absl::StatusOr<uint64_t> stateHash() override;
    std::span<float> gradient() override { return gradient_; }
    std::span<float> reduced() override { return reduced_; }
    DevicePlane dataPlane() const override { return {planeApi_, plane_}; }
    absl::Status read(std::span<const float> at, std::span<float> to) override;
    absl::Status write(std::span<const float> from, std::span<float> at) override;
    void readSum(std::span<float> to, std::function<void(absl::Status)> done) override;
    void awaitSum() override;
    void giveUpSum() override;
    StateBytes stateRoom(uint64_t bytes) override;
    /// Where it computes, and whether it exchanges there: Hello::device.
    std::string deviceName() const;
    const SharedHeap* peerMemory() const override { return peerMemory_; }
    absl::StatusOr<double> sumOfSquares(std::span<const float> reduced) override;
    absl::Status apply(const CommitRecord& record, std::span<const float> reduced) override;
    absl::StatusOr<std::vector<int32_t>> expertShard() override;
    absl::Status adoptLayout(const std::vector<int32_t>& expertShard) override;
    absl::StatusOr<uint64_t> moveLayout(const std::vector<int32_t>& expertShard) override;
    absl::Status settleLayout(bool keep) override;
    void interrupt() override;

  private:
    WorkloadProgram(const model::JobSpec& spec, RankId rank, std::string modelDir,
                    const Corpus* corpus);

    /// Decoder layer of each mixture, from the workload's list of parameters.
    std::vector<uint32_t> mixtureLayers() const;
    absl::Status createGroup(const BuildOrder& order);
    absl::Status createWorkload();
    absl::Status bindMemory();
    void freeMemory();
    /// Whole copies of the state leave the device on streams of their own.
    bool copiesBeside() const { return states_ != nullptr && api_->export_state_on != nullptr; }
    absl::Status fillBatch(const std::vector<std::pair<uint32_t, uint64_t>>& samples, size_t first);
    absl::StatusOr<StepFigures> figures();
    /// Of the micro-batch just computed, until `tokens` are told.
    absl::Status addRouting(const std::vector<std::pair<uint32_t, uint64_t>>& samples, size_t first,
                            uint32_t tokens, std::vector<RoutedSample>& routed);
    void openPlane(const bulkhead_data_plane_api* api);
    absl::StatusOr<const float*> onDevice(std::span<const float> values);
    absl::Status gradientStands(uint64_t begin, uint64_t end);

    const model::JobSpec spec_;
    const RankId rank_;
    const std::string modelDir_;
    const Corpus* corpus_;
    PluginLog log_;
    const bulkhead_workload_api* api_ = nullptr;
    OpenDevice device_{.log = &log_};
    Mutex groupMutex_;  ///< between interrupt() and the group's end
    bulkhead_group* group_ ABSL_GUARDED_BY(groupMutex_) = nullptr;
    std::atomic<bool> interrupted_{false};
    bulkhead_workload* workload_ = nullptr;
    bulkhead_model_info info_{};
    std::shared_ptr<const std::string> tensors_;  ///< of the layout as it is; null: not asked for

    bool apart_ = false;  ///< device memory is out of the CPU's reach
    const bulkhead_data_plane_api* planeApi_ = nullptr;
    bulkhead_plane* plane_ = nullptr;  ///< null: none, or no need of one
    float* deviceGradient_ = nullptr;
    void* movedGradient_ = nullptr;  ///< where the exchange needs it, if it is not there
    void* hostReduced_ = nullptr;
    void* deviceReduced_ = nullptr;
    void* deviceDelta_ = nullptr;  ///< a sum that came from host memory
    void* kept_ = nullptr;         ///< on the device, the state that keepState() kept
    uint64_t keptBytes_ = 0;
    std::span<float> gradient_;
    std::span<float> reduced_;
    const SharedHeap* peerMemory_ = nullptr;

    /// Two, so that a snapshot waits for no sum. Null: all is where the CPU copies it itself.
    std::unique_ptr<DeviceCopy> states_, sums_;

    std::vector<int32_t> tokens_;
    std::vector<uint32_t> domains_;
};

}  // namespace bulkhead::runtime
