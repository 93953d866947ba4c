// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/newcomers.h"

#include <spdlog/spdlog.h>

#include <concepts>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_format.h"
#include "backend/common/codec.h"
#include "backend/runtime/protocol/channels.h"

namespace bulkhead::runtime {
namespace {

/// So many reasons are remembered.
constexpr size_t kMostReasons = 64;
/// So many lines are logged in so long.
constexpr int kMostLines = 20;
constexpr MonoNs kLinesWithin = 60 * kSecond;
constexpr MonoNs kIntroductionWithin = 5 * kSecond;
constexpr size_t kMostWaiting = 256;

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
    std::string here() const override { return inner_->here(); }
    std::string identity() const override { return inner_->identity(); }

  private:
    struct Ears {
        Received received;
        Closed closed;
    };
    std::unique_ptr<ControlChannel> inner_;
    std::shared_ptr<Ears> ears_;
};

constexpr uint32_t kHello = 0;
static_assert(
    std::same_as<std::variant_alternative_t<kHello, protocol::ToCoordinator>, protocol::Hello>);

/// A first message of any version begins with this.
struct Introduction {
    uint32_t kind = 0;  ///< kAgentMagic or kHello
    uint64_t version = 0;
};

std::optional<Introduction> introductionOf(const std::string& bytes) {
    Introduction it;
    if (bytes.size() < sizeof it.kind + sizeof it.version) return std::nullopt;
    Decoder decoder(bytes);
    decoder.get(it.kind);
    decoder.get(it.version);
    if (it.kind != kHello && it.kind != kAgentMagic) return std::nullopt;
    return it;
}

/// Empty: both are of one version.
std::string otherVersion(uint64_t theirs, uint64_t ours) {
    return theirs == ours ? ""
                          : absl::StrFormat(
                                "it speaks version %016x of the protocol, this controller %016x; "
                                "install the same release on both",
                                theirs, ours);
}

/// Empty: it is who it says.
std::string otherIdentity(const ControlChannel& channel, const std::string& said) {
    return channel.identity() == said
               ? ""
               : absl::StrFormat("it has proved to be \"%s\" and says to be \"%s\"",
                                 channel.identity(), said);
}

}  // namespace

Newcomers::Newcomers(Reactor& reactor, Agent agent, Rank rank)
    : reactor_(reactor), agent_(std::move(agent)), rank_(std::move(rank)) {}

Newcomers::~Newcomers() {
    for (auto& [id, waiting] : waiting_) reactor_.cancel(waiting.timer);
}

void Newcomers::add(std::unique_ptr<ControlChannel> channel) {
    // The one that has been silent for longest gives way.
    if (waiting_.size() >= kMostWaiting) take(waiting_.begin()->first);
    const uint64_t id = next_++;
    Waiting& waiting = waiting_[id];
    waiting.channel = std::make_unique<HandedChannel>(std::move(channel));
    waiting.timer = reactor_.after(kIntroductionWithin, [this, id] {
        if (const auto silent = take(id)) say(*silent, "it did not say who it is");
    });
    waiting.channel->start([this, id](std::string bytes) { spoke(id, bytes); },
                           [this, id](const absl::Status& why) {
                               const auto gone = take(id);
                               // A peer that only closes has said nothing that is wrong.
                               if (gone && (absl::IsDataLoss(why) || absl::IsPermissionDenied(why)))
                                   say(*gone, std::string(why.message()));
                           });
}

/// Limits the log lines: a newcomer that was rejected can return at will and invent reasons.
bool Newcomers::isNews(const std::string& why) {
    if (const MonoNs now = reactor_.now(); now - linesSince_ >= kLinesWithin) {
        linesSince_ = now;
        lines_ = 0;
        if (const int unsaid = std::exchange(unsaid_, 0); unsaid > 0)
            spdlog::warn("{} more newcomers were sent away or refused, too many to name", unsaid);
    }
    if (told_.contains(why)) return false;
    if (lines_ >= kMostLines) return ++unsaid_, false;
    if (told_.size() >= kMostReasons) told_.clear();
    told_.insert(why);
    ++lines_;
    return true;
}

void Newcomers::say(const ControlChannel& channel, const std::string& why) {
    if (isNews(why))
        spdlog::warn("{} was sent away: {} (each reason is said once)", channel.peer(), why);
}

std::unique_ptr<ControlChannel> Newcomers::take(uint64_t id) {
    const auto it = waiting_.find(id);
    if (it == waiting_.end()) return nullptr;
    reactor_.cancel(it->second.timer);
    std::unique_ptr<ControlChannel> channel = std::move(it->second.channel);
    waiting_.erase(it);
    return channel;
}

void Newcomers::spoke(uint64_t id, const std::string& bytes) {
    std::unique_ptr<ControlChannel> channel = take(id);
    if (channel == nullptr) return;
    const auto it = introductionOf(bytes);
    if (!it) return say(*channel, "its first message is neither an agent's nor a rank's");
    if (it->kind == kAgentMagic) {
        const std::string other = otherVersion(it->version, agentVersion());
        if (!other.empty()) return refuse(*channel, AgentCommand(AgentWelcome{other, 0, 0}), other);
        auto hello = decode<AgentHello>(bytes);
        if (!hello.ok()) return say(*channel, std::string(hello.status().message()));
        if (const std::string other = otherIdentity(*channel, agentIdentity(hello->node));
            !other.empty())
            return refuse(*channel, AgentCommand(AgentWelcome{other, 0, 0}), other);
        told_.clear();
        return agent_(std::move(channel), *hello);
    }
    if (const std::string other = otherVersion(it->version, protocol::protocolVersion());
        !other.empty())
        return refuse(*channel, protocol::ToReplica(protocol::Expelled{0, 0, other, true}), other);
    auto message = decode<protocol::ToCoordinator>(bytes);
    const auto* hello = message.ok() ? std::get_if<protocol::Hello>(&*message) : nullptr;
    if (hello == nullptr)
        return say(*channel, message.ok() ? "its first message is not a rank's hello"
                                          : std::string(message.status().message()));
    const protocol::RankEndpoint& rank = hello->endpoint;
    const std::string other =
        otherIdentity(*channel, rankIdentity(hello->job, rank.rank, rank.incarnation));
    const absl::Status taken =
        other.empty() ? rank_(channel, *hello) : absl::PermissionDeniedError(other);
    if (taken.ok()) told_.clear();
    if (taken.ok() || channel == nullptr) return;
    const std::string why(taken.message());
    refuse(*channel,
           protocol::ToReplica(protocol::Expelled{0, hello->endpoint.incarnation, why, false}),
           why);
}

template <class Message>
void Newcomers::refuse(ControlChannel& channel, const Message& answer, const std::string& why) {
    if (isNews(why)) spdlog::warn("{} was refused: {}", channel.peer(), why);
    (void)channel.send(encode(answer));
    channel.close();
}

}  // namespace bulkhead::runtime
