// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "backend/common/unique_fd.h"
#include "backend/runtime/transport/address.h"
#include "backend/runtime/transport/control_channel.h"
#include "backend/runtime/transport/control_frame.h"
#include "backend/runtime/transport/tls_session.h"

namespace bulkhead::runtime {

/// A ControlChannel over a connected stream socket.
class SocketChannel final : public ControlChannel {
  public:
    SocketChannel(Reactor& reactor, UniqueFd fd, ChannelOptions options);
    ~SocketChannel() override;

    void start(Received received, Closed closed) override;
    absl::Status send(std::string_view message) override;
    void close() override;
    bool isOpen() const override { return fd_.valid(); }
    size_t queuedBytes() const override { return outboxBytes_ + wire_.size() - wireAt_; }
    std::string peer() const override { return peer_; }
    std::string here() const override { return localAddress(fd_.get()); }
    std::string identity() const override { return tls_ ? tls_->identity() : ""; }

  private:
    struct Timed {
        std::string bytes;
        MonoNs due = 0;
    };

    MonoNs dueNow(const std::deque<Timed>& queue) const;
    bool isCut() const;
    void onEvents(uint32_t events);
    void onFaultsChanged();
    void pauseWhileCut();
    void readSome();
    absl::Status flush();
    absl::Status fillWire();
    absl::Status writeWire(bool& blocked);
    absl::Status parse(std::string_view bytes);
    void deliver();
    void updateInterest();
    void armTimer(Reactor::TimerId& timer, MonoNs due, void (SocketChannel::*then)());
    void onFlushTimer();
    void onHandshakeTimer();
    void loseSoon(absl::Status why);
    void lose(const absl::Status& why);
    void shut();

    Reactor& reactor_;
    UniqueFd fd_;
    const ChannelOptions options_;
    const std::string peer_;
    uint64_t resetsSeen_ = 0;
    uint64_t subscription_ = 0;
    std::unique_ptr<TlsSession> tls_;  // null: in plain text
    ControlParser parser_;
    std::deque<Timed> inbox_;
    size_t inboxBytes_ = 0;
    std::deque<Timed> outbox_;
    size_t outboxBytes_ = 0;
    std::string wire_;  // bytes to send next, as the socket takes them
    size_t wireAt_ = 0;
    bool started_ = false;
    bool watched_ = false;
    uint32_t interest_ = 0;
    bool writeBlocked_ = false;
    std::optional<absl::Status> ended_;  // told once the inbox is empty
    Reactor::TimerId handshakeTimer_ = 0;
    Reactor::TimerId cutTimer_ = 0;
    Reactor::TimerId flushTimer_ = 0;
    Reactor::TimerId deliverTimer_ = 0;
    std::shared_ptr<Received> received_;
    Closed closed_;
    std::shared_ptr<char> life_ = std::make_shared<char>();  // posted tasks hold it weakly
};

}  // namespace bulkhead::runtime
