// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/collectives/group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/collectives/elements.h"
#include "backend/runtime/transport/address.h"
#include "backend/runtime/transport/rounds.h"

namespace bulkhead::runtime {
namespace {

constexpr size_t kMaxBroadcast = size_t{1} << 20;
constexpr size_t kAlign = 64;

/// The purpose of a round: detects ranks that do not make the same calls.
enum class Kind : uint32_t { kGather = 1, kReduce, kAllToAll, kBarrier, kBroadcast };

class MeshGroup final : public Group {
  public:
    explicit MeshGroup(GroupOptions options) : options_(std::move(options)) {
        context_.clock = options_.clock;
        context_.abort = &abort_;
        context_.faults = options_.faults;
        context_.progress = options_.progress;
        context_.arrived = options_.progress;
    }

    absl::Status connect() {
        MeshSpec spec;
        spec.group = absl::StrCat("group ", options_.name);
        spec.secret = options_.secret;
        spec.self = static_cast<size_t>(options_.rank);
        for (size_t i = 0; i < options_.peers.size(); ++i) {
            const GroupPeer& p = options_.peers[i];
            spec.peers.push_back({static_cast<int32_t>(i), 0, p.host, p.data, p.shm});
        }
        spec.choice = options_.transport;
        spec.slotBytes = options_.roundBytes + kMaxMembers * kAlign;
        spec.timeout = options_.timeout;
        UniqueFd own;
        spec.listenFd = options_.listenFd;
        if (spec.listenFd < 0 && needsListener()) {
            absl::StatusOr<UniqueFd> fd = listenOn(options_.peers[spec.self].data);
            if (!fd.ok()) return fd.status();
            own = std::move(*fd);
            spec.listenFd = own.get();
        }
        std::vector<MeshFailure> failures;
        auto mesh = PeerMesh::connect(std::move(spec), context_, failures);
        if (!mesh.ok()) return mesh.status();
        mesh_ = std::move(*mesh);
        rounds_ = std::make_unique<Rounds>(*mesh_, context_);
        give_.resize(mesh_->size());
        get_.resize(mesh_->size());
        return absl::OkStatus();
    }

    int32_t rank() const override { return options_.rank; }
    int32_t size() const override { return static_cast<int32_t>(members()); }

    absl::Status allGather(std::span<const std::byte> from, std::span<std::byte> to) override {
        if (to.size() != from.size() * members())
            return fail(absl::InvalidArgumentError(absl::StrCat(
                "all-gather: ", to.size(), " bytes for ", members(), " times ", from.size())));
        ++calls_;
        if (!from.empty()) std::memmove(to.data() + self() * from.size(), from.data(), from.size());
        for (size_t at = 0; at < from.size(); at += options_.roundBytes) {
            const size_t n = std::min(options_.roundBytes, from.size() - at);
            for (size_t i = 0; i < members(); ++i) {
                give_[i].bytes = from.subspan(at, n);
                get_[i] = {n, to.data() + i * from.size() + at};
            }
            if (absl::Status s = round(Kind::kGather); !s.ok()) return s;
        }
        return absl::OkStatus();
    }

    absl::Status reduceScatter(const void* from, void* to, size_t count,
                               ElementType type) override {
        ++calls_;
        const size_t width = elementSize(type);
        const auto* in = static_cast<const std::byte*>(from);
        auto* out = static_cast<std::byte*>(to);
        const size_t most = std::max<size_t>(1, perPeer() / width);
        std::vector<const void*> sources(members());
        for (size_t at = 0; at < count; at += most) {
            const size_t n = std::min(most, count - at);
            for (size_t i = 0; i < members(); ++i) {
                give_[i].bytes = {in + (i * count + at) * width, n * width};
                get_[i] = {n * width, nullptr};
            }
            if (absl::Status s = round(Kind::kReduce); !s.ok()) return s;
            for (size_t i = 0; i < members(); ++i)
                sources[i] = i == self() ? in + (i * count + at) * width : rounds_->got(i).data();
            reduceElements(out + at * width, type, sources, type, n);
        }
        return absl::OkStatus();
    }

    absl::Status allToAll(const void* from, std::span<const size_t> sendBytes, void* to,
                          std::span<const size_t> recvBytes) override {
        if (sendBytes.size() != members() || recvBytes.size() != members() ||
            sendBytes[self()] != recvBytes[self()])
            return fail(absl::InvalidArgumentError(
                "all-to-all: one count per rank, and as many bytes from us as to us"));
        ++calls_;
        const auto* in = static_cast<const std::byte*>(from);
        auto* out = static_cast<std::byte*>(to);
        std::vector<size_t> inAt = offsets(sendBytes), outAt = offsets(recvBytes);
        if (sendBytes[self()] > 0)
            std::memcpy(out + outAt[self()], in + inAt[self()], sendBytes[self()]);
        std::vector<size_t> toSend(sendBytes.begin(), sendBytes.end());
        std::vector<size_t> toGet(recvBytes.begin(), recvBytes.end());
        toSend[self()] = toGet[self()] = 0;
        do {
            bool more = false;
            for (size_t i = 0; i < members(); ++i) {
                const size_t send = std::min(perPeer(), toSend[i]);
                const size_t get = std::min(perPeer(), toGet[i]);
                give_[i].bytes = {in + inAt[i], send};
                get_[i] = {get, out + outAt[i]};
                inAt[i] += send;
                outAt[i] += get;
                toSend[i] -= send;
                toGet[i] -= get;
                more = more || toSend[i] > 0;
            }
            if (absl::Status s = round(Kind::kAllToAll, more); !s.ok()) return s;
        } while (rounds_->anyMore());
        if (std::any_of(toGet.begin(), toGet.end(), [](size_t left) { return left > 0; }))
            return fail(absl::DataLossError("all-to-all: a rank sent less than was expected"));
        return absl::OkStatus();
    }

