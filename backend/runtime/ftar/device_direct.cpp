// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/ftar/algorithm.h"
#include "backend/runtime/ftar/slices.h"

namespace bulkhead::runtime {
namespace {

constexpr uint32_t kDeviceLimitMs = 10'000;  // a device that adds a piece for so long is broken

/// The device's table with absl::Status.
class Plane {
  public:
    explicit Plane(const DevicePlane& device) : device_(device) {}

    absl::Status check(bulkhead_status status) const {
        if (status == BULKHEAD_OK) return absl::OkStatus();
        const std::string why = absl::StrCat("device: ", device_.api->why(device_.plane));
        if (status == BULKHEAD_ABORTED) return absl::AbortedError(why);
        if (status == BULKHEAD_INVALID) return absl::InvalidArgumentError(why);
        return absl::InternalError(why);
    }
    absl::Status place(std::span<const float> memory, bulkhead_place& out) const {
        return check(device_.api->place(device_.plane, memory.data(), memory.size_bytes(), &out));
    }
    absl::StatusOr<const float*> reach(const bulkhead_place& place, size_t bytes) const {
        const void* out = nullptr;
        absl::Status s = check(device_.api->reach(device_.plane, &place, bytes, &out));
        if (!s.ok()) return s;
        return static_cast<const float*>(out);
    }
    absl::Status submit(bulkhead_sum sum) const {
        sum.struct_size = sizeof sum;
        return sum.count == 0 ? absl::OkStatus() : check(device_.api->submit(device_.plane, &sum));
    }
    absl::Status finish() const {
        return check(device_.api->finish(device_.plane, kDeviceLimitMs));
    }

  private:
    const DevicePlane& device_;
};

/// As kDirect, where the gradients are in a device's memory. Members on our host are told where a
/// piece lies, and read it there, narrowed beforehand where the wire is; for the others it is
/// staged in host memory on its way into TCP and out of it, in the wire's type. The device adds and
/// copies, we tell it what.
class DeviceDirect final : public AllReduce {
  public:
    DeviceDirect(const AllReduceContext& work, const DevicePlane& device)
        : work_(work),
          plane_(device),
          members_(work.mesh->size()),
          self_(work.mesh->self()),
          give_(members_),
          get_(members_),
          told_(members_),
          from_(members_),
          out_(members_),
          in_(members_) {
        for (size_t m = 0; m < members_; ++m) far_ = far_ || work.mesh->tcp(m) != nullptr;
        piece_ = (far_ ? work.roundBytes : work.directBytes) / sizeof(float);
    }

    absl::Status takeStaging(StagingPool& pool) {
        const auto [begin, end] = sliceOf(0, members_, piece_);
        for (size_t m = 0; m < members_; ++m) {
            if (!far(m)) continue;
            for (std::byte** area : {&out_[m], &in_[m]}) {
                const absl::StatusOr<std::byte*> memory = pool.take((end - begin) * sizeof(float));
                if (!memory.ok()) return memory.status();
                *area = *memory;
            }
        }
        return absl::OkStatus();
    }

    absl::Status run(const RoundTag& tag, std::span<const float> in,
                     std::span<float> out) override {
        for (size_t at = 0; at < in.size(); at += piece_) {
            const size_t n = std::min(piece_, in.size() - at);
            absl::Status s = reduceScatter(tag, in.subspan(at, n), out.subspan(at, n));
            if (s.ok()) s = allGather(tag, out.subspan(at, n));
            if (!s.ok()) return s;
        }
        return absl::OkStatus();
    }

  private:
    struct Places {
        bulkhead_place in, out;
    };

    bool far(size_t m) const { return work_.mesh->tcp(m) != nullptr; }
    bool narrow() const { return work_.wire == WireType::kBfloat16; }
    size_t width() const { return narrow() ? sizeof(Bfloat16) : sizeof(float); }

    /// One source: a copy, between device memory and what travels.
    absl::Status copy(const void* from, bool fromWire, void* to, bool toWire, size_t count) {
        bulkhead_sum sum{};
        sum.sources = 1;
        sum.from = &from;
        sum.narrow_sources = fromWire && narrow();
        sum.to = to;
        sum.narrow_to = toWire && narrow();
        sum.count = count;
        return plane_.submit(sum);
    }

    absl::Status round(const RoundTag& tag) {
        return members_ == 1 ? absl::OkStatus() : work_.round(tag, give_, get_);
    }

