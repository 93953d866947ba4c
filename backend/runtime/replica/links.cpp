// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/links.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/common/codec.h"

namespace bulkhead::runtime {
namespace {

constexpr MonoNs kFirstRetry = 20 * kMillisecond;
constexpr MonoNs kLastRetry = 250 * kMillisecond;
/// To a coordinator that was reached and said nothing that can be read.
constexpr MonoNs kLastRefusedRetry = 5 * kSecond;
constexpr MonoNs kIntroductionWithin = 5 * kSecond;
constexpr size_t kMostSiblings = 256;

std::string text(const absl::Status& status) {
    return std::string(status.message());
}

}  // namespace

CoordinatorLink::CoordinatorLink(Reactor& reactor, Network& network, Where where,
                                 ChannelOptions options, protocol::Hello hello, Hooks hooks)
    : reactor_(reactor),
      network_(network),
      where_(std::move(where)),
      options_(std::move(options)),
      hello_(std::move(hello)),
      hooks_(std::move(hooks)),
      backoff_(kFirstRetry) {
    connect();
}

CoordinatorLink::~CoordinatorLink() {
    reactor_.cancel(timer_);
    if (channel_ != nullptr) channel_->close();
}

void CoordinatorLink::connect() {
    address_ = where_();
    connector_ = network_.connect(
        reactor_, address_, options_, [this](absl::StatusOr<std::unique_ptr<ControlChannel>> c) {
            if (!c.ok()) return retry(kLastRetry);
            channel_ = *std::move(c);
            channel_->start([this](std::string bytes) { receive(bytes); },
                            [this](const absl::Status& why) { lost(why); });
            if (!send(hello_)) return lost(absl::UnavailableError("hello could not be sent"));
            spdlog::info("connected to the coordinator at {}", address_);
            hooks_.connected();
        });
}

void CoordinatorLink::retry(MonoNs atMost) {
    timer_ = reactor_.after(backoff_, [this] { connect(); });
    backoff_ = std::min(backoff_ * 2, atMost);
}

void CoordinatorLink::follow() {
    const std::string now = where_();
    if (now == address_) return;
    backoff_ = kFirstRetry;
    if (channel_ != nullptr)
        return lost(absl::UnavailableError(
            absl::StrCat("this node's agent is with the controller at ", now)));
    reactor_.cancel(std::exchange(timer_, 0));
    connect();
}

void CoordinatorLink::lost(const absl::Status& why) {
    spdlog::warn("the coordinator at {} is gone: {}", address_, text(why));
    channel_.reset();
    hooks_.disconnected();
    retry(kLastRefusedRetry);
}

void CoordinatorLink::receive(const std::string& bytes) {
    absl::StatusOr<protocol::ToReplica> message = decode<protocol::ToReplica>(bytes);
    if (!message.ok()) {
        const auto why = absl::FailedPreconditionError(absl::StrCat(
            "the controller at ", address_, " is of another version: ", text(message.status()),
            "; install the same release on both"));
        lost(why);
        return hooks_.refused(why);
    }
    const auto* out = std::get_if<protocol::Expelled>(&*message);
    if (out != nullptr && out->hopeless)
        return hooks_.refused(absl::FailedPreconditionError(
            absl::StrCat("the controller at ", address_, " refused this rank: ", out->why)));
    if (out == nullptr) backoff_ = kFirstRetry;
    hooks_.received(*std::move(message));
}

bool CoordinatorLink::send(const protocol::ToCoordinator& message) {
    return sendRaw(encode(message));
}

bool CoordinatorLink::sendRaw(std::string_view message) {
    return channel_ != nullptr && channel_->send(message).ok();
}

LeaderLink::LeaderLink(Reactor& reactor, Network& network, const Secret& secret, Received received)
    : reactor_(reactor), network_(network), secret_(secret), received_(std::move(received)) {}

LeaderLink::~LeaderLink() {
    reactor_.cancel(timer_);
    for (const auto& [id, sibling] : siblings_) reactor_.cancel(sibling.introduction);
}

absl::StatusOr<std::unique_ptr<LeaderLink>> LeaderLink::lead(Reactor& reactor, Network& network,
                                                             const std::string& address,
                                                             const Secret& secret,
                                                             Received received) {
    std::unique_ptr<LeaderLink> link(new LeaderLink(reactor, network, secret, std::move(received)));
    LeaderLink* raw = link.get();
    ChannelOptions channel;
    channel.keyOf = [secret](std::string_view) { return secret; };
    absl::StatusOr<std::unique_ptr<ControlListener>> listener =
        network.listen(reactor, address, std::move(channel),
                       [raw](std::unique_ptr<ControlChannel> c) { raw->accept(std::move(c)); });
    if (!listener.ok()) return listener.status();
    link->listener_ = *std::move(listener);
    return link;
}

std::unique_ptr<LeaderLink> LeaderLink::follow(Reactor& reactor, Network& network,
                                               const std::string& leader, const Secret& secret,
                                               Received received, std::function<void()> again) {
    std::unique_ptr<LeaderLink> link(new LeaderLink(reactor, network, secret, std::move(received)));
    link->leader_ = leader;
    link->again_ = std::move(again);
    link->connect();
    return link;
}

std::string LeaderLink::address() const {
    return listener_ ? listener_->address() : leader_;
}

void LeaderLink::accept(std::unique_ptr<ControlChannel> channel) {
    const auto stranger = std::find_if(siblings_.begin(), siblings_.end(),
                                       [](const auto& entry) { return !entry.second.heard; });
    // The one that has been silent for longest gives way.
    if (siblings_.size() >= kMostSiblings && stranger != siblings_.end()) drop(stranger->first);
    const uint64_t id = next_++;
    Sibling& sibling = siblings_[id];
    sibling.channel = std::move(channel);
    sibling.introduction = reactor_.after(kIntroductionWithin, [this, id] { drop(id); });
    sibling.channel->start([this, id](std::string bytes) { receive(id, bytes); },
                           [this, id](const absl::Status&) { drop(id); });
}

void LeaderLink::drop(uint64_t id) {
    reactor_.cancel(siblings_[id].introduction);
    siblings_.erase(id);
}

void LeaderLink::receive(uint64_t id, const std::string& bytes) {
    Sibling& sibling = siblings_[id];
    if (!std::exchange(sibling.heard, true)) {
        reactor_.cancel(sibling.introduction);
        return;
    }
    absl::StatusOr<protocol::ToLeader> message = decode<protocol::ToLeader>(bytes);
    if (message.ok())
        received_(*std::move(message));
    else
        spdlog::error("a message of a sibling cannot be read: {}", text(message.status()));
}

void LeaderLink::connect() {
    ChannelOptions channel;
    channel.credential = {"a rank of the replica", secret_};
    connector_ = network_.connect(
        reactor_, leader_, std::move(channel),
        [this](absl::StatusOr<std::unique_ptr<ControlChannel>> c) {
            if (!c.ok()) {
                timer_ = reactor_.after(kFirstRetry, [this] { connect(); });
                return;
            }
            up_ = *std::move(c);
            up_->start(
                [this](std::string bytes) {
                    absl::StatusOr<protocol::ToLeader> m = decode<protocol::ToLeader>(bytes);
                    if (m.ok()) received_(*std::move(m));
                },
                [this](const absl::Status& why) {
                    spdlog::warn("the leader of this replica is gone: {}", text(why));
                    up_.reset();
                    broke_ = true;
                    timer_ = reactor_.after(kFirstRetry, [this] { connect(); });
                });
            if (!up_->send("here").ok()) return;
            flush();
            if (std::exchange(broke_, false)) again_();
        });
}

void LeaderLink::flush() {
    while (up_ != nullptr && !waiting_.empty() && up_->send(waiting_.front()).ok())
        waiting_.pop_front();
}

void LeaderLink::send(const protocol::ToLeader& message) {
    waiting_.push_back(encode(message));
    flush();
}

void LeaderLink::sendToSiblings(const protocol::ToLeader& message) {
    const std::string bytes = encode(message);
    for (auto& [id, sibling] : siblings_)
        if (sibling.heard) (void)sibling.channel->send(bytes);
}

bool LeaderLink::sendToSibling(const protocol::ToLeader& message) {
    const std::string bytes = encode(message);
    return std::any_of(siblings_.begin(), siblings_.end(), [&](auto& entry) {
        return entry.second.heard && entry.second.channel->send(bytes).ok();
    });
}

}  // namespace bulkhead::runtime
