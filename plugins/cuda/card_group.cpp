// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/card_group.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "plugins/cuda/device.h"
#include "plugins/cuda/ftar/elements.h"

namespace bulkhead::cuda {
namespace {

constexpr size_t kMostRanks = kMaxSources;
constexpr int kLooksAtOnce = 2000;  // before a wait begins to sleep
constexpr std::chrono::microseconds kNapAtMeeting{50};
constexpr std::chrono::milliseconds kLeaving{1000};
/// Smaller blocks share pages with others, which would be mapped with them.
constexpr size_t kPageOfGpu = size_t{2} << 20;

/// Written by one rank, read by all behind a meeting.
struct Seat {
    std::atomic<uint64_t> arrived;  ///< at so many meetings
    uint64_t block;                 ///< counts the rank's blocks
    cudaIpcMemHandle_t handle;      ///< of that one
    uint64_t at[kMostRanks];        ///< where in it each rank's part begins
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share it");

}  // namespace

class CardGroup::Page {
  public:
    Page(std::string name, Seat* seats, bool named)
        : name(std::move(name)), seats(seats), named_(named) {}
    ~Page() {
        unname();
        (void)::munmap(seats, kBytes);
    }
    Page(const Page&) = delete;
    Page& operator=(const Page&) = delete;

    void unname() {
        if (std::exchange(named_, false)) (void)::shm_unlink(name.c_str());
    }

    static constexpr size_t kBytes = kMostRanks * sizeof(Seat);
    static absl::StatusOr<std::unique_ptr<Page>> open(const std::string& name, bool make) {
        const int fd =
            ::shm_open(name.c_str(), O_RDWR | O_CLOEXEC | (make ? O_CREAT | O_EXCL : 0), 0600);
        void* memory = MAP_FAILED;
        if (fd >= 0 && (!make || ::ftruncate(fd, kBytes) == 0))
            memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        const int error = errno;
        if (fd >= 0) (void)::close(fd);
        if (memory == MAP_FAILED) {
            if (fd >= 0 && make) (void)::shm_unlink(name.c_str());
            return absl::UnavailableError(
                absl::StrCat("memory that the ranks of one GPU share: ", std::strerror(error),
                             "; is there room in /dev/shm, and are they on one host?"));
        }
        return std::make_unique<Page>(name, static_cast<Seat*>(memory), make);
    }

    const std::string name;
    Seat* const seats;  ///< zeroed when made

