// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <thread>

#include "backend/daemon/log.h"
#include "backend/daemon/roles.h"
#include "backend/proto/grpc_log.h"

namespace bulkhead::daemon {
namespace {

/// Ends this process when its parent ends without notice.
void endWithCreator(int fd) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    std::thread([fd] {
        char byte = 0;
        ssize_t got = 0;
        do got = ::read(fd, &byte, 1);
        while (got < 0 && errno == EINTR);
        if (got <= 0) ::kill(::getpid(), SIGTERM);
        ::close(fd);
    }).detach();
}

/// Allows as many open files as the system does: each rank, agent and caller takes one, and what
/// is started here inherits the limit.
void raiseFileLimit() {
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
}

/// Gives the memory of a large request back when it ends. By itself malloc learns from the first
/// large block that others like it are better kept, and keeps an arena for each of many threads.
void keepLittleMemory() {
    constexpr int kLargeBytes = 128 << 10;
    ::mallopt(M_MMAP_THRESHOLD, kLargeBytes);
    ::mallopt(M_TRIM_THRESHOLD, kLargeBytes);
    ::mallopt(M_ARENA_MAX, 2);
}

int run(const Options& options) {
    startLog(options.logFormat);
    ::umask(::umask(0) | (S_IWGRP | S_IWOTH));  // only the owner may write state files
    raiseFileLimit();
    keepLittleMemory();
    const Report report(options.readyFd, options.logFormat == "json");
    if (options.lifeFd >= 0) endWithCreator(options.lifeFd);
    if (!options.printAgentKey.empty()) return printAgentKey(options, report);
    if (options.role == "agent") return runAgent(options, report);
    if (options.run.empty() && options.role != "controller") return supervise(options, report);
    proto::keepGrpc();
    return options.run.empty() ? runController(options, report) : serveRun(options, report);
}

}  // namespace

}  // namespace bulkhead::daemon

int main(int argc, char** argv) {
    using namespace bulkhead::daemon;
    const Parsed parsed = parse(argc, argv);
    if (!parsed.goOn) return parsed.exitCode;
    const int code = run(parsed.options);
    std::fflush(nullptr);
    ::_exit(code);
}
