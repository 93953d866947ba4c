// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/commit_log.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {

absl::StatusOr<CommitLog> CommitLog::open(FileSystem& files, const std::string& path) {
    auto file = files.open(path);
    if (!file.ok()) return file.status();
    auto bytes = files.read(path);
    if (!bytes.ok()) return bytes.status();
    auto decoded = protocol::decodeLog(*bytes);
    if (!decoded.ok())
        return absl::Status(decoded.status().code(),
                            absl::StrCat(path, ": ", std::string(decoded.status().message())));
    // A crash leaves the piece of one write, and damage can leave more: people may want it.
    if (decoded->tornTail)
        (void)writeDurably(files, path + ".tail",
                           std::string_view(*bytes).substr(decoded->validBytes));
    const bool longer = (*file)->size() > bytes->size();  // by a hole
    const bool begun = decoded->validBytes >= protocol::kLogHeader.size();
    absl::Status ready = (*file)->truncate(begun ? decoded->validBytes : 0);
    if (ready.ok() && !begun) ready = (*file)->append(protocol::kLogHeader);
    if (ready.ok()) ready = (*file)->sync();
    if (ready.ok()) ready = files.syncFolder(folderOf(path));
    if (!ready.ok()) return ready;
    CommitLog log(path, *std::move(file));
    log.entries_ = std::move(decoded->entries);
    log.hadTornTail_ = decoded->tornTail || longer;
    return log;
}

absl::Status CommitLog::append(const std::vector<protocol::LogEntry>& entries) {
    if (broken_)
        return absl::FailedPreconditionError(
            absl::StrCat(path_, " failed before; the coordinator must start again to read it"));
    std::string bytes;
    for (const protocol::LogEntry& entry : entries) bytes += protocol::encodeEntry(entry);
    const uint64_t durable = file_->size();
    absl::Status written = file_->append(bytes);
    if (!written.ok()) {
        broken_ = true;
        return written;
    }
    written = file_->sync();
    broken_ = !written.ok();
    // A system that failed to write pages may call them clean: whoever syncs them next is told that
    // they are durable, and they are not. Nobody has heard of these entries.
    if (broken_) (void)file_->truncate(durable);
    return written;
}

}  // namespace bulkhead::runtime
