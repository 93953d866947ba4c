// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/rank_links.h"

#include <utility>

#include "backend/common/codec.h"

namespace bulkhead::runtime {

void RankLinks::add(RankId rank, uint32_t incarnation, std::unique_ptr<ControlChannel> channel) {
    const Key key{rank, incarnation};
    ControlChannel& link = *channel;
    links_[key] = std::move(channel);
    link.start(
        [this, key](std::string bytes) {
            auto message = decode<protocol::ToCoordinator>(bytes);
            absl::Status s = message.status();
            if (s.ok() && !protocol::speaksForItself(*message, key.first.replica, key.second))
                s = absl::PermissionDeniedError("it speaks for another replica or incarnation");
            if (s.ok()) return received_(key.first, key.second, *std::move(message));
            links_.erase(key);
            closed_(key.first, key.second, s);
        },
        [this, key](const absl::Status& why) {
            links_.erase(key);
            closed_(key.first, key.second, why);
        });
}

bool RankLinks::has(RankId rank, uint32_t incarnation) const {
    return links_.contains({rank, incarnation});
}

void RankLinks::sendBytes(const Key& key, const std::string& bytes) {
    const auto it = links_.find(key);
    if (it == links_.end()) return;
    // A rank that does not read (stopped, or stuck) fills its queue: its beats are missing too, and
    // that is the evidence that counts.
    (void)it->second->send(bytes);
}

void RankLinks::send(RankId rank, uint32_t incarnation, const protocol::ToReplica& message) {
    sendBytes({rank, incarnation}, encode(message));
}

void RankLinks::sendReplica(int32_t replica, uint32_t incarnation,
                            const protocol::ToReplica& message) {
    const std::string bytes = encode(message);
    for (const auto& [key, link] : links_)
        if (key.first.replica == replica && key.second == incarnation) (void)link->send(bytes);
}

void RankLinks::closeAll() {
    links_.clear();
}

}  // namespace bulkhead::runtime
