// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

/// Header for compiling the copies of the sources that places.py writes; the product never sees
/// it. A place asks whether its bug is the active one.
namespace bulkhead::mutants {

constexpr unsigned kMost = 1u << 16;

/// BULKHEAD_MUTANT: number of the active bug; 0, which is nobody's, without it.
inline const unsigned active = [] {
    const char* text = std::getenv("BULKHEAD_MUTANT");
    return text == nullptr ? 0u : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}();

/// BULKHEAD_MUTANT_REACHED: a file of kMost bytes; the byte of each place that was reached becomes
/// 1. Shared memory, so that also what processes reached counts that a test starts and kills.
inline unsigned char* const reached = []() -> unsigned char* {
    const char* path = std::getenv("BULKHEAD_MUTANT_REACHED");
    if (path == nullptr) return nullptr;
    const int fd = ::open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) std::abort();
    void* at = ::mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (at == MAP_FAILED) std::abort();
    return static_cast<unsigned char*>(at);
}();

inline bool is(unsigned number) {
    if (reached != nullptr) [[unlikely]]
        reached[number] = 1;
    return number == active;
}

}  // namespace bulkhead::mutants

#define BULKHEAD_MUTANT(number) (::bulkhead::mutants::is(number))