  private:
    bool named_;
};

absl::StatusOr<std::unique_ptr<CardGroup::Page>> CardGroup::makePage() {
    unsigned char random[12];
    if (::getrandom(random, sizeof random, 0) != sizeof random)
        return absl::InternalError("getrandom gives nothing");
    const std::string bytes(reinterpret_cast<const char*>(random), sizeof random);
    return Page::open(absl::StrCat("/bulkhead-group-", absl::BytesToHexString(bytes)), true);
}

absl::StatusOr<std::unique_ptr<CardGroup::Page>> CardGroup::findPage(const std::string& name) {
    return Page::open(name, false);
}

const std::string& CardGroup::nameOf(const Page& page) {
    return page.name;
}

CardGroup::CardGroup(Options options, std::unique_ptr<Page> page)
    : options_(std::move(options)),
      page_(std::move(page)),
      peers_(static_cast<size_t>(options_.size)) {}

absl::StatusOr<std::unique_ptr<CardGroup>> CardGroup::create(Options options,
                                                             std::unique_ptr<Page> page) {
    std::unique_ptr<CardGroup> made(new CardGroup(std::move(options), std::move(page)));
    if (absl::Status s = made->meet("connecting"); !s.ok()) return s;
    made->page_->unname();
    return made;
}

CardGroup::~CardGroup() {
    for (const Peer& peer : peers_)
        if (peer.base != nullptr) ignore(cudaIpcCloseMemHandle(peer.base));
    // The ranks that come map our block no more; one that is gone is not waited for.
    (void)meet("leaving", std::min(options_.timeout, kLeaving));
    for (void* block : {before_, block_})
        if (block != nullptr) ignore(cudaFree(block));
}

absl::Status CardGroup::swap(const char* what, const void* from, size_t bytes,
                             const std::vector<size_t>& at, void* to,
                             const std::vector<size_t>& receive, cudaStream_t stream) {
    if (!failed_.ok()) return failed_;
    if (absl::Status s = reserve(bytes); !s.ok()) return fail(what, s);
    Seat& own = page_->seats[options_.rank];
    std::copy(at.begin(), at.end(), own.at);
    absl::Status s =
        fromCuda(cudaMemcpyAsync(block_, from, bytes, cudaMemcpyDefault, stream), what);
    if (s.ok()) s = fromCuda(cudaStreamSynchronize(stream), what);
    if (!s.ok()) return fail(what, s);
    if (s = meet(what); !s.ok()) return s;
    if (s = fetch(receive, to, stream); !s.ok()) return fail(what, s);
    if (s = meet(what); !s.ok()) return s;
    // Nobody maps it any more.
    if (void* block = std::exchange(before_, nullptr); block != nullptr)
        return fromCuda(cudaFree(block), what);
    return absl::OkStatus();
}

absl::Status CardGroup::fetch(const std::vector<size_t>& receive, void* to, cudaStream_t stream) {
    auto* next = static_cast<std::byte*>(to);
    for (size_t r = 0; r < receive.size(); ++r) {
        if (absl::Status s = map(r); !s.ok()) return s;
        const auto* theirs = static_cast<const std::byte*>(peers_[r].base);
        if (r == static_cast<size_t>(options_.rank)) theirs = static_cast<const std::byte*>(block_);
        if (receive[r] > 0)
            if (absl::Status s =
                    fromCuda(cudaMemcpyAsync(next, theirs + page_->seats[r].at[options_.rank],
                                             receive[r], cudaMemcpyDefault, stream),
                             "copying from a rank's memory");
                !s.ok())
                return s;
        next += receive[r];
    }
    return fromCuda(cudaStreamSynchronize(stream), "copying from the ranks' memory");
}

/// The block that the rank has now, whether or not we need it: it frees the one before.
absl::Status CardGroup::map(size_t rank) {
    const Seat& seat = page_->seats[rank];
    Peer& peer = peers_[rank];
    if (rank == static_cast<size_t>(options_.rank) || seat.block == peer.block)
        return absl::OkStatus();
    if (peer.base != nullptr) ignore(cudaIpcCloseMemHandle(std::exchange(peer.base, nullptr)));
    peer.block = 0;
    if (absl::Status s =
            fromCuda(cudaIpcOpenMemHandle(&peer.base, seat.handle, cudaIpcMemLazyEnablePeerAccess),
                     absl::StrCat("mapping memory of rank ", rank));
        !s.ok()) {
        peer.base = nullptr;
        return s;
    }
    peer.block = seat.block;
    return absl::OkStatus();
}

/// A little more than is asked for, so that a drifting router does not take memory in every step.
absl::Status CardGroup::reserve(size_t bytes) {
    if (bytes <= room_ && block_ != nullptr) return absl::OkStatus();
    const size_t whole = (bytes + bytes / 4) / kPageOfGpu * kPageOfGpu + kPageOfGpu;
    void* block = nullptr;
    if (absl::Status s = fromCuda(cudaMalloc(&block, whole), "memory to send from"); !s.ok())
        return s;
    Seat& own = page_->seats[options_.rank];
    if (absl::Status s = fromCuda(cudaIpcGetMemHandle(&own.handle, block), "memory to send from");
        !s.ok()) {
        ignore(cudaFree(block));
        return s;
    }
    own.block = ++blocks_;
    before_ = std::exchange(block_, block);
    room_ = whole;
    return absl::OkStatus();
}

absl::Status CardGroup::meet(const char* what, std::chrono::milliseconds limit) {
    if (!failed_.ok()) return failed_;
    page_->seats[options_.rank].arrived.store(++meetings_, std::memory_order_release);
    const auto end = std::chrono::steady_clock::now() + limit;
    int looks = 0;
    for (int32_t r = 0; r < options_.size; ++looks) {
        if (page_->seats[r].arrived.load(std::memory_order_acquire) >= meetings_) {
            ++r;
            continue;
        }
        if (aborted_.load(std::memory_order_acquire))
            return fail(what, absl::AbortedError("the group was aborted"));
        if (std::chrono::steady_clock::now() > end)
            return fail(what, absl::DeadlineExceededError(absl::StrCat(
                                  "rank ", r, " did not come in ", limit.count(), " ms")));
        if (options_.progress) options_.progress();
        if (looks > kLooksAtOnce) std::this_thread::sleep_for(kNapAtMeeting);
    }
    if (aborted_.load(std::memory_order_acquire))
        return fail(what, absl::AbortedError("the group was aborted"));
    return absl::OkStatus();
}

absl::Status CardGroup::fail(const char* what, absl::Status why) {
    failed_ =
        absl::Status(why.code(), absl::StrCat("group ", options_.name, ", rank ", options_.rank,
                                              ", ", what, ": ", why.message()));
    return failed_;
}

}  // namespace bulkhead::cuda
