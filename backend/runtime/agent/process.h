// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/unique_fd.h"

/// Linux processes: start one that outlives us, tell one life of a pid from another, wait for one
/// that may not be our child. Thread: any; nothing is shared.
namespace bulkhead::runtime {

/// Variables that any program has from this process: its user and language, where it finds programs
/// and libraries, and what devices, mathematics, Python and sanitizers read. Nothing else: an
/// agent's environment may have secrets.
constexpr std::string_view kInherited[] = {
    "HOME",         "LANG",          "LANGUAGE", "LC_*",         "LOGNAME",
    "PATH",         "SHELL",         "TMPDIR",   "TZ",           "USER",
    "LD_*",         "BULKHEAD_*",    "CUDA_*",   "NVIDIA_*",     "NCCL_*",
    "OMP_*",        "OPENBLAS_*",    "MKL_*",    "MALLOC_*",     "PYTHON*",
    "VIRTUAL_ENV",  "CONDA_PREFIX",  "TORCH_*",  "ASAN_OPTIONS", "LSAN_OPTIONS",
    "TSAN_OPTIONS", "UBSAN_OPTIONS",
};

struct LaunchSpec {
    std::vector<std::string> argv;  ///< argv[0]: path of the program, or a name that our PATH has
    std::vector<std::string> environment;  ///< NAME=value; others only as `inherited` has them
    int out = -1;                          ///< becomes stdout; not closed here
    int err = -1;
    int lifeLock = -1;  ///< becomes kLifeLockFd, which the environment then names; not closed here
    int secrets = -1;   ///< the same, kSecretsFd
    std::string directory = {};  ///< where it runs, a relative argv[0] begins; empty: where we do
    /// Names of variables, or PREFIX*, that it has from this process beside kInherited.
    std::vector<std::string> inherited = {};
};

/// Starts the program in a session of its own, with default signals, stdin from /dev/null and no
/// other descriptor of ours than those named. It lives on when we die. Returns the pid.
/// NotFound / PermissionDenied / Unavailable naming the program and the system's reason.
absl::StatusOr<int32_t> launch(const LaunchSpec& spec);

/// Clock ticks after boot when the process started; with the pid it names one process for ever.
/// nullopt when there is no such process (a zombie counts as gone).
std::optional<uint64_t> processStartTime(int32_t pid);

/// A descriptor that polls readable once the process has ended. NotFound when it is gone.
absl::StatusOr<UniqueFd> openProcess(int32_t pid);

struct ExitStatus {
    bool known = false;  ///< false: not our child, it was somebody else's to wait for
    int32_t exitCode = 0;
    int32_t signal = 0;
};

/// After the descriptor polled readable: reaps our child and says how it ended. Never blocks.
ExitStatus reap(const UniqueFd& process);

/// The signal that ends a process whose end is certain, which is long before it can be reaped if it
/// has much memory to give back. 0: it exits by itself, the kernel does not say yet, or it is gone.
/// nullopt while it lives.
std::optional<int32_t> endingSignal(int32_t pid);

/// Sends a signal through the descriptor, so that it cannot hit a later process of the same pid.
/// Signal 0 only asks whether it is there. `value` travels with the signal (sigqueue(3)).
absl::Status signalProcess(const UniqueFd& process, int signal, int32_t value = 0);

}  // namespace bulkhead::runtime
