// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>

#include "absl/status/status.h"
#include "backend/common/types.h"
#include "backend/runtime/protocol/channels.h"
#include "backend/runtime/transport/control_channel.h"

namespace bulkhead::runtime {

/// The connections of one job's ranks. A rank may come with a new incarnation while the old one's
/// connection still lives, so both name a link. Thread: the reactor's.
class RankLinks {
  public:
    using Received = std::function<void(RankId, uint32_t incarnation, protocol::ToCoordinator)>;
    /// After the link is forgotten.
    using Closed = std::function<void(RankId, uint32_t incarnation, const absl::Status& why)>;

    RankLinks(Received received, Closed closed)
        : received_(std::move(received)), closed_(std::move(closed)) {}

    /// A second connection of the same rank and incarnation replaces the first.
    void add(RankId rank, uint32_t incarnation, std::unique_ptr<ControlChannel> channel);
    bool has(RankId rank, uint32_t incarnation) const;

    /// Silently nothing when the rank is not connected: the machine hears of that otherwise.
    void send(RankId rank, uint32_t incarnation, const protocol::ToReplica& message);
    void sendReplica(int32_t replica, uint32_t incarnation, const protocol::ToReplica& message);
    void closeAll();

  private:
    using Key = std::pair<RankId, uint32_t>;
    void sendBytes(const Key& key, const std::string& bytes);

    Received received_;
    Closed closed_;
    std::map<Key, std::unique_ptr<ControlChannel>> links_;
};

}  // namespace bulkhead::runtime
