// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/fields.h"
#include "backend/planner/plan/plan.h"

/// Plans as the files that serving engines read at start, and the same files back. An engine takes
/// which expert lies in which slot, slots in blocks of equal size a GPU; dispatch weights and homes
/// of requests are for our own JSON (plan_json.h) only, and the notes say when something was left
/// behind. Everything is text in memory; any thread.
namespace bulkhead::planner {

/// A file's text and what could not be said in it.
struct EngineFile {
    std::string text;
    std::vector<std::string> notes;
};

/// Placement in an engine's file: rows of slots, each under the engine's own number of the layer.
struct EnginePlacement {
    uint32_t devices = 0;  ///< 0: the file does not say
    std::vector<uint32_t> layerNumbers;
    std::vector<std::vector<uint32_t>> expertOfSlot;  ///< [row][slot]
    bool operator==(const EnginePlacement&) const = default;
};

enum class Engine { kBulkhead, kSglang, kTrtllm, kAscend, kVllm };

/// Returns how an engine that starts with the exported file chooses among an expert's replicas;
/// kBulkhead means the user's own server. SGLang (read in an excerpt of its sources that named no
/// version) dispatches `static` when it is given --init-expert-location: each rank to the replica
/// that it holds, else to a fixed one drawn at random. vLLM (likewise) counts positions modulo the
/// number of replicas. TensorRT-LLM does so by token and rank, vLLM-Ascend prefers a rank's own
/// replica: these two are not checked against any source.
[[nodiscard]] Router routerOf(Engine engine);

/// The plan as `engine` reads it; kBulkhead: our own JSON with everything. `decoderLayers` is
/// SGLang's. Errors as the functions below.
[[nodiscard]] absl::StatusOr<EngineFile> engineFile(const Plan& plan, Engine engine,
                                                    uint32_t decoderLayers = 0);

/// SGLang's --init-expert-location (srt/eplb/expert_location.py: certain that a JSON of exactly the
/// key "physical_to_logical_map", [decoder layers][slots], is a fixed map; quite sure of the rows).
/// Dense layers have rows too, which nobody reads: 0, 1, 2, ... `decoderLayers` 0: up to the last
/// MoE layer. Start the server with --ep-num-redundant-experts as in the notes. FailedPrecondition
/// when GPUs hold different numbers of slots.
[[nodiscard]] absl::StatusOr<EngineFile> sglangLocation(const Plan& plan,
                                                        uint32_t decoderLayers = 0);
[[nodiscard]] absl::StatusOr<EnginePlacement> readSglangLocation(std::string_view text,
                                                                 std::string_view file);

/// TensorRT-LLM's load balancer (moe_config.load_balancer; MoeLoadBalancerConfig of its
/// documentation and tests: certain): YAML of num_slots, layer_updates_per_iter (0: static) and
/// initial_global_assignments {layer's own number: [num_slots experts]}. The same precondition.
[[nodiscard]] absl::StatusOr<EngineFile> trtllmBalancer(const Plan& plan);
[[nodiscard]] absl::StatusOr<EnginePlacement> readTrtllmBalancer(std::string_view text,
                                                                 std::string_view file);

/// vLLM-Ascend's expert_map_path (vllm_ascend/ops/expert_load_balancer.py and the generator in its
/// repository: certain): {"moe_layer_count", "layer_list": [{"layer_id", "device_count",
/// "device_list": [{"device_id", "device_expert": [...]}]}]}, layers counted over MoE layers. Lists
/// of equal length; an expert once at most on a device (it keeps one place a device and expert).
[[nodiscard]] absl::StatusOr<EngineFile> ascendMap(const Plan& plan);
[[nodiscard]] absl::StatusOr<EnginePlacement> readAscendMap(std::string_view text,
                                                            std::string_view file);

/// The file for vLLM: no placement, as it takes none. Its EPLBConfig (documentation of v0.32.0,
/// vllm.config.parallel: certain) has no map of experts; it places them linearly or in turn at
/// start and, with --enable-eplb, for even load alone. The text is the --eplb-config of as many
/// redundant experts; the notes say the rest. The same precondition.
[[nodiscard]] absl::StatusOr<EngineFile> vllmSettings(const Plan& plan);

}  // namespace bulkhead::planner

template <>
struct bulkhead::EnumNames<bulkhead::planner::Engine> {
    static constexpr std::array<std::string_view, 5> kNames{"bulkhead", "sglang", "trtllm",
                                                            "ascend", "vllm"};
};
