// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <variant>

/// A failure in words that an operator can act on. No raw gRPC text ever reaches a screen: the
/// one file failure.cpp turns every grpc::Status into this.
namespace bulkhead::client {

enum class FailureCode {
    kUnreachable,  ///< nobody listens there, or the connection was lost
    kTimeout,      ///< no answer in time; a mutating call may or may not have happened
    kToken,        ///< missing, unreadable or wrong
    kVersion,      ///< the two ends do not speak the same API
    kNotFound,
    kInvalid,  ///< the request itself is wrong: a bad job file, an unknown replica
    kStale,    ///< the job changed since the caller looked; cause says what changed
    kRefused,  ///< understood, and not allowed now
    kCancelled,
    kServer,  ///< the daemon failed
};

struct Failure {
    FailureCode code = FailureCode::kServer;
    std::string title;       ///< the operation that failed, a few words
    std::string cause;       ///< the reason, one sentence
    std::string remedy;      ///< the remedy, one sentence
    bool retryable = false;  ///< the same call may succeed later, unchanged
    bool operator==(const Failure&) const = default;
};

/// A failure found on this side, from a message that reads "cause; remedy".
Failure localFailure(FailureCode code, std::string title, std::string message);

/// A value or the reason there is none.
template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value) : held_(std::in_place_index<0>, std::move(value)) {}
    Result(Failure failure) : held_(std::in_place_index<1>, std::move(failure)) {}
    bool ok() const { return held_.index() == 0; }
    /// Precondition: ok().
    const T& value() const& { return std::get<0>(held_); }
    T&& value() && { return std::get<0>(std::move(held_)); }
    /// Precondition: !ok().
    const Failure& failure() const { return std::get<1>(held_); }

  private:
    std::variant<T, Failure> held_;
};

struct Done {};

}  // namespace bulkhead::client
