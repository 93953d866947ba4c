// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/rank_secrets.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "backend/common/codec.h"

namespace bulkhead::runtime {

absl::StatusOr<UniqueFd> secretsPipe(const RankSecrets& secrets) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        return absl::UnavailableError(
            absl::StrCat("a rank cannot be given its secrets: ", std::strerror(errno)));
    UniqueFd out(ends[0]);
    const UniqueFd in(ends[1]);
    const std::string bytes = encode(secrets);
    // Far less than the room that a pipe has.
    if (::write(in.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
        return absl::UnavailableError(
            absl::StrCat("a rank cannot be given its secrets: ", std::strerror(errno)));
    return out;
}

absl::StatusOr<RankSecrets> inheritSecrets() {
    constexpr const char* kRemedy =
        "; agents start this program: bulkheadctl up -- PROGRAM ARGUMENTS";
    if (std::getenv(kSecretsVariable) == nullptr)
        return absl::InvalidArgumentError(
            absl::StrCat(kSecretsVariable, " is not set: no agent has started this rank", kRemedy));
    ::unsetenv(kSecretsVariable);
    const UniqueFd in(kSecretsFd);
    std::string bytes(encode(RankSecrets{}).size() + 1, '\0');
    size_t size = 0;
    while (size < bytes.size()) {
        const ssize_t n = ::read(in.get(), bytes.data() + size, bytes.size() - size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        size += static_cast<size_t>(n);
    }
    bytes.resize(size);
    auto secrets = decode<RankSecrets>(bytes);
    if (!secrets.ok())
        return absl::InvalidArgumentError(
            absl::StrCat("descriptor ", kSecretsFd,
                         " holds no secrets of a rank: ", secrets.status().message(), kRemedy));
    return secrets;
}

}  // namespace bulkhead::runtime
