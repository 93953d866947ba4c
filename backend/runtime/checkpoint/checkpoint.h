// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/file_system.h"
#include "backend/common/types.h"
#include "backend/runtime/checkpoint/state_bytes.h"
#include "backend/runtime/protocol/checkpoint_book.h"

/// Checkpoints on disk. One checkpoint is a folder of one file per shard and `manifest.json`, which
/// is written last and in one rename: a folder without it is no checkpoint.
namespace bulkhead::runtime {

/// One shard's whole state after step `step`, as its workload exported it.
struct StateSnapshot {
    uint64_t lineage = 0;
    uint64_t step = 0;
    uint64_t layout = 0;
    std::vector<int32_t> expertShard;  ///< the layout's placement
    uint64_t hash = 0;                 ///< bulkhead_state_hash() of `bytes`
    CommitRecord last;                 ///< the record that led here; step 0: none
    StateBytes bytes;
    /// The replica keeps it for itself alone: `hash` does not cover it, and nobody is served it.
    std::vector<std::byte> local;
    /// tensorTableText() of `bytes`; null: the program does not say.
    std::shared_ptr<const std::string> tensors;
};

/// Internal when `bytes` do not have `hash`: memory was damaged between the two.
[[nodiscard]] absl::Status checkIntact(const StateSnapshot& snapshot);

/// Version of the manifests that are written. Version 1, which is read as well, hashed a state as
/// one run (XXH3-64); since then the hash is bulkhead_state_hash().
constexpr int kManifestVersion = 2;

struct CheckpointFile {
    int32_t shard = 0;
    std::string name;    ///< within the checkpoint's folder
    uint64_t bytes = 0;  ///< of the file
    uint64_t hash = 0;   ///< of the state in it
};

/// All that is needed to go on: what the state is, what it has seen, and under which policies.
/// The order of samples follows from `seed`, so the seed is the whole random state.
struct CheckpointManifest {
    int version = kManifestVersion;
    std::string job;
    std::string run;  ///< identity of the run that wrote it; empty: not known
    uint64_t step = 0;
    uint64_t lineage = 0;
    uint64_t term = 0;
    uint64_t layout = 0;
    std::vector<int32_t> expertShard;
    int32_t replica = 0;  ///< that wrote it
    uint32_t shards = 0;
    uint64_t seed = 0;
    uint64_t corpusHash = 0;
    std::string dataPosition;  ///< the coordinator's data ledger, opaque here
    std::string jobJson;       ///< the job with its policies
    CommitRecord last;
    /// Those that led to the state, up to `last`, as far back as the writer has them. Empty where
    /// `dataPosition` says which samples it has seen.
    std::vector<CommitRecord> records;
    int64_t unixNs = 0;
    std::vector<CheckpointFile> files;  ///< by shard
};

/// Name of the folder below the job's checkpoint directory; sorts by step within a lineage. The
/// same state in another layout, or by another incarnation, is another checkpoint: one never
/// overwrites or removes files of the other.
std::string checkpointFolder(uint64_t lineage, uint64_t step, uint64_t layout, int32_t replica,
                             uint32_t incarnation);

/// Writes one shard durably: temporary file, fsync, rename; its tensor table, if there is one,
/// before it, in a file of its own. On error nothing stays behind, and the status names the file
/// and the reason (ResourceExhausted when the disk is full). Nor is a state written that
/// checkIntact() refuses.
[[nodiscard]] absl::StatusOr<CheckpointFile> writeShardFile(FileSystem& files,
                                                            const std::string& folder,
                                                            int32_t shard,
                                                            const StateSnapshot& snapshot);

/// JSON.
std::string manifestText(const CheckpointManifest& manifest);

/// Makes the checkpoint exist. All files of `manifest` must be durable. Returns the manifest's
/// path; an error naming a file that is not there or is shorter than the manifest says.
[[nodiscard]] absl::StatusOr<std::string> writeManifest(FileSystem& files,
                                                        const std::string& folder,
                                                        const CheckpointManifest& manifest);

/// NotFound, or DataLoss naming the field that is missing or wrong.
[[nodiscard]] absl::StatusOr<CheckpointManifest> readManifest(const FileSystem& files,
                                                              const std::string& path);

/// Reads a manifest from its text; `path` is for the message. DataLoss as readManifest().
[[nodiscard]] absl::StatusOr<CheckpointManifest> parseManifest(const std::string& path,
                                                               const std::string& text);

/// DataLoss when the manifest describes another checkpoint than the one of `step` whose states have
/// these `hashes`, by shard: somebody copied or renamed folders. 0 and empty: not known.
[[nodiscard]] absl::Status checkIsMeant(const std::string& path, const CheckpointManifest& manifest,
                                        uint64_t step, const std::vector<uint64_t>& hashes);

/// FailedPrecondition when the job's text, of hash `corpusHash`, is not the one that the checkpoint
/// was trained on: the positions in the manifest mean nothing in another; its hash 0: not known.
/// `newest` is what of the text changed last.
[[nodiscard]] absl::Status checkSameText(const std::string& path,
                                         const CheckpointManifest& manifest, uint64_t corpusHash,
                                         const std::string& newest);

/// The state of `shard`, its length and hash checked against the manifest and the file's own
/// header; with the hash that workloads compute now, whatever the manifest's is.
[[nodiscard]] absl::StatusOr<std::shared_ptr<StateSnapshot>> readShardFile(
    const FileSystem& files, const std::string& manifestPath, const CheckpointManifest& manifest,
    int32_t shard);

/// Bytes of that state from `offset` on, whose hash is not looked at: readShardFile() does that,
/// and has the whole state in memory.
[[nodiscard]] absl::Status readShardBytes(const FileSystem& files, const std::string& manifestPath,
                                          const CheckpointFile& file, uint64_t offset,
                                          std::span<std::byte> to);

/// Paths of the manifests below `directory`, oldest first by (lineage, step); empty when none.
std::vector<std::string> listCheckpoints(const FileSystem& files, const std::string& directory);

/// The folder of a checkpoint, whatever of it is left.
struct CheckpointPlace {
    std::string path;
    uint64_t lineage = 0;
    uint64_t step = 0;
};

/// The newest below `directory` by the folders' names; nullopt: there is none.
std::optional<CheckpointPlace> newestFolder(const FileSystem& files, const std::string& directory);

/// Removes what older, unfinished checkpoints of the same replica left beside `folder`.
void discardUnfinished(FileSystem& files, const std::string& folder);

/// Removes a checkpoint, or what an unfinished one left in `folder`; manifest first.
void discardCheckpoint(FileSystem& files, const std::string& folder);

/// Removes the checkpoint of this manifest, if it lies directly below `directory`: a rank removes
/// what its own job wrote, whatever it is told.
void discardOwnCheckpoint(FileSystem& files, const std::string& directory,
                          const std::string& manifestPath);

/// DataLoss or NotFound naming the first file of the checkpoint that is not there or is shorter
/// than its manifest says. What is in them is not looked at.
[[nodiscard]] absl::Status checkFiles(const FileSystem& files, const std::string& manifestPath,
                                      const CheckpointManifest& manifest);

/// Names and sizes of all that lies below `directory`: equal as long as nothing comes or goes.
std::string inventoryOf(const FileSystem& files, const std::string& directory);

/// The checkpoints below `directory` whose manifest can be read and whose files are all there and
/// as long as it says; their contents are checked when they are loaded.
std::vector<protocol::StoredCheckpoint> storedCheckpoints(const FileSystem& files,
                                                          const std::string& directory);

}  // namespace bulkhead::runtime
