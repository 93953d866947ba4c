// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/life_lock.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "backend/runtime/transport/futex.h"

namespace bulkhead::runtime {
namespace {

constexpr size_t kLifePage = 4096;
constexpr const char* kLifeName = "bulkhead-life";

absl::Status noPage(const std::string& what) {
    return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

/// A sealed page: one that is not sealed could be cut short under its reader.
bool isLifePage(int fd) {
    struct stat info {};
    const int seals = ::fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && ::fstat(fd, &info) == 0 &&
           static_cast<size_t>(info.st_size) == kLifePage;
}

/// The kernel reads this when the thread ends, so it lasts as long as the process. The list is here
/// and not in the shared page, where another process could bend it.
struct RobustList {
    robust_list_head head{};
    robust_list node{};
    std::latch taken{1};
};
RobustList heldList;

/// The thread that holds the lock. It runs nobody's signal handlers and waits for nothing but
/// signals, so that it can end the moment the process is killed.
[[noreturn]] void hold(std::atomic<uint32_t>& word) {
    heldList.node.next = &heldList.head.list;
    heldList.head.list.next = &heldList.node;
    heldList.head.futex_offset =
        reinterpret_cast<char*>(&word) - reinterpret_cast<char*>(&heldList.node);
    ::syscall(SYS_set_robust_list, &heldList.head, sizeof heldList.head);
    // The kernel releases only what bears its owner's number, and wakes only where somebody waits.
    word.store(static_cast<uint32_t>(::syscall(SYS_gettid)) | FUTEX_WAITERS);
    futexWakeAll(word);
    heldList.taken.count_down();
    for (;;) ::pause();
}

}  // namespace

absl::StatusOr<LifeLock> LifeLock::create() {
    UniqueFd fd(::memfd_create(kLifeName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd.valid()) return noPage("no memory for a life lock");
    if (::fchmod(fd.get(), 0600) != 0 || ::posix_fallocate(fd.get(), 0, kLifePage) != 0 ||
        ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return noPage("a life lock's memory cannot be sealed");
    return map(std::move(fd));
}

absl::StatusOr<LifeLock> LifeLock::ofProcess(int32_t pid) {
    const std::string path = absl::StrCat("/proc/", pid, "/fd/", kLifeLockFd);
    // Looked at before it is opened: to open a device or a pipe of somebody else may have effects.
    char target[64] = "";
    if (::readlink(path.c_str(), target, sizeof target - 1) < 0 ||
        !std::string_view(target).starts_with(absl::StrCat("/memfd:", kLifeName)))
        return absl::NotFoundError(absl::StrCat("process ", pid, " has no life lock"));
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd.valid()) return noPage(path);
    if (!isLifePage(fd.get()))
        return absl::NotFoundError(absl::StrCat(path, " is not a sealed page"));
    return map(std::move(fd));
}

absl::StatusOr<LifeLock> LifeLock::map(UniqueFd fd) {
    void* page = ::mmap(nullptr, kLifePage, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (page == MAP_FAILED) return noPage("a life lock cannot be mapped");
    return LifeLock(std::move(fd), static_cast<const std::atomic<uint32_t>*>(page));
}

LifeLock::~LifeLock() {
    if (word_ != nullptr) ::munmap(const_cast<std::atomic<uint32_t>*>(word_), kLifePage);
}

bool LifeLock::released(uint32_t word) {
    return (word & FUTEX_OWNER_DIED) != 0;
}

absl::Status holdLifeLock() {
    const char* inherited = std::getenv(kLifeLockVariable);
    if (inherited == nullptr) return absl::OkStatus();
    ::unsetenv(kLifeLockVariable);
    if (!isLifePage(kLifeLockFd))
        return absl::FailedPreconditionError(absl::StrCat("descriptor ", kLifeLockFd,
                                                          " is not the life lock that ",
                                                          kLifeLockVariable, " announces"));
    ::fcntl(kLifeLockFd, F_SETFD, FD_CLOEXEC);
    void* page = ::mmap(nullptr, kLifePage, PROT_READ | PROT_WRITE, MAP_SHARED, kLifeLockFd, 0);
    if (page == MAP_FAILED) return noPage("the life lock cannot be mapped");
    ::madvise(page, kLifePage, MADV_DONTFORK);
    auto& word = *static_cast<std::atomic<uint32_t>*>(page);
    if (word.load() != 0)
        return absl::FailedPreconditionError("the life lock was taken by another process before");
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([&word] { hold(word); }).detach();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    heldList.taken.wait();
    return absl::OkStatus();
}

}  // namespace bulkhead::runtime
