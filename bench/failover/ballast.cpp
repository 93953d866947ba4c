// SPDX-License-Identifier: Apache-2.0
// Preloaded into the programs of a bench's job: gives the ranks of one replica's shard 0 so much
// memory, touched, in pages of 4 KiB, before their main function begins.
// BULKHEAD_BENCH_BALLAST=REPLICA:MIB
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

namespace {

/// "--replica R" and "--shard 0" are among this program's arguments.
bool isRank(const std::string& replica) {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    const auto has = [&](std::string option, const std::string& value) {
        option.push_back('\0');
        option.append(value).push_back('\0');
        return line.find(option) != std::string::npos;
    };
    return has("--replica", replica) && has("--shard", "0");
}

__attribute__((constructor)) void load() {
    const char* wanted = std::getenv("BULKHEAD_BENCH_BALLAST");
    const char* colon = wanted == nullptr ? nullptr : std::strchr(wanted, ':');
    if (colon == nullptr || !isRank(std::string(wanted, colon))) return;
    const size_t bytes = std::strtoull(colon + 1, nullptr, 10) << 20;
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        std::perror("ballast");
        std::_Exit(1);
    }
    ::madvise(at, bytes, MADV_NOHUGEPAGE);
    std::memset(at, 1, bytes);
}

}  // namespace
