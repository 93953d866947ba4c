// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Keys of what an exported file says beside its tensors; docs/checkpoints.md describes them.
namespace bulkhead::interchange {

constexpr const char* kJobKey = "bulkhead.run";
constexpr const char* kRunKey = "bulkhead.run_identity";
constexpr const char* kStepKey = "bulkhead.step";
constexpr const char* kLineageKey = "bulkhead.lineage";
constexpr const char* kShardKey = "bulkhead.shard";
constexpr const char* kModelKey = "bulkhead.model";
constexpr const char* kModelHashKey = "bulkhead.model_hash";
constexpr const char* kJobHashKey = "bulkhead.job_hash";
constexpr const char* kStateHashKey = "bulkhead.state_hash";
constexpr const char* kNumbersKey = "bulkhead.numbers";
constexpr const char* kTablesKey = "bulkhead.tables";
constexpr const char* kManifestKey = "bulkhead.manifest";

}  // namespace bulkhead::interchange
