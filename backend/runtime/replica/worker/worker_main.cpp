// SPDX-License-Identifier: Apache-2.0
// bulkhead-worker: one rank of one replica. It holds the loop; the library drives the protocol.
#include <fcntl.h>
#include <malloc.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backend/common/clock.h"
#include "backend/runtime/protocol/messages.h"
#include "backend/runtime/replica/corpus.h"
#include "backend/runtime/replica/exit_code.h"
#include "backend/runtime/replica/rank_arguments.h"
#include "backend/runtime/replica/replica_rank.h"
#include "backend/runtime/replica/worker/workload_program.h"
#include "backend/runtime/transport/life_lock.h"

namespace bulkhead::runtime {
namespace {

// Training that does not come back from a collective must not keep an expelled process alive.
constexpr auto kLeaveLimit = std::chrono::seconds(15);

constexpr const char* kUsage =
    "usage: bulkhead-worker --job ID --job-file FILE --coordinator ADDRESS "
    "--replica R --shard S --incarnation I --node NAME --address IP --run-dir DIR\n"
    "One rank of one replica. Agents start it; what to train comes with the job.\n"
    "Exit codes: 0 left as asked, 1 internal error, 2 usage, 3 expelled, 4 no coordinator,\n"
    "5 this job cannot run, 6 a rank of its replica was lost.";

int fail(const absl::Status& why, int code) {
    spdlog::critical("{}", std::string(why.message()));
    return code;
}

std::string modelDir() {
    if (const char* dir = std::getenv("BULKHEAD_MODEL_DIR")) return dir;
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
    const auto installed = (self / "../share/bulkhead/workloads").lexically_normal();
    if (std::filesystem::exists(installed, error)) return installed.string();
    return BULKHEAD_SOURCE_MODEL_DIR;
}

absl::StatusOr<Work> train(WorkloadProgram* program, ReplicaRank* rank) {
    for (;;) {
        absl::StatusOr<Work> work = rank->next();
        if (!work.ok() || work->finished) return work;
        absl::StatusOr<StepFigures> figures = program->compute(*work, rank);
        if (figures.ok()) {
            rank->computed(work->generation, *std::move(figures));
        } else if (!rank->leaving()) {
            return figures.status();
        }
    }
}

/// Signals that watch() takes, and no other thread.
sigset_t watchedSignals() {
    sigset_t signals;
    ::sigemptyset(&signals);
    ::sigaddset(&signals, SIGTERM);
    ::sigaddset(&signals, protocol::endFaultSignal());
    return signals;
}

/// Turns SIGTERM into an orderly leave, ends faults its agent wants ended, and ends a process whose
/// training never comes back.
void watch(const std::stop_token& stop, ReplicaRank* rank) {
    constexpr std::chrono::milliseconds kTick{100};
    const timespec tick{0, std::chrono::nanoseconds(kTick).count()};
    const sigset_t signals = watchedSignals();
    std::chrono::milliseconds waited{0};
    while (!stop.stop_requested()) {
        siginfo_t info{};
        const int signal = ::sigtimedwait(&signals, &info, &tick);
        if (signal == SIGTERM) rank->requestLeave();
        if (signal == protocol::endFaultSignal())
            rank->endFault(static_cast<uint64_t>(info.si_value.sival_int));
        if (rank->leaving()) waited += kTick;
        if (waited < kLeaveLimit) continue;
        spdlog::critical("training did not come back in time; leaving without it");
        ::_exit(kExitExpelled);
    }
}

/// A part of its text that lay in the folder of this run, or of one beside it, is not there.
bool lacksOwnText(const RankOptions& options) {
    namespace fs = std::filesystem;
    const fs::path runs = fs::path(options.runDir).parent_path().parent_path();
    return std::any_of(options.spec.domains.begin(), options.spec.domains.end(),
                       [&](const auto& domain) {
                           if (domain.paths.size() != 1) return false;
                           const fs::path path = domain.paths[0];
                           std::error_code error;
                           return path.parent_path().parent_path().parent_path() == runs &&
                                  !fs::is_regular_file(path, error);
                       });
}

int run(RankOptions options) {
    const SystemClock clock;
    absl::StatusOr<std::unique_ptr<Corpus>> corpus =
        Corpus::load(options.spec.domains, options.spec.sequenceLength, options.spec.seed);
    // The run's own copy of the text was there when it began, and may come back.
    if (!corpus.ok() && lacksOwnText(options))
        return fail(absl::UnavailableError(absl::StrCat(
                        std::string(corpus.status().message()),
                        "; put it back: the replica starts again until the text is there")),
                    kExitInternal);
    if (!corpus.ok()) return fail(corpus.status(), kExitBadJob);
    for (const std::string& line : (*corpus)->leftOut()) spdlog::info("left out: {}", line);
    options.corpusHash = (*corpus)->identity().hash();
    options.corpusNewest = (*corpus)->identity().newest();
    absl::StatusOr<std::unique_ptr<WorkloadProgram>> program =
        WorkloadProgram::create(options.spec, options.rank, modelDir(), corpus->get());
    if (!program.ok()) return fail(program.status(), kExitBadJob);
    options.device = (*program)->deviceName();
    spdlog::info("device: {}", options.device);
    absl::StatusOr<std::unique_ptr<ReplicaRank>> rank =
        ReplicaRank::start(options, program->get(), clock);
    if (!rank.ok()) return fail(rank.status(), kExitInternal);

    std::jthread watchdog(watch, rank->get());
    const absl::StatusOr<Work> end = train(program->get(), rank->get());
    const int code = exitCodeOf(end);
    if (end.ok())
        spdlog::info("left at step {}: {}", (*rank)->appliedStep(), end->why);
    else
        fail(end.status(), code);
    if (code == kExitBadJob) (*rank)->reportHopeless(std::string(end.status().message()));
    // An error leaves siblings inside collectives with us: end those before anything is torn down.
    (*program)->interrupt();
    watchdog.request_stop();
    watchdog.join();
    rank->reset();
    return code;
}

}  // namespace
}  // namespace bulkhead::runtime

