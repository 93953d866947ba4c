// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "backend/runtime/simulation/control_network.h"
#include "backend/runtime/simulation/event_queue.h"
#include "backend/runtime/transport/control_channel.h"

namespace bulkhead::simulation {

/// Calls a function on the thread of one process, when that runs next; never from inside itself.
using Executor = std::function<void(std::function<void()>)>;

class MemoryChannel;

/// Joins processes by streams of real bytes, over the links of a ControlNetwork. A stream keeps its
/// order; what is lost on it leaves a hole that nothing passes until it is reset.
class MemoryNetwork {
  public:
    using Ends = std::pair<std::unique_ptr<MemoryChannel>, std::unique_ptr<MemoryChannel>>;
    MemoryNetwork(EventQueue& events, const MonoNs& now, ControlNetwork& links)
        : events_(events), now_(now), links_(links) {}

    /// `there` and `back` are the links that the first and the second end send over.
    Ends join(Executor first, Executor second, size_t there, size_t back);

  private:
    friend class MemoryChannel;
    EventQueue& events_;
    const MonoNs& now_;
    ControlNetwork& links_;
};

/// One end. Destroying it tells the other, as the kernel does for a process that dies.
class MemoryChannel final : public runtime::ControlChannel {
  public:
    struct Wire {
        MemoryChannel* ends[2] = {nullptr, nullptr};
        size_t links[2] = {0, 0};
        bool hole[2] = {false, false};  ///< something that this end sent is lost
        size_t flying[2] = {0, 0};      ///< bytes sent by this end that have not arrived
        std::string identity;           ///< of whoever connected; nobody lies here
    };
    MemoryChannel(MemoryNetwork& network, Executor run, std::shared_ptr<Wire> wire, int side);
    ~MemoryChannel() override { close(); }

    void start(Received received, Closed closed) override;
    absl::Status send(std::string_view message) override;
    void close() override;
    bool isOpen() const override { return open_; }
    size_t queuedBytes() const override { return wire_->flying[side_]; }
    /// Looks like a Unix socket: ranks and agents count as being on this machine.
    std::string peer() const override { return "unix:memory"; }
    std::string here() const override { return "unix:memory"; }

    std::string identity() const override { return wire_->identity; }

    const std::shared_ptr<Wire>& wire() const { return wire_; }
    /// The network resets the connection: both ends hear of it.
    void reset();
    /// The machine is without power: the other end hears of it only when keepalive gives up.
    void vanish();
    /// The network resets this end alone: half of the connection stays open, as after vanish().
    void drop();

  private:
    struct Item {
        std::string bytes;
        bool end = false;
    };
    void carry(std::string bytes, bool end);
    void detach();
    void endLater(MonoNs at);
    void arrived(std::string bytes, bool end);
    void drain();

    MemoryNetwork& network_;
    const Executor run_;
    const std::shared_ptr<Wire> wire_;
    const int side_;
    bool open_ = true;
    std::deque<Item> inbox_;
    std::shared_ptr<Received> received_;
    Closed closed_;
    std::shared_ptr<char> life_ = std::make_shared<char>();
};

/// `done`, with a channel that says whose it is.
runtime::ConnectedChannel introduced(const std::optional<runtime::Credential>& credential,
                                     runtime::ConnectedChannel done);

}  // namespace bulkhead::simulation
