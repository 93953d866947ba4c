// SPDX-License-Identifier: Apache-2.0
// A rank that only holds its life lock, or treats it as no rank should. Prints "ready" when it has
// done so, and waits.
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "backend/runtime/transport/life_lock.h"

namespace {

using bulkhead::runtime::kLifeLockFd;

std::atomic<uint32_t>& page() {
    void* at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, kLifeLockFd, 0);
    return *static_cast<std::atomic<uint32_t>*>(at);
}

/// Does what holdLifeLock() does on a thread that may end.
void takeOnThisThread() {
    static robust_list_head head;
    static robust_list node;
    node.next = &head.list;
    head.list.next = &node;
    std::atomic<uint32_t>& word = page();
    head.futex_offset = reinterpret_cast<char*>(&word) - reinterpret_cast<char*>(&node);
    ::syscall(SYS_set_robust_list, &head, sizeof head);
    word = static_cast<uint32_t>(::syscall(SYS_gettid)) | FUTEX_WAITERS;
}

void inChild(void (*what)()) {
    const pid_t child = ::fork();
    if (child == 0) {
        what();
        ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
}

/// In pages of 4 KiB, as many as a real rank has of them.
void touch(size_t bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ::madvise(at, bytes, MADV_NOHUGEPAGE);
    std::memset(at, 1, bytes);
}

bool hold() {
    return bulkhead::runtime::holdLifeLock().ok();
}

}  // namespace

int main(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "hold";
    bool good = true;
    if (what == "hold") good = hold();
    if (what == "memory") good = hold(), touch(size_t{512} << 20);
    if (what == "fork") good = hold(), inChild([] {});
    if (what == "exec") good = hold();
    if (what == "thread-ends") std::thread(takeOnThisThread).join();
    if (what == "other-owner") inChild(takeOnThisThread);
    if (what == "garbage") page() = 0xdeadbeef & ~uint32_t{FUTEX_OWNER_DIED};
    if (what == "cut") good = ::ftruncate(kLifeLockFd, 0) != 0 && hold();
    if (what == "twice")
        good = hold(), ::setenv(bulkhead::runtime::kLifeLockVariable, "3", 1),
        good = good && !hold();
    std::puts(good ? "ready" : "failed");
    std::fflush(stdout);
    if (what == "exec") ::execl("/bin/sleep", "sleep", "100", nullptr);
    for (;;) ::pause();
}