int main(int argc, char** argv) {
    using namespace bulkhead::runtime;
    auto logger = std::make_shared<spdlog::logger>(
        "worker", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_pattern("%H:%M:%S.%e %l %v");
    spdlog::set_default_logger(std::move(logger));
    // Lines are lost rather than waited with when nobody reads them: an agent that is gone, say.
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO})
        if (struct stat at{}; ::fstat(fd, &at) == 0 && S_ISFIFO(at.st_mode))
            ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    // A full disk and a peer that is gone are errors of one write, not of the process.
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    // Gradients and states come and go every step: give their pages back to the heap, not the
    // kernel.
    ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most glibc takes
    ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
    // Many ranks share a machine; the workload's own parallelism is the ranks.
    ::setenv("OPENBLAS_NUM_THREADS", "1", 0);
    const std::vector<std::string> args(argv + 1, argv + argc);
    if (args == std::vector<std::string>{"--help"}) {
        std::puts(kUsage);
        return kExitLeft;
    }
    if (args == std::vector<std::string>{"--version"}) {
        std::puts(BULKHEAD_VERSION);
        return kExitLeft;
    }
    absl::StatusOr<RankOptions> options = readRankArguments(args);
    if (!options.ok()) {
        std::fprintf(stderr, "bulkhead-worker: %s\n",
                     std::string(options.status().message()).c_str());
        return kExitUsage;
    }
    if (absl::Status s = holdLifeLock(); !s.ok())
        spdlog::warn("the death of this rank will be noticed late: {}", std::string(s.message()));
    // Before any thread is started, so that all of them leave it to watch().
    const sigset_t signals = watchedSignals();
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    return run(*std::move(options));
}
