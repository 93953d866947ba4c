// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "backend/model/allow_list.h"
#include "backend/runtime/transport/life_lock.h"
#include "backend/runtime/transport/rank_secrets.h"

// glibc 2.36 declares these without C linkage in its header.
extern "C" {
int pidfd_open(pid_t pid, unsigned int flags) noexcept;
int pidfd_send_signal(int pidfd, int sig, siginfo_t* info, unsigned int flags) noexcept;
extern char** environ;
}

namespace bulkhead::runtime {
namespace {

absl::Status launchError(const std::string& program, const std::string& directory, int error) {
    const std::string place = directory.empty() ? "" : absl::StrCat(" in ", directory);
    const std::string message =
        absl::StrCat("cannot start ", program, place, ": ", std::strerror(error));
    if (error == ENOENT) return absl::NotFoundError(message);
    if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
    return absl::UnavailableError(message);
}

/// `given`, and of our environment what is inherited and has no other value there.
std::vector<std::string> environmentFor(const std::vector<std::string>& given,
                                        const std::vector<std::string>& inherited) {
    std::vector<std::string> all = given;
    for (char** e = environ; *e != nullptr; ++e) {
        const std::string_view entry(*e);
        const size_t equals = entry.find('=');
        const std::string_view name = entry.substr(0, equals);
        const auto matches = [&](std::string_view pattern) {
            return model::matchesName(name, pattern);
        };
        const bool replaced = std::any_of(given.begin(), given.end(), [&](const std::string& x) {
            return x.starts_with(entry.substr(0, equals + 1));
        });
        if (!replaced && (std::any_of(std::begin(kInherited), std::end(kInherited), matches) ||
                          std::any_of(inherited.begin(), inherited.end(), matches)))
            all.emplace_back(entry);
    }
    return all;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> out;
    out.reserve(strings.size() + 1);
    for (std::string& s : strings) out.push_back(s.data());
    out.push_back(nullptr);
    return out;
}

// Places in statFields(): proc(5) counts from 1, and the first two are left out.
constexpr size_t kState = 0, kFlags = 6, kStartTime = 19, kExitStatus = 49;

/// Fields 3 and up of /proc/<pid>/stat; empty when there is no such process.
std::vector<std::string> statFields(int32_t pid) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
    std::string line;
    if (!std::getline(file, line)) return {};
    // The command's name may hold spaces and brackets; the fields begin behind its last bracket.
    const size_t bracket = line.rfind(')');
    if (bracket == std::string::npos) return {};
    std::istringstream rest(line.substr(bracket + 1));
    return {std::istream_iterator<std::string>(rest), {}};
}

}  // namespace

absl::StatusOr<int32_t> launch(const LaunchSpec& spec) {
    if (spec.argv.empty()) return absl::InvalidArgumentError("no program to start was named");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (spec.out >= 0) posix_spawn_file_actions_adddup2(&actions, spec.out, 1);
    if (spec.err >= 0) posix_spawn_file_actions_adddup2(&actions, spec.err, 2);
    std::vector<std::string> extra = spec.environment;
    int free = 3;
    // Copied to above both places first, so that neither is overwritten before it is copied.
    std::vector<UniqueFd> copies;
    const auto handDown = [&](int fd, int to, const char* variable) {
        if (fd < 0) return;
        copies.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, kSecretsFd + 1));
        posix_spawn_file_actions_adddup2(&actions, copies.back().get(), to);
        for (; free < to; ++free) posix_spawn_file_actions_addclose(&actions, free);
        free = to + 1;
        extra.push_back(absl::StrCat(variable, "=", to));
    };
    static_assert(kLifeLockFd == 3 && kSecretsFd == 4);
    handDown(spec.lifeLock, kLifeLockFd, kLifeLockVariable);
    handDown(spec.secrets, kSecretsFd, kSecretsVariable);
    if (!spec.directory.empty())
        posix_spawn_file_actions_addchdir_np(&actions, spec.directory.c_str());
    posix_spawn_file_actions_addclosefrom_np(&actions, free);

    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(
        &attributes,
        static_cast<short>(POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));

    std::vector<std::string> argv = spec.argv;
    std::vector<std::string> environment = environmentFor(extra, spec.inherited);
    pid_t pid = 0;
    const int error = posix_spawnp(&pid, argv[0].c_str(), &actions, &attributes,
                                   pointers(argv).data(), pointers(environment).data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) return launchError(argv[0], spec.directory, error);
    return static_cast<int32_t>(pid);
}

std::optional<uint64_t> processStartTime(int32_t pid) {
    const std::vector<std::string> fields = statFields(pid);
    if (fields.size() <= kStartTime || fields[kState] == "Z" || fields[kState] == "X")
        return std::nullopt;
    uint64_t start = 0;
    if (!absl::SimpleAtoi(fields[kStartTime], &start)) return std::nullopt;
    return start;
}

std::optional<int32_t> endingSignal(int32_t pid) {
    // The flags are the main thread's; the status is the whole process's since Linux 5.17, from the
    // moment at which the signal is certain to end it. A stopped process shows there why it
    // stopped.
    constexpr uint64_t kExiting = 0x4, kKilled = 0x400;  // PF_EXITING, PF_SIGNALED
    const std::vector<std::string> fields = statFields(pid);
    if (fields.empty()) return 0;
    uint64_t flags = 0;
    int status = 0;
    if (fields.size() <= kExitStatus || !absl::SimpleAtoi(fields[kFlags], &flags) ||
        !absl::SimpleAtoi(fields[kExitStatus], &status))
        return std::nullopt;
    const bool exiting = (flags & (kExiting | kKilled)) != 0;
    const bool stopped = fields[kState] == "T" || fields[kState] == "t";
    if (!exiting && (stopped || status == 0)) return std::nullopt;
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

absl::StatusOr<UniqueFd> openProcess(int32_t pid) {
    UniqueFd fd(pidfd_open(pid, 0));
    if (fd.valid()) return fd;
    const std::string message = absl::StrCat("process ", pid, ": ", std::strerror(errno));
    return errno == ESRCH ? absl::NotFoundError(message) : absl::UnavailableError(message);
}

ExitStatus reap(const UniqueFd& process) {
    siginfo_t info{};
    if (::waitid(P_PIDFD, static_cast<id_t>(process.get()), &info, WEXITED | WNOHANG) != 0 ||
        info.si_pid == 0)
        return {};
    ExitStatus status;
    status.known = true;
    (info.si_code == CLD_EXITED ? status.exitCode : status.signal) = info.si_status;
    return status;
}

absl::Status signalProcess(const UniqueFd& process, int signal, int32_t value) {
    siginfo_t info{};
    info.si_signo = signal;
    info.si_code = SI_QUEUE;
    info.si_pid = ::getpid();
    info.si_uid = ::getuid();
    info.si_value.sival_int = value;
    siginfo_t* withValue = value == 0 ? nullptr : &info;
    if (pidfd_send_signal(process.get(), signal, withValue, 0) == 0) return absl::OkStatus();
    const std::string message = absl::StrCat("signal ", signal, ": ", std::strerror(errno));
    return errno == ESRCH ? absl::NotFoundError(absl::StrCat(message, "; the process is gone"))
                          : absl::UnavailableError(message);
}

}  // namespace bulkhead::runtime
