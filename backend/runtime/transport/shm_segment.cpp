// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/shm_segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backend/runtime/transport/futex.h"

namespace bulkhead::runtime {
namespace {

constexpr uint32_t kSegmentMagic = 0x4d534b42;  // "BKSM"
constexpr uint32_t kSegmentVersion = 2;
constexpr size_t kPage = 4096;
static_assert(sizeof(ShmSegmentHeader) <= kPage && sizeof(ShmSlotHeader) <= kPage);

size_t roundedSlot(size_t slotBytes) {
    return (slotBytes + kPage - 1) / kPage * kPage;
}
size_t segmentBytes(size_t slotBytes) {
    return kPage + 2 * (kPage + roundedSlot(slotBytes));
}
size_t slotHeaderAt(uint32_t sequence, size_t slotBytes) {
    return kPage + (sequence % 2) * (kPage + roundedSlot(slotBytes));
}
std::string shmName(const std::string& name) {
    return absl::StrCat("/", name);
}

struct flock wholeFile(short type) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    return lock;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::create(const std::string& name,
                                                               const MeshIdentity& identity,
                                                               uint32_t writer,
                                                               uint32_t incarnation,
                                                               size_t slotBytes, uint64_t heap) {
    std::unique_ptr<ShmSegment> segment(new ShmSegment());
    const std::string path = shmName(name);
    // The prefix is ours alone: what is there is a leftover of a configure that did not succeed.
    ::shm_unlink(path.c_str());
    segment->fd_ = UniqueFd(::shm_open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!segment->fd_.valid())
        return absl::UnavailableError(
            absl::StrCat("cannot create shared memory ", name, ": ", std::strerror(errno)));
    segment->name_ = name;
    segment->slotBytes_ = slotBytes;
    segment->bytes_ = segmentBytes(slotBytes);
    const auto size = static_cast<off_t>(segment->bytes_);
    if (const int error = ::posix_fallocate(segment->fd_.get(), 0, size); error != 0)
        return absl::ResourceExhaustedError(
            absl::StrCat("/dev/shm has no room for ", segment->bytes_, " bytes (",
                         std::strerror(error), "); enlarge it or choose transport = \"tcp\""));
    void* base =
        ::mmap(nullptr, segment->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd_.get(), 0);
    if (base == MAP_FAILED)
        return absl::ResourceExhaustedError(
            absl::StrCat("cannot map shared memory ", name, ": ", std::strerror(errno)));
    segment->base_ = static_cast<std::byte*>(base);
    struct flock lock = wholeFile(F_WRLCK);
    if (::fcntl(segment->fd_.get(), F_OFD_SETLK, &lock) != 0)
        return absl::UnavailableError(
            absl::StrCat("cannot lock shared memory ", name, ": ", std::strerror(errno)));
    auto* header = new (base) ShmSegmentHeader{};
    header->version = kSegmentVersion;
    header->writer = writer;
    header->incarnation = incarnation;
    header->pid = ::getpid();
    header->heap = heap;
    header->slotBytes = slotBytes;
    header->identity = identity;
    header->magic.store(kSegmentMagic, std::memory_order_release);
    return segment;
}

ShmSegment::~ShmSegment() {
    unlinkName();
    if (base_ != nullptr) ::munmap(base_, bytes_);
}

ShmSlotHeader& ShmSegment::slotHeader(uint32_t sequence) {
    return *reinterpret_cast<ShmSlotHeader*>(base_ + slotHeaderAt(sequence, slotBytes_));
}

std::span<std::byte> ShmSegment::slot(uint32_t sequence) {
    return {base_ + slotHeaderAt(sequence, slotBytes_) + kPage, slotBytes_};
}

void ShmSegment::publish(uint32_t sequence) {
    auto& word = reinterpret_cast<ShmSegmentHeader*>(base_)->published;
    word.store(sequence, std::memory_order_release);
    futexWakeAll(word);
}

void ShmSegment::announceAttached() {
    reinterpret_cast<ShmSegmentHeader*>(base_)->attached.store(1, std::memory_order_release);
}

void ShmSegment::unlinkName() {
    if (!name_.empty()) ::shm_unlink(shmName(name_).c_str());
    name_.clear();
}

absl::StatusOr<std::unique_ptr<ShmView>> ShmView::open(const std::string& name,
                                                       const MeshIdentity& identity,
                                                       uint32_t writer, uint32_t incarnation,
                                                       size_t slotBytes) {
    std::unique_ptr<ShmView> view(new ShmView());
    view->fd_ = UniqueFd(::shm_open(shmName(name).c_str(), O_RDONLY | O_CLOEXEC, 0));
    if (!view->fd_.valid()) {
        if (errno == EACCES)
            return absl::PermissionDeniedError(absl::StrCat(name, " is another's"));
        return absl::NotFoundError(absl::StrCat(name, " is not there"));
    }
    struct stat info {};
    const size_t bytes = segmentBytes(slotBytes);
    if (::fstat(view->fd_.get(), &info) != 0 || static_cast<size_t>(info.st_size) < bytes)
        return absl::NotFoundError(absl::StrCat(name, " is not ready"));
    void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, view->fd_.get(), 0);
    if (base == MAP_FAILED)
        return absl::NotFoundError(absl::StrCat("cannot map ", name, ": ", std::strerror(errno)));
    view->base_ = static_cast<const std::byte*>(base);
    view->bytes_ = bytes;
    view->slotBytes_ = slotBytes;
    const ShmSegmentHeader& header = view->header();
    if (header.magic.load(std::memory_order_acquire) != kSegmentMagic)
        return absl::NotFoundError(absl::StrCat(name, " is not ready"));
    if (header.version != kSegmentVersion || header.writer != writer ||
        header.incarnation != incarnation || header.slotBytes != slotBytes ||
        header.identity != identity)
        return absl::PermissionDeniedError(
            absl::StrCat(name, " was made for another exchange or with another token"));
    return view;
}

ShmView::~ShmView() {
    if (base_ != nullptr) ::munmap(const_cast<std::byte*>(base_), bytes_);
}

ShmSlotHeader ShmView::slotHeader(uint32_t sequence) const {
    ShmSlotHeader copy;
    std::memcpy(&copy, base_ + slotHeaderAt(sequence, slotBytes_), sizeof copy);
    return copy;
}

absl::StatusOr<std::span<const std::byte>> ShmView::piece(uint32_t sequence,
                                                          const ShmPiece& at) const {
    if (at.offset > slotBytes_ || at.length > slotBytes_ - at.offset)
        return absl::DataLossError("a piece lies outside its shared-memory slot");
    return std::span<const std::byte>(
        base_ + slotHeaderAt(sequence, slotBytes_) + kPage + at.offset, at.length);
}

bool ShmView::writerAlive() const {
    struct flock lock = wholeFile(F_RDLCK);
    if (::fcntl(fd_.get(), F_OFD_GETLK, &lock) != 0) return true;
    return lock.l_type != F_UNLCK;
}

size_t removeSegments(std::string_view prefix) {
    if (prefix.empty()) return 0;
    DIR* dir = ::opendir("/dev/shm");
    if (dir == nullptr) return 0;
    std::vector<std::string> names;
    while (const dirent* entry = ::readdir(dir))
        if (std::string_view(entry->d_name).starts_with(prefix)) names.emplace_back(entry->d_name);
    ::closedir(dir);
    size_t removed = 0;
    for (const std::string& name : names)
        if (::shm_unlink(shmName(name).c_str()) == 0) ++removed;
    return removed;
}

}  // namespace bulkhead::runtime
