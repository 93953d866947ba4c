// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "backend/runtime/agent/agent_messages.h"
#include "backend/runtime/protocol/messages.h"
#include "backend/runtime/transport/control_channel.h"
#include "backend/runtime/transport/reactor.h"

namespace bulkhead::runtime {

/// Connections that have not said who they are: the first message tells an agent from a rank, and
/// whoever has another version, says to be another than its connection has proved, or nothing in
/// time, is put out with the reason. A version is read of every build; what another build says
/// after it is not. Thread: the reactor's.
class Newcomers {
  public:
    using Agent = std::function<void(std::unique_ptr<ControlChannel>, const AgentHello&)>;
    /// An error is told to the rank as Expelled.
    using Rank =
        std::function<absl::Status(std::unique_ptr<ControlChannel>&, const protocol::Hello&)>;

    Newcomers(Reactor& reactor, Agent agent, Rank rank);
    ~Newcomers();

    void add(std::unique_ptr<ControlChannel> channel);

  private:
    struct Waiting {
        std::unique_ptr<ControlChannel> channel;
        Reactor::TimerId timer = 0;
    };
    void spoke(uint64_t id, const std::string& bytes);
    bool isNews(const std::string& why);
    void say(const ControlChannel& channel, const std::string& why);
    std::unique_ptr<ControlChannel> take(uint64_t id);
    template <class Message>
    void refuse(ControlChannel& channel, const Message& answer, const std::string& why);

    Reactor& reactor_;
    Agent agent_;
    Rank rank_;
    uint64_t next_ = 1;
    std::set<std::string> told_;  ///< reasons that were said since somebody was taken last
    MonoNs linesSince_ = 0;
    int lines_ = 0;   ///< of the log, since then
    int unsaid_ = 0;  ///< would have been more
    std::map<uint64_t, Waiting> waiting_;
};

}  // namespace bulkhead::runtime
