// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/channels.h"

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

uint64_t protocolVersion() {
    static const uint64_t version = shapeHash<Everything>() + kMeaning;
    return version;
}

}  // namespace bulkhead::protocol
