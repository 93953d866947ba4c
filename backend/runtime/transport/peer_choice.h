// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace bulkhead::runtime {

/// The transport between two peers; mirrors the job's `transport` key.
enum class PeerChoice {
    kAuto,  ///< shared memory where both `host` strings are equal, TCP elsewhere
    kShm,
    kTcp,
};

/// Both ends must come to the same answer, so it depends on nothing else.
inline bool useSharedMemory(PeerChoice choice, std::string_view hostA, std::string_view hostB) {
    return choice == PeerChoice::kShm || (choice == PeerChoice::kAuto && hostA == hostB);
}

}  // namespace bulkhead::runtime