    absl::Status barrier() override {
        ++calls_;
        for (size_t i = 0; i < members(); ++i) {
            give_[i] = {};
            get_[i] = {};
        }
        return round(Kind::kBarrier);
    }

    absl::Status broadcast(std::string& message, int32_t root) override {
        if (root < 0 || root >= size())
            return fail(absl::InvalidArgumentError(absl::StrCat("broadcast: no rank ", root)));
        const bool mine = root == rank();
        if (mine && message.size() > kMaxBroadcast)
            return fail(absl::InvalidArgumentError(
                absl::StrCat("broadcast: ", message.size(), " bytes, at most ", kMaxBroadcast)));
        ++calls_;
        uint64_t length = message.size();
        uint64_t told = 0;
        for (size_t i = 0; i < members(); ++i) {
            const bool isRoot = i == static_cast<size_t>(root);
            give_[i].bytes = mine ? std::as_bytes(std::span(&length, 1)) : noBytes();
            get_[i] = isRoot ? Rounds::Get{sizeof told, reinterpret_cast<std::byte*>(&told)}
                             : Rounds::Get{};
        }
        if (absl::Status s = round(Kind::kBroadcast); !s.ok()) return s;
        if (!mine) {
            if (told > kMaxBroadcast)
                return fail(absl::DataLossError("broadcast: an impossible length"));
            message.resize(told);
        }
        for (size_t at = 0; at < message.size(); at += options_.roundBytes) {
            const size_t n = std::min(options_.roundBytes, message.size() - at);
            auto* bytes = reinterpret_cast<std::byte*>(message.data()) + at;
            for (size_t i = 0; i < members(); ++i) {
                const bool isRoot = i == static_cast<size_t>(root);
                give_[i].bytes = mine ? std::span<const std::byte>(bytes, n) : noBytes();
                get_[i] = isRoot ? Rounds::Get{n, bytes} : Rounds::Get{};
            }
            if (absl::Status s = round(Kind::kBroadcast); !s.ok()) return s;
        }
        return absl::OkStatus();
    }

    void abort(std::string_view reason) override {
        abort_.raise(absl::AbortedError(std::string(reason)));
    }

    bool usable() const { return abort_.ok(); }

  private:
    static std::span<const std::byte> noBytes() { return {}; }
    size_t members() const { return options_.peers.size(); }
    size_t self() const { return static_cast<size_t>(options_.rank); }

    /// The most that may go to each peer in a round in which all get different bytes.
    size_t perPeer() const {
        return std::max(kAlign, options_.roundBytes / members() / kAlign * kAlign);
    }

    bool needsListener() const {
        for (size_t i = self() + 1; i < members(); ++i)
            if (!useSharedMemory(options_.transport, options_.peers[self()].host,
                                 options_.peers[i].host))
                return true;
        return false;
    }

    static std::vector<size_t> offsets(std::span<const size_t> lengths) {
        std::vector<size_t> at(lengths.size(), 0);
        for (size_t i = 1; i < lengths.size(); ++i) at[i] = at[i - 1] + lengths[i - 1];
        return at;
    }

    absl::Status round(Kind kind, bool more = false) {
        if (!failed_.ok()) return failed_;
        if (abort_.raised()) return fail(abort_.why());
        const RoundTag tag{calls_, 0, static_cast<uint32_t>(kind)};
        absl::Status s = rounds_->run(tag, give_, get_, options_.timeout, more);
        return s.ok() ? s : fail(std::move(s));
    }

    absl::Status fail(absl::Status why) {
        if (failed_.ok())
            failed_ = absl::Status(
                why.code(), absl::StrCat("group ", options_.name, ", rank ", options_.rank, ": ",
                                         std::string(why.message())));
        return failed_;
    }

    const GroupOptions options_;
    MeshContext context_;
    AbortSignal abort_;
    std::unique_ptr<PeerMesh> mesh_;
    std::unique_ptr<Rounds> rounds_;
    std::vector<Rounds::Give> give_;
    std::vector<Rounds::Get> get_;
    uint64_t calls_ = 0;
    absl::Status failed_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Group>> makeGroup(GroupOptions options) {
    if (options.clock == nullptr) return absl::InvalidArgumentError("GroupOptions.clock is null");
    if (options.peers.empty() || options.peers.size() > kMaxMembers || options.rank < 0 ||
        static_cast<size_t>(options.rank) >= options.peers.size())
        return absl::InvalidArgumentError(absl::StrCat("group ", options.name, ": rank ",
                                                       options.rank, " of ", options.peers.size(),
                                                       " ranks"));
    if (options.roundBytes < kMaxMembers * kAlign || options.roundBytes > (size_t{1} << 30))
        return absl::InvalidArgumentError("roundBytes must be 4 KiB to 1 GiB");
    options.roundBytes = options.roundBytes / kAlign * kAlign;
    auto group = std::make_unique<MeshGroup>(std::move(options));
    if (!group->usable()) return absl::InternalError("the kernel gave no eventfd");
    if (absl::Status s = group->connect(); !s.ok()) return s;
    return group;
}

}  // namespace bulkhead::runtime
