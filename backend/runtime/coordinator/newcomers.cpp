// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/newcomers.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/common/codec.h"
#include "backend/runtime/protocol/channels.h"

namespace bulkhead::runtime {
namespace {

constexpr MonoNs kIntroductionWithin = 10 * kSecond;

/// A channel that was started already to hear who is there, and is started again by who takes it.
class HandedChannel final : public ControlChannel {
  public:
    explicit HandedChannel(std::unique_ptr<ControlChannel> inner)
        : inner_(std::move(inner)), ears_(std::make_shared<Ears>()) {}

    void start(Received received, Closed closed) override {
        const bool first = ears_->received == nullptr;
        ears_->received = std::move(received);
        ears_->closed = std::move(closed);
        if (!first) return;
        // The callbacks may destroy this channel, and with it the functions: call copies.
        inner_->start(
            [ears = ears_](std::string message) {
                const Received to = ears->received;
                to(std::move(message));
            },
            [ears = ears_](const absl::Status& why) {
                const Closed to = ears->closed;
                to(why);
            });
    }
    absl::Status send(std::string_view message) override { return inner_->send(message); }
    void close() override { inner_->close(); }
    bool isOpen() const override { return inner_->isOpen(); }
    size_t queuedBytes() const override { return inner_->queuedBytes(); }
    std::string peer() const override { return inner_->peer(); }

  private:
    struct Ears {
        Received received;
        Closed closed;
    };
    std::unique_ptr<ControlChannel> inner_;
    std::shared_ptr<Ears> ears_;
};

bool isAgent(const std::string& bytes) {
    uint32_t magic = 0;
    if (bytes.size() < sizeof magic) return false;
    std::memcpy(&magic, bytes.data(), sizeof magic);
    return magic == kAgentMagic;
}

}  // namespace

Newcomers::Newcomers(Reactor& reactor, std::string token, Agent agent, Rank rank)
    : reactor_(reactor),
      token_(std::move(token)),
      agent_(std::move(agent)),
      rank_(std::move(rank)) {}

Newcomers::~Newcomers() {
    for (auto& [id, waiting] : waiting_) reactor_.cancel(waiting.timer);
}

void Newcomers::add(std::unique_ptr<ControlChannel> channel) {
    const uint64_t id = next_++;
    Waiting& waiting = waiting_[id];
    waiting.channel = std::make_unique<HandedChannel>(std::move(channel));
    waiting.timer = reactor_.after(kIntroductionWithin, [this, id] { take(id); });
    waiting.channel->start([this, id](std::string bytes) { spoke(id, bytes); },
                           [this, id](const absl::Status&) { take(id); });
}

std::unique_ptr<ControlChannel> Newcomers::take(uint64_t id) {
    const auto it = waiting_.find(id);
    if (it == waiting_.end()) return nullptr;
    reactor_.cancel(it->second.timer);
    std::unique_ptr<ControlChannel> channel = std::move(it->second.channel);
    waiting_.erase(it);
    return channel;
}

absl::Status Newcomers::check(const protocol::Hello& hello) const {
    if (hello.version != protocol::kProtocolVersion)
        return absl::FailedPreconditionError(
            absl::StrCat("it speaks protocol version ", hello.version, ", this coordinator ",
                         protocol::kProtocolVersion, "; install the same release on both"));
    if (hello.token != token_)
        return absl::PermissionDeniedError("its token is not this controller's");
    return absl::OkStatus();
}

void Newcomers::spoke(uint64_t id, const std::string& bytes) {
    std::unique_ptr<ControlChannel> channel = take(id);
    if (channel == nullptr) return;
    if (isAgent(bytes)) {
        auto hello = decode<AgentHello>(bytes);
        if (hello.ok()) agent_(std::move(channel), *hello);
        return;
    }
    auto message = decode<protocol::ToCoordinator>(bytes);
    const auto* hello = message.ok() ? std::get_if<protocol::Hello>(&*message) : nullptr;
    if (hello == nullptr) return;  // not one of ours; closing is all it gets
    absl::Status taken = check(*hello);
    if (taken.ok()) taken = rank_(channel, *hello);
    if (taken.ok() || channel == nullptr) return;
    const protocol::ToReplica expelled =
        protocol::Expelled{0, hello->endpoint.incarnation, std::string(taken.message())};
    (void)channel->send(encode(expelled));
    channel->close();
}

}  // namespace bulkhead::runtime
