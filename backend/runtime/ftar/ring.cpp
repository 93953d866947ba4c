// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "backend/runtime/ftar/algorithm.h"
#include "backend/runtime/ftar/reduction.h"

namespace bulkhead::runtime {
namespace {

constexpr size_t kLeastPiece = 16u << 10;  // elements: below that a round costs more than its bytes

/// Method kRing: see there. In step t member i adds its own to piece t - i and hands it up in the
/// next; a piece is finished at member n-1 in step p + n-2, from where it goes round to all but it.
/// A step is two rounds with both neighbours: one for sums on their way up, which are float32 so
/// that every addition is, and one for finished pieces, which travel as the wire type says.
class Ring final : public AllReduce {
  public:
    explicit Ring(const AllReduceContext& work)
        : work_(work),
          members_(work.mesh->size()),
          self_(work.mesh->self()),
          next_((self_ + 1) % members_),
          previous_((self_ + members_ - 1) % members_),
          give_(members_),
          get_(members_, Rounds::Get{0, nullptr, true}) {
        get_[next_].apart = get_[previous_].apart = false;
    }

    absl::Status run(const RoundTag& tag, std::span<const float> in,
                     std::span<float> out) override {
        if (members_ == 1) {
            addOwn(nullptr, in, out);
            return absl::OkStatus();
        }
        const size_t most = work_.roundBytes / sizeof(float);
        const size_t even = std::max(kLeastPiece, in.size() / (4 * members_));
        const Pieces pieces{std::min(most, even), in.size()};
        const auto n = static_cast<ptrdiff_t>(members_);
        const auto steps = static_cast<ptrdiff_t>(pieces.count()) + 2 * (n - 2);
        for (ptrdiff_t t = 0; t < steps; ++t) {
            if (absl::Status s = up(tag, pieces, t, in, out); !s.ok()) return s;
            if (absl::Status s = round(tag, pieces, t - (n - 2), out); !s.ok()) return s;
        }
        return absl::OkStatus();
    }

  private:
    struct Pieces {
        size_t each = 0;
        size_t total = 0;
        size_t count() const { return (total + each - 1) / each; }
        /// Empty when there is no piece `p`.
        template <class T>
        std::span<T> of(std::span<T> all, ptrdiff_t p) const {
            if (p < 0 || static_cast<size_t>(p) >= count()) return {};
            const size_t at = static_cast<size_t>(p) * each;
            return all.subspan(at, std::min(each, total - at));
        }
    };

    bool narrow() const { return work_.wire == WireType::kBfloat16; }
    bool last() const { return self_ + 1 == members_; }

    /// out = lower replicas' sum + our input; the last one's sum is whole and rounded.
    void addOwn(const float* below, std::span<const float> in, std::span<float> out) const {
        std::span<const float> own = in;
        if (narrow()) {
            roundToBfloat16(in, out);
            own = out;
        }
        const float* const sources[] = {below, own.data()};
        sumInOrder(std::span(sources).subspan(below == nullptr ? 1 : 0), out.data(), out.size());
        if (narrow() && last()) roundToBfloat16(out, out);
    }

    absl::Status up(const RoundTag& tag, const Pieces& pieces, ptrdiff_t t,
                    std::span<const float> in, std::span<float> out) {
        const ptrdiff_t going = t - static_cast<ptrdiff_t>(self_);
        const bool asItIs = self_ == 0 && !narrow();
        if (self_ == 0 && narrow()) roundToBfloat16(pieces.of(in, going), pieces.of(out, going));
        clear();
        if (!last())
            give_[next_].bytes = std::as_bytes(
                asItIs ? pieces.of(in, going) : std::span<const float>(pieces.of(out, going)));
        const std::span<float> coming = self_ == 0 ? std::span<float>() : pieces.of(out, going + 1);
        get_[previous_].size = coming.size_bytes();
        if (absl::Status s = work_.round(tag, give_, get_); !s.ok()) return s;
        if (!coming.empty())
            addOwn(reinterpret_cast<const float*>(work_.rounds->got(previous_).data()),
                   pieces.of(in, going + 1), coming);
        return absl::OkStatus();
    }

    /// `finished`: the piece that the last member gives in this step.
    absl::Status round(const RoundTag& tag, const Pieces& pieces, ptrdiff_t finished,
                       std::span<float> out) {
        const auto hops = static_cast<ptrdiff_t>(next_);  // from the last member to us
        const std::span<float> going =
            self_ + 2 == members_ ? std::span<float>() : pieces.of(out, finished - hops);
        const std::span<float> coming =
            last() ? std::span<float>() : pieces.of(out, finished - hops + 1);
        clear();
        give_[next_].bytes = std::as_bytes(going);
        get_[previous_].size = coming.size_bytes();
        get_[previous_].to = reinterpret_cast<std::byte*>(coming.data());
        if (narrow()) {
            narrowed_.resize(going.size());
            toBfloat16(going, narrowed_);
            give_[next_].bytes = std::as_bytes(std::span(narrowed_));
            get_[previous_].size = coming.size() * sizeof(Bfloat16);
            get_[previous_].to = nullptr;
        }
        if (absl::Status s = work_.round(tag, give_, get_); !s.ok()) return s;
        if (narrow())
            fromBfloat16({reinterpret_cast<const Bfloat16*>(work_.rounds->got(previous_).data()),
                          coming.size()},
                         coming);
        return absl::OkStatus();
    }

    void clear() {
        for (const size_t i : {next_, previous_}) {
            give_[i] = {};
            get_[i] = {};
        }
    }

    const AllReduceContext& work_;
    const size_t members_, self_, next_, previous_;
    std::vector<Rounds::Give> give_;
    std::vector<Rounds::Get> get_;
    std::vector<Bfloat16> narrowed_;
};

}  // namespace

std::unique_ptr<AllReduce> makeRing(const AllReduceContext& work) {
    return std::make_unique<Ring>(work);
}

}  // namespace bulkhead::runtime
