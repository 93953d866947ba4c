// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/shared_heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

constexpr uint64_t kHeapMagic = 0x70616548646b6c42;  // "BlkdHeap"
constexpr size_t kHeader = 4096;

struct BlockHeader {
    uint64_t magic = 0;
    uint64_t heap = 0;
    uint64_t bytes = 0;
    uint32_t number = 0;
};

uint64_t randomId() {
    std::random_device source;
    return (static_cast<uint64_t>(source()) << 32) | source();
}

/// Bytes that can be had without driving the machine out of memory. Files in memory have no limit
/// of their own: asking for too much would end other processes before it failed.
size_t availableMemory() {
    std::ifstream in("/proc/meminfo");
    std::string word;
    size_t kib = 0;
    while (in >> word)
        if (word == "MemAvailable:" && in >> kib) return kib << 10;
    return ~size_t{0};
}

absl::Status exhausted(size_t bytes, int error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory for ", bytes, " bytes that other ranks may read (", std::strerror(error), ")"));
}

}  // namespace

SharedHeap::SharedHeap() : id_(randomId()) {}

SharedHeap::~SharedHeap() {
    for (const auto& [data, block] : byAddress_)
        ::munmap(const_cast<std::byte*>(data - kHeader), kHeader + block.bytes);
}

absl::StatusOr<void*> SharedHeap::allocate(size_t bytes) {
    const size_t whole = kHeader + bytes;
    if (whole < bytes || whole > availableMemory()) return exhausted(bytes, ENOMEM);
    UniqueFd fd(::memfd_create("bulkhead-heap", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd.valid()) return exhausted(bytes, errno);
    if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(whole)); error != 0)
        return exhausted(bytes, error);
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return exhausted(bytes, errno);
    void* base =
        ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
    if (base == MAP_FAILED) return exhausted(bytes, errno);
    std::byte* data = static_cast<std::byte*>(base) + kHeader;
    const MutexLock lock(mutex_);
    *static_cast<BlockHeader*>(base) = {kHeapMagic, id_, bytes, ++blocks_};
    byAddress_[data] = {std::move(fd), blocks_, bytes};
    return data;
}

bool SharedHeap::free(void* memory) {
    const MutexLock lock(mutex_);
    const auto found = byAddress_.find(static_cast<const std::byte*>(memory));
    if (found == byAddress_.end()) return false;
    ::munmap(static_cast<std::byte*>(memory) - kHeader, kHeader + found->second.bytes);
    byAddress_.erase(found);
    return true;
}

std::optional<HeapPlace> SharedHeap::find(std::span<const std::byte> bytes) const {
    const MutexLock lock(mutex_);
    auto after = byAddress_.upper_bound(bytes.data());
    if (after == byAddress_.begin()) return std::nullopt;
    const auto& [data, block] = *--after;
    const auto offset = static_cast<size_t>(bytes.data() - data);
    if (offset > block.bytes || bytes.size() > block.bytes - offset) return std::nullopt;
    return HeapPlace{block.fd.get(), block.number, offset};
}

HeapReader::~HeapReader() {
    keepOnly({});
}

absl::StatusOr<HeapReader::Mapping> HeapReader::map(int32_t pid, uint64_t heap,
                                                    const HeapPlace& place) const {
    const std::string path = absl::StrCat("/proc/", pid, "/fd/", place.fd);
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid())
        return absl::UnavailableError(
            absl::StrCat("its memory cannot be opened through ", path, ": ", std::strerror(errno)));
    // Only a sealed file cannot be cut short under its reader.
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    struct stat info {};
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd.get(), &info) != 0 ||
        static_cast<size_t>(info.st_size) < kHeader)
        return absl::DataLossError(absl::StrCat(path, " is no shared memory of a rank"));
    const auto bytes = static_cast<size_t>(info.st_size);
    void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
    if (base == MAP_FAILED)
        return absl::UnavailableError(
            absl::StrCat("its memory cannot be mapped: ", std::strerror(errno)));
    const auto& header = *static_cast<const BlockHeader*>(base);
    if (header.magic != kHeapMagic || header.heap != heap || header.number != place.block ||
        header.bytes != bytes - kHeader) {
        ::munmap(base, bytes);
        return absl::DataLossError(absl::StrCat(path, " is not the memory it announced"));
    }
    return Mapping{static_cast<const std::byte*>(base), bytes};
}

absl::StatusOr<std::span<const std::byte>> HeapReader::at(int32_t pid, uint64_t heap,
                                                          const HeapPlace& place, size_t length) {
    const std::pair key(heap, place.block);
    auto found = mappings_.find(key);
    if (found == mappings_.end()) {
        const absl::StatusOr<Mapping> made = map(pid, heap, place);
        if (!made.ok()) return made.status();
        found = mappings_.emplace(key, *made).first;
    }
    const Mapping& mapping = found->second;
    const size_t room = mapping.bytes - kHeader;
    if (place.offset > room || length > room - place.offset)
        return absl::DataLossError("a piece lies outside its block of shared memory");
    return std::span<const std::byte>(mapping.base + kHeader + place.offset, length);
}

void HeapReader::keepOnly(std::span<const uint64_t> heaps) {
    for (auto it = mappings_.begin(); it != mappings_.end();) {
        const bool keep = std::ranges::find(heaps, it->first.first) != heaps.end();
        if (!keep) ::munmap(const_cast<std::byte*>(it->second.base), it->second.bytes);
        it = keep ? std::next(it) : mappings_.erase(it);
    }
}

}  // namespace bulkhead::runtime
