// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>

#include "backend/common/digest.h"
#include "backend/common/file_system.h"
#include "backend/daemon/roles.h"
#include "backend/runtime/agent/process.h"
#include "backend/runtime/coordinator/run_files.h"
#include "backend/service/gate.h"

namespace bulkhead::daemon {
namespace {

using Steady = std::chrono::steady_clock;

constexpr size_t kLongestSocket = 107;  // sun_path without its end
/// Time limit for the processes of a daemon that was killed, or told to end, to end.
constexpr std::chrono::seconds kEndLimit{10};
/// A daemon whose creator is gone says that it ends within this time.
constexpr std::chrono::milliseconds kSaysSoWithin{300};
constexpr std::string_view kEnding = "ending\n";

/// A process that has this state directory; its start time tells it from a later one of the pid.
struct Holder {
    int32_t pid = 0;
    uint64_t startTime = 0;
};

std::string lockPath(const Options& options) {
    return options.stateDir + "/daemon.lock";
}

/// Empty for the lock of an older build.
std::vector<Holder> readHolders(const Options& options) {
    constexpr size_t kMost = 2;
    std::vector<Holder> holders;
    std::istringstream lines(diskFiles().read(lockPath(options)).value_or(""));
    for (Holder h; holders.size() < kMost && lines >> h.pid >> h.startTime;) holders.push_back(h);
    return holders;
}

/// It was killed, or is told to end.
bool isEnding(const Options& options, const Holder& holder) {
    return runtime::endingSignal(holder.pid) ||
           diskFiles().read(lockPath(options)).value_or("").ends_with(kEnding);
}

/// Waits until it has ended, with all of its files and sockets, or the time is over.
void awaitEnd(const Holder& holder, Steady::time_point until) {
    const auto start = runtime::processStartTime(holder.pid);
    if (holder.pid <= 0 || (start && *start != holder.startTime)) return;
    const auto process = runtime::openProcess(holder.pid);
    if (!process.ok()) return;
    pollfd ended{process->get(), POLLIN, 0};
    if (::poll(&ended, 1, 0) != 0) return;
    spdlog::info("waits for process {} of the daemon before, which ends", holder.pid);
    for (int n = 0; n == 0 || (n < 0 && errno == EINTR);) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Steady::now());
        if (left.count() <= 0) return;
        n = ::poll(&ended, 1, static_cast<int>(left.count()));
    }
}

}  // namespace

std::string secretId(const std::string& secret) {
    return sha256Hex("bulkhead control secret " + secret);
}

absl::StatusOr<std::string> controllerSecret(const Options& options) {
    FileSystem& files = diskFiles();
    const std::vector<std::string> open =
        runtime::unfinishedRuns(files, options.stateDir + "/jobs");
    const bool mayChange = open.empty() || options.newSecret;
    const auto refused = [&](const std::string& what) {
        return absl::FailedPreconditionError(
            options.controlToken + what + ", and " + open.front() +
            (open.size() > 1 ? " and " + std::to_string(open.size() - 1) + " more runs have"
                             : std::string(" has")) +
            " not ended: ranks that run know the secret they were started with, and would be lost; "
            "put that file back, or, when no rank runs any more (SIGTERM: it writes a checkpoint), "
            "start once with --new-secret");
    };
    auto secret = service::loadToken(options.controlToken);
    if (absl::IsNotFound(secret.status())) {
        if (!mayChange) return refused(" is not there");
        secret = service::loadOrCreateToken(options.controlToken);
    }
    if (!secret.ok()) return secret.status();
    const std::string known = options.stateDir + "/control.id";
    const std::string id = secretId(*secret) + "\n";
    const auto before = files.read(known);
    if (before.ok() && *before == id) return secret;
    if (before.ok() && !mayChange) return refused(" has another secret than before");
    // Another candidate that starts at this moment writes the same.
    if (absl::Status status = writeDurably(files, known, id);
        !status.ok() && files.read(known).value_or("") != id)
        return status;
    return secret;
}

absl::Status claimStateDir(const Options& options) {
    std::error_code error;
    // The longest of the sockets that lie in it.
    if (const size_t bytes = options.controlSocket().size(); bytes > kLongestSocket)
        return absl::InvalidArgumentError("the path of the socket " + options.controlSocket() +
                                          " has " + std::to_string(bytes) + " bytes, " +
                                          std::to_string(kLongestSocket) +
                                          " are possible; choose a shorter --state-dir");
    if (!std::filesystem::exists(options.stateDir, error)) {
        std::filesystem::create_directories(options.stateDir, error);
        if (!error) ::chmod(options.stateDir.c_str(), 0700);
    }
    if (error)
        return absl::PermissionDeniedError("state directory " + options.stateDir +
                                           " cannot be made: " + error.message() +
                                           "; choose another with --state-dir");
    struct stat about {};
    if (::stat(options.stateDir.c_str(), &about) == 0 &&
        ((about.st_mode & (S_IWGRP | S_IWOTH)) != 0 ||
         (about.st_uid != 0 && about.st_uid != ::geteuid())))
        return absl::PermissionDeniedError(
            "state directory " + options.stateDir +
            " can be written by others, who could give themselves rights with it; run chmod 700 " +
            options.stateDir + " if it is yours, or choose another with --state-dir");
    if (options.supervised) return absl::OkStatus();
    const std::string path = lockPath(options);
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return absl::PermissionDeniedError(path + " cannot be opened: " + std::strerror(errno) +
                                           "; choose another place with --state-dir");
    // The descriptor is kept on purpose: the lock lives as long as the process.
    const int how = options.etcd.empty() ? LOCK_EX : LOCK_SH;
    const auto lock = [fd, how] { return ::flock(fd, how | LOCK_NB) == 0; };
    const std::vector<Holder> before = readHolders(options);
    const auto until = Steady::now() + kEndLimit;
    const auto saysSo = Steady::now() + kSaysSoWithin;
    bool locked = lock();
    while (!locked && !before.empty()) {
        if (isEnding(options, before[0])) {
            awaitEnd(before[0], until);
            locked = lock();
            break;
        }
        if (Steady::now() >= saysSo) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        locked = lock();
    }
    if (!locked)
        return absl::AlreadyExistsError("another daemon uses the state directory " +
                                        options.stateDir +
                                        "; use that one, stop it, or choose another --state-dir");
    if (!options.etcd.empty()) return absl::OkStatus();
    // A controller ends with its supervisor, and a little after it.
    for (const Holder& holder : before) awaitEnd(holder, until);
    noteHolders(options, {});
    return absl::OkStatus();
}

void noteHolders(const Options& options, const std::vector<int32_t>& others) {
    std::ofstream lock(lockPath(options), std::ios::trunc);
    lock << ::getpid() << ' ' << runtime::processStartTime(::getpid()).value_or(0) << '\n';
    for (const int32_t pid : others)
        lock << pid << ' ' << runtime::processStartTime(pid).value_or(0) << '\n';
}

void noteEnding(const Options& options) {
    std::ofstream(lockPath(options), std::ios::app) << kEnding;
}

service::RunFolders runFolders(const std::string& jobs) {
    const auto folder = [jobs](const std::string& run) { return jobs + "/" + run; };
    return {
        [folder](const std::string& run) { return runtime::logLinks(diskFiles(), folder(run)); },
        [folder](const std::string& run) {
            return runtime::supersededBy(diskFiles(), folder(run));
        }};
}

}  // namespace bulkhead::daemon
