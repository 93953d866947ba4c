// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/agent.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/common/codec.h"
#include "backend/runtime/agent/agent_messages.h"
#include "backend/runtime/agent/linux_host.h"
#include "backend/runtime/agent/supervisor.h"
#include "backend/runtime/transport/address.h"
#include "backend/runtime/transport/control_channel.h"
#include "backend/runtime/transport/reactor.h"
#include "spdlog/spdlog.h"

namespace bulkhead::runtime {
namespace {

constexpr MonoNs kFirstRetry = 100 * kMillisecond;
constexpr MonoNs kLastRetry = 250 * kMillisecond;
/// To a controller that was reached and did not welcome this agent.
constexpr MonoNs kLastRefusedRetry = 5 * kSecond;
/// Of a controller, where there are others.
constexpr MonoNs kSilence = 2 * kSecond;
/// A connection, with its handshake.
constexpr MonoNs kAnswerWithin = 500 * kMillisecond;
constexpr MonoNs kListenEvery = 250 * kMillisecond;
/// Exits and faults kept until a controller has heard of them.
constexpr size_t kMaxUnheard = 1024;

}  // namespace

class Agent::Impl {
  public:
    /// `own` is null when the options name a reactor.
    Impl(AgentOptions options, RankRegistry registry, std::unique_ptr<Reactor> own)
        : options_(std::move(options)),
          own_(std::move(own)),
          reactor_(own_ != nullptr ? own_.get() : options_.reactor),
          thisMachine_(options_.host != nullptr
                           ? nullptr
                           : std::make_unique<LinuxHost>(*reactor_, options_.outputLinesPerSecond,
                                                         options_.gpuLibrary, options_.inherited)),
          supervisor_(options_, std::move(registry), *reactor_,
                      options_.host != nullptr ? *options_.host : *thisMachine_,
                      [this](AgentMessage message) { report(std::move(message)); }) {
        supervisor_.adopt();
    }

    absl::Status own() { return supervisor_.ownGpus(); }

    absl::Status run() {
        connect();
        reactor_->run();
        return refused_;
    }

    void stop() { reactor_->stop(); }

    void connect() {
        ChannelOptions channel;
        channel.credential = {agentIdentity(options_.node), options_.key};
        if (hasOthers()) channel.connectTimeout = kAnswerWithin;
        connector_ = options_.network->connect(
            *reactor_, controller(), std::move(channel),
            [this](absl::StatusOr<std::unique_ptr<ControlChannel>> channel) {
                connected(std::move(channel));
            });
    }

    const absl::Status& refused() const { return refused_; }

  private:
    const std::string& controller() const { return options_.controllers[at_]; }
    bool hasOthers() const { return options_.controllers.size() > 1; }

    void connected(absl::StatusOr<std::unique_ptr<ControlChannel>> channel) {
        if (!channel.ok()) return retry(channel.status(), kLastRetry);
        channel_ = *std::move(channel);
        heardAt_ = reactor_->now();
        if (hasOthers()) listening_ = reactor_->every(kListenEvery, [this] { listen(); });
        channel_->start([this](std::string bytes) { received(bytes); },
                        [this](const absl::Status& why) { lost(why); });
        AgentHello hello;
        hello.version = agentVersion();
        hello.node = options_.node;
        hello.address = options_.address;
        hello.slots = options_.slots;
        hello.gpus = supervisor_.gpus();
        hello.pid = options_.pid != 0 ? options_.pid : ::getpid();
        char host[256] = "";
        (void)::gethostname(host, sizeof host - 1);
        hello.home = absl::StrCat(host, ":", options_.runDir);
        hello.running = supervisor_.running();
        if (absl::Status s = channel_->send(encode(hello)); !s.ok()) lost(s);
    }

    /// A controller answers every beat.
    void listen() {
        if (reactor_->now() - heardAt_ > kSilence)
            lost(absl::DeadlineExceededError(
                absl::StrCat("it has said nothing for ", kSilence / kSecond, " s")));
    }

    void lost(const absl::Status& why) {
        if (welcome_) return retry(why, kLastRetry);
        const std::string text(why.message());
        if (std::exchange(saidOf_, text) != text)
            spdlog::warn("agent {}: the controller at {} did not welcome it: {}; {}", options_.node,
                         controller(), text,
                         hasOthers() ? "the others are tried, and then it again"
                                     : absl::StrCat("it is tried again, at last every ",
                                                    kLastRefusedRetry / kSecond, " s"));
        retry(why, hasOthers() ? kLastRetry : kLastRefusedRetry);
    }

    void retry(const absl::Status& why, MonoNs atMost) {
        if (welcome_)
            spdlog::warn("agent {}: the controller is away: {}", options_.node, why.ToString());
        welcome_ = false;
        channel_.reset();
        reactor_->cancel(std::exchange(beating_, 0));
        reactor_->cancel(std::exchange(listening_, 0));
        // All are tried before it waits: one at most takes it.
        at_ = (at_ + 1) % options_.controllers.size();
        if (++tried_ < options_.controllers.size())
            return (void)reactor_->after(0, [this] { connect(); });
        tried_ = 0;
        reactor_->after(delay_, [this] { connect(); });
        delay_ = std::min(2 * delay_, atMost);
    }

