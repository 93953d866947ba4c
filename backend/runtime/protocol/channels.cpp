// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/channels.h"

#include <concepts>

#include "backend/common/fingerprint.h"

namespace bulkhead::protocol {
namespace {

/// Raise it when a message comes to mean something else and its fields stay the same.
constexpr uint64_t kMeaning = 8;

struct Everything {
    ToCoordinator up;
    ToReplica down;
    ToLeader inside;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("up", self.up);
        visit("down", self.down);
        visit("inside", self.inside);
    }
};

}  // namespace

bool speaksForItself(const ToCoordinator& message, int32_t replica, uint32_t incarnation) {
    return std::visit(
        [&]<class M>(const M& m) {
            if constexpr (std::same_as<M, Evidence>)
                return true;
            else if constexpr (requires { m.endpoint; })
                return m.endpoint.rank.replica == replica && m.endpoint.incarnation == incarnation;
            else if constexpr (requires {
                                   m.rank.replica;
                                   m.incarnation;
                               })
                return m.rank.replica == replica && m.incarnation == incarnation;
            else if constexpr (requires { m.rank.replica; })
                return m.rank.replica == replica;
            else if constexpr (requires {
                                   m.replica;
                                   m.incarnation;
                               })
                return m.replica == replica && m.incarnation == incarnation;
            else
                return std::same_as<M, ModelDescribed>;
        },
        message);
}

uint64_t protocolVersion() {
    static const uint64_t version = shapeHash<Everything>() + kMeaning;
    return version;
}

}  // namespace bulkhead::protocol
