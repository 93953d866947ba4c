// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/rank_registry.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "backend/common/codec.h"

namespace bulkhead::runtime {

absl::StatusOr<RankRegistry> RankRegistry::open(FileSystem& files, const std::string& dir) {
    if (absl::Status s = files.makeFolder(dir); !s.ok()) return s;
    auto lock = files.lock(dir + "/agent.lock");
    if (absl::IsFailedPrecondition(lock.status()))
        return absl::FailedPreconditionError(absl::StrCat(
            "another agent uses ", dir, "; stop it or give this one a directory of its own"));
    if (!lock.ok())
        return absl::Status(lock.status().code(),
                            absl::StrCat(std::string(lock.status().message()),
                                         "; remove what is there, or choose another --state-dir"));
    return RankRegistry(files, dir, *std::move(lock));
}

std::string RankRegistry::path(const RankProcess& process) const {
    return absl::StrCat(dir_, "/", process.job, "-r", process.rank.replica, "s", process.rank.shard,
                        "-i", process.incarnation);
}

std::vector<RegisteredRank> RankRegistry::load() const {
    std::vector<RegisteredRank> ranks;
    for (const std::string& name : files_->list(dir_)) {
        if (!absl::EndsWith(name, ".rank")) continue;
        const std::string file = absl::StrCat(dir_, "/", name);
        const auto bytes = files_->read(file);
        if (!bytes.ok()) continue;
        if (auto rank = decode<RegisteredRank>(*bytes); rank.ok())
            ranks.push_back(*std::move(rank));
        else
            (void)files_->remove(file);
    }
    return ranks;
}

absl::Status RankRegistry::add(const RegisteredRank& rank) {
    const std::string target = path(rank.process) + ".rank";
    const std::string temporary = target + ".new";
    auto file = files_->open(temporary);
    if (!file.ok()) return file.status();
    absl::Status status = (*file)->truncate(0);
    if (status.ok()) status = (*file)->append(encode(rank));
    if (status.ok()) status = files_->rename(temporary, target);
    if (!status.ok()) (void)files_->remove(temporary);
    return status;
}

void RankRegistry::remove(const RankProcess& process) {
    for (const char* suffix : {".rank", ".out", ".err"})
        (void)files_->remove(path(process) + suffix);
}

}  // namespace bulkhead::runtime
