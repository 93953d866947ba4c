// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "backend/model/command.h"
#include "backend/model/job_spec.h"

/// Faults and actions as one word of text, for the command line, job files and audit lines:
///
///     kill:replica=2@step=50            kill:rank=r2s1@step=50/exchange
///     hang:rank=r1s0,for=3s             slow:rank=r0s1,factor=4,for=10s
///     cut:replica=3,for=5s              delay:replica=1,by=20ms
///     flip-gradient:replica=1@step=30   nan:replica=1        flip-parameter:replica=1
///     fill-disk:node=node0,for=10s      kill-node:node=node1
///
///     drain:replica=2   cordon:node=node1   uncordon:node=node1   hold-rejoin:replica=2
///     release-rejoin:replica=2   restart:replica=2   pause   resume   checkpoint   stop
///     set-policy:lr=linear   layout:shards=0.1.1.0 (of each expert, mixture layer by layer)
///
/// i.e. verb [":" key "=" value {"," key "=" value}] ["@step=" N ["/" phase]]. Durations are a
/// number with ms, s or m. rank=rRsS is shard S of replica R
/// (R.S in older files). Without @step a fault happens at once;
/// without `for`, hang, slow, cut, delay and fill-disk last until they are ended, or the process or
/// the job ends.
/// Thread: any.
namespace bulkhead::model {

/// InvalidArgument says which part, what was expected, and the nearest word if one is near.
[[nodiscard]] absl::StatusOr<FaultSpec> parseFault(std::string_view text);
[[nodiscard]] absl::StatusOr<Action> parseAction(std::string_view text);

/// parseFault(formatFault(f)) equals f for every fault that parses; likewise actions.
[[nodiscard]] std::string formatFault(const FaultSpec& fault);
[[nodiscard]] std::string formatAction(const Action& action);

/// InvalidArgument when a fault or action lacks a target it needs, or has one that it cannot use.
[[nodiscard]] absl::Status checkFault(const FaultSpec& fault);
[[nodiscard]] absl::Status checkAction(const Action& action);

/// In an operator's words, without a full stop: "Kill replica 2 when step 50 begins",
/// "Stop rank r1s0 for 3 s (SIGSTOP)", "Set policy lr to linear".
[[nodiscard]] std::string describe(const FaultSpec& fault);
[[nodiscard]] std::string describe(const Action& action);

/// `policies` with one key changed, names and values as in a job file's [policies].
/// InvalidArgument for an unknown key or a value it cannot take.
[[nodiscard]] absl::StatusOr<Policies> withPolicy(const Policies& policies, std::string_view key,
                                                  std::string_view value);

/// Milliseconds of "500ms", "3s" or "2m"; at least 1 ms, at most 1e10.
[[nodiscard]] std::optional<uint64_t> parseDuration(std::string_view text);

}  // namespace bulkhead::model