    absl::Status reduceScatter(const RoundTag& tag, std::span<const float> in,
                               std::span<float> out) {
        const auto [mineBegin, mineEnd] = sliceOf(self_, members_, in.size());
        Places mine{};
        if (absl::Status s = plane_.place(in, mine.in); !s.ok()) return s;
        if (absl::Status s = plane_.place(out, mine.out); !s.ok()) return s;
        for (size_t m = 0; m < members_; ++m) {
            if (m == self_) continue;
            give_[m].bytes = std::as_bytes(std::span(&mine, 1));
            get_[m] = {sizeof(Places), reinterpret_cast<std::byte*>(&told_[m]), false};
            if (!far(m) && !narrow()) continue;
            // Nobody else reads that slice of the output, and it is not needed before the gather:
            // half of it holds what a member of our host reads, in the wire's type too.
            const auto [begin, end] = sliceOf(m, members_, in.size());
            void* to = far(m) ? static_cast<void*>(out_[m]) : out.data() + begin;
            if (absl::Status s = copy(in.data() + begin, false, to, true, end - begin); !s.ok())
                return s;
            if (!far(m)) continue;
            give_[m].bytes = {out_[m], (end - begin) * width()};
            get_[m] = {(mineEnd - mineBegin) * width(), in_[m], false};
        }
        if (absl::Status s = far_ || narrow() ? plane_.finish() : absl::OkStatus(); !s.ok())
            return s;
        if (absl::Status s = round(tag); !s.ok()) return s;
        return sumOwn(in, out.subspan(mineBegin, mineEnd - mineBegin), mineBegin);
    }

    /// `own`: our slice of the output, which begins at element `at` of the piece.
    absl::Status sumOwn(std::span<const float> in, std::span<float> own, size_t at) {
        bulkhead_sum sum{};
        for (size_t m = 0; m < members_; ++m) {
            from_[m] = m == self_ ? static_cast<const void*>(in.data() + at) : in_[m];
            if (m == self_) continue;
            if (narrow()) sum.narrow_sources |= uint64_t{1} << m;
            if (far(m)) continue;
            const absl::StatusOr<const float*> theirs =
                plane_.reach(narrow() ? told_[m].out : told_[m].in, in.size_bytes());
            if (!theirs.ok()) return theirs.status();
            from_[m] = *theirs + at;
            // The gather reads this: a device wants to know all of it before its first sum.
            if (const auto out = plane_.reach(told_[m].out, in.size_bytes()); !out.ok())
                return out.status();
        }
        sum.sources = static_cast<uint32_t>(members_);
        sum.from = from_.data();
        sum.to = own.data();
        sum.count = own.size();
        sum.rounded = narrow();
        if (absl::Status s = plane_.submit(sum); !s.ok()) return s;
        return plane_.finish();
    }

    absl::Status allGather(const RoundTag& tag, std::span<float> out) {
        const auto [mineBegin, mineEnd] = sliceOf(self_, members_, out.size());
        const size_t mine = mineEnd - mineBegin;
        std::byte* staged = nullptr;  // the same for all that are far
        for (size_t m = 0; m < members_; ++m) {
            if (m == self_) continue;
            give_[m] = {};
            get_[m] = {};
            if (!far(m)) continue;
            const auto [begin, end] = sliceOf(m, members_, out.size());
            if (staged == nullptr) {
                staged = out_[m];
                if (absl::Status s = copy(out.data() + mineBegin, false, staged, true, mine);
                    !s.ok())
                    return s;
            }
            give_[m].bytes = {staged, mine * width()};
            get_[m] = {(end - begin) * width(), in_[m], false};
        }
        if (absl::Status s = far_ ? plane_.finish() : absl::OkStatus(); !s.ok()) return s;
        if (absl::Status s = round(tag); !s.ok()) return s;
        for (size_t m = 0; m < members_; ++m) {
            if (m == self_) continue;
            const auto [begin, end] = sliceOf(m, members_, out.size());
            const void* theirs = in_[m];
            if (!far(m)) {
                const absl::StatusOr<const float*> at =
                    plane_.reach(told_[m].out, out.size_bytes());
                if (!at.ok()) return at.status();
                theirs = *at + begin;
            }
            if (absl::Status s = copy(theirs, far(m), out.data() + begin, false, end - begin);
                !s.ok())
                return s;
        }
        return plane_.finish();
    }

    const AllReduceContext& work_;
    const Plane plane_;
    const size_t members_, self_;
    bool far_ = false;  ///< some member is reached over TCP
    size_t piece_ = 0;  ///< elements
    std::vector<Rounds::Give> give_;
    std::vector<Rounds::Get> get_;
    std::vector<Places> told_;  ///< by members of our host, this piece
    std::vector<const void*> from_;
    std::vector<std::byte*> out_, in_;  ///< staging of members over TCP
};

}  // namespace

absl::StatusOr<std::byte*> StagingPool::take(size_t bytes) {
    for (size_t i = used_; i < areas_.size(); ++i) {
        if (areas_[i].bytes < bytes) continue;
        std::swap(areas_[used_], areas_[i]);
        return areas_[used_++].memory;
    }
    void* memory = nullptr;
    if (device_.api->staging(device_.plane, bytes, &memory) != BULKHEAD_OK)
        return absl::ResourceExhaustedError(
            absl::StrCat("device: ", device_.api->why(device_.plane)));
    areas_.push_back({static_cast<std::byte*>(memory), bytes});
    std::swap(areas_[used_], areas_.back());
    return areas_[used_++].memory;
}

absl::StatusOr<std::unique_ptr<AllReduce>> makeDeviceDirect(const AllReduceContext& work,
                                                            const DevicePlane& device,
                                                            StagingPool& staging) {
    auto made = std::make_unique<DeviceDirect>(work, device);
    staging.reclaim();
    if (absl::Status s = made->takeStaging(staging); !s.ok()) return s;
    return made;
}

}  // namespace bulkhead::runtime
