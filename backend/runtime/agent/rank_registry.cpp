// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/rank_registry.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "backend/common/codec.h"

namespace bulkhead::runtime {
namespace fs = std::filesystem;

absl::StatusOr<RankRegistry> RankRegistry::open(const std::string& dir) {
    std::error_code error;
    fs::create_directories(dir, error);
    if (error)
        return absl::PermissionDeniedError(
            absl::StrCat("cannot make the agent's directory ", dir, ": ", error.message()));
    ::chmod(dir.c_str(), 0700);
    const std::string lockPath = dir + "/agent.lock";
    UniqueFd lock(::open(lockPath.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    if (!lock.valid())
        return absl::PermissionDeniedError(
            absl::StrCat("cannot open ", lockPath, ": ", std::strerror(errno)));
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
        return absl::FailedPreconditionError(absl::StrCat(
            "another agent uses ", dir, "; stop it or give this one a directory of its own"));
    return RankRegistry(dir, std::move(lock));
}

std::string RankRegistry::path(const RankProcess& process, const char* suffix) const {
    return absl::StrCat(dir_, "/", process.job, "-r", process.rank.replica, "s", process.rank.shard,
                        "-i", process.incarnation, suffix);
}

std::vector<RegisteredRank> RankRegistry::load() const {
    std::vector<RegisteredRank> ranks;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(dir_, error)) {
        if (entry.path().extension() != ".rank") continue;
        std::ifstream file(entry.path(), std::ios::binary);
        std::stringstream bytes;
        bytes << file.rdbuf();
        if (auto rank = decode<RegisteredRank>(bytes.str()); rank.ok())
            ranks.push_back(*std::move(rank));
        else
            fs::remove(entry.path(), error);
    }
    return ranks;
}

absl::Status RankRegistry::add(const RegisteredRank& rank) {
    const std::string target = path(rank.process, ".rank");
    const std::string temporary = target + ".new";
    {
        std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
        file << encode(rank);
        if (!file.flush())
            return absl::UnavailableError(
                absl::StrCat("cannot write ", temporary, ": ", std::strerror(errno)));
    }
    std::error_code error;
    fs::rename(temporary, target, error);
    if (error)
        return absl::UnavailableError(absl::StrCat("cannot write ", target, ": ", error.message()));
    return absl::OkStatus();
}

void RankRegistry::remove(const RankProcess& process) {
    for (const char* suffix : {".rank", ".out", ".err"}) ::unlink(path(process, suffix).c_str());
}

absl::StatusOr<std::string> RankRegistry::pipe(const RankProcess& process, bool isStderr) const {
    const std::string name = path(process, isStderr ? ".err" : ".out");
    if (::mkfifo(name.c_str(), 0600) != 0 && errno != EEXIST)
        return absl::UnavailableError(
            absl::StrCat("cannot make the pipe ", name, ": ", std::strerror(errno)));
    return name;
}

}  // namespace bulkhead::runtime