    void received(const std::string& bytes) {
        heardAt_ = reactor_->now();
        auto command = decode<AgentCommand>(bytes);
        if (!command.ok()) {
            if (welcome_) return lost(command.status());
            return refused({absl::StrCat("it is of another version: ", command.status().message(),
                                         "; install the same release on both"),
                            0, 0});
        }
        if (const auto* heard = std::get_if<AgentHeard>(&*command)) {
            unheard_.erase(heard->receipt);
            return;
        }
        const auto* welcome = std::get_if<AgentWelcome>(&*command);
        if (welcome == nullptr) return supervisor_.obey(*command);
        if (!welcome->error.empty()) return refused(*welcome);
        welcome_ = true;
        tried_ = 0;
        if (hasOthers()) noteController();
        delay_ = kFirstRetry;
        nameTakenSince_.reset();
        saidOf_.clear();
        if (welcome->beatMs > 0)
            beating_ = reactor_->every(welcome->beatMs * kMillisecond, [this] {
                (void)channel_->send(encode(AgentMessage(AgentBeat{})));
            });
        for (const auto& [receipt, message] : unheard_) (void)channel_->send(encode(message));
    }

    /// For its ranks, whose connection to the one before may not have broken.
    void noteController() {
        const std::string note = controllerNote(options_.runDir);
        if (options_.files->read(note).value_or("") == controller()) return;
        spdlog::info("agent {}: is with the controller at {}", options_.node, controller());
        if (absl::Status s = writeDurably(*options_.files, note, controller()); !s.ok())
            spdlog::error("agent {}: its ranks cannot learn of the controller at {}: {}",
                          options_.node, controller(), std::string(s.message()));
    }

    /// The controller may not know yet that an earlier connection of this node is dead.
    void refused(const AgentWelcome& welcome) {
        const absl::Status why = absl::PermissionDeniedError(absl::StrCat(
            "the controller at ", controller(), " refused this agent: ", welcome.error));
        if (welcome.tryAgainMs > 0) {
            if (!nameTakenSince_) {
                nameTakenSince_ = reactor_->now();
                spdlog::warn("agent {}: {}; trying again for {} ms", options_.node,
                             std::string(why.message()), welcome.tryAgainMs);
            }
            if (reactor_->now() - *nameTakenSince_ < welcome.tryAgainMs * kMillisecond)
                return retry(why, kLastRetry);
        }
        refused_ = why;
        reactor_->stop();
    }

    void report(AgentMessage message) {
        // Output and samples of a rank from a time without a listener are dropped; how
        // it ended is, until somebody has acted on it: sent is not heard.
        keep(std::get_if<RankDied>(&message), message);
        keep(std::get_if<RankGone>(&message), message);
        keep(std::get_if<AgentFaultNoted>(&message), message);
        keep(std::get_if<GpuTroubleSeen>(&message), message);
        keep(std::get_if<RankFiles>(&message), message);
        if (welcome_) (void)channel_->send(encode(message));
    }

    template <class M>
    void keep(M* kept, const AgentMessage& message) {
        if (kept == nullptr || unheard_.size() >= kMaxUnheard) return;
        kept->receipt = ++receipts_;
        unheard_.emplace(kept->receipt, message);
    }

    AgentOptions options_;
    std::unique_ptr<Reactor> own_;
    Reactor* reactor_;
    std::unique_ptr<LinuxHost> thisMachine_;
    std::map<uint64_t, AgentMessage> unheard_;  ///< by receipt
    uint64_t receipts_ = 0;
    bool welcome_ = false;
    size_t tried_ = 0;  ///< without a wait in between
    size_t at_ = 0;     ///< index of the controller that it is with, or tries
    MonoNs delay_ = kFirstRetry;
    MonoNs heardAt_ = 0;
    Reactor::TimerId beating_ = 0;
    Reactor::TimerId listening_ = 0;
    std::optional<MonoNs> nameTakenSince_;
    std::string saidOf_;  ///< the reason last logged for not being welcomed by a controller
    absl::Status refused_;
    std::unique_ptr<ControlConnector> connector_;
    std::unique_ptr<ControlChannel> channel_;
    Supervisor supervisor_;
};

std::string controllerNote(const std::string& runDir) {
    return runDir + "/controller";
}

absl::StatusOr<std::unique_ptr<Agent>> Agent::create(AgentOptions options, const Clock& clock) {
    if (options.controllers.empty()) return absl::InvalidArgumentError("no controller was named");
    for (const std::string& controller : options.controllers)
        if (auto address = parseAddress(controller); !address.ok()) return address.status();
    auto registry = RankRegistry::open(*options.files, options.runDir);
    if (!registry.ok()) return registry.status();
    if (options.host == nullptr) ::chmod(options.runDir.c_str(), 0700);
    std::unique_ptr<Reactor> own;
    if (options.reactor == nullptr) {
        auto made = Reactor::create(clock);
        if (!made.ok()) return made.status();
        own = *std::move(made);
    }
    auto impl = std::make_unique<Impl>(std::move(options), *std::move(registry), std::move(own));
    if (absl::Status s = impl->own(); !s.ok()) return s;
    return std::unique_ptr<Agent>(new Agent(std::move(impl)));
}

Agent::Agent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Agent::~Agent() = default;
absl::Status Agent::run() {
    return impl_->run();
}
void Agent::stop() {
    impl_->stop();
}
void Agent::begin() {
    impl_->connect();
}
const absl::Status& Agent::refused() const {
    return impl_->refused();
}

}  // namespace bulkhead::runtime
