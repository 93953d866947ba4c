// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "backend/common/secret.h"
#include "backend/common/unique_fd.h"

namespace bulkhead::runtime {

/// Secrets that a rank is given when it is started, for this incarnation alone.
struct RankSecrets {
    Secret rank;     ///< key of its rankIdentity()
    Secret replica;  ///< shared by all ranks of its replica, and nobody else
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("replica", self.replica);
    }
};

/// The descriptor by which a process inherits its secrets, and the environment variable that says
/// that it did. Neither arguments nor environment show a secret: other users may read those.
constexpr int kSecretsFd = 4;
constexpr const char* kSecretsVariable = "BULKHEAD_SECRETS";

/// A pipe with the secrets in it, to hand down. Unavailable when the system gives none.
absl::StatusOr<UniqueFd> secretsPipe(const RankSecrets& secrets);

/// Reads what the process has inherited and closes the descriptor; children do not inherit it.
/// InvalidArgument when there is nothing, or it was read before. Before other threads use the
/// environment.
absl::StatusOr<RankSecrets> inheritSecrets();

}  // namespace bulkhead::runtime
