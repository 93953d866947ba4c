// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/client/client.h"
#include "backend/model/run_state.h"
#include "backend/proto/convert.h"
#include "backend/proto/state_form.h"
#include "bulkhead/v1/service.pb.h"

/// Converts the daemon's messages into the values of client.h. Internal to backend/client.
namespace bulkhead::client {

inline Failure unreadable(std::string title, const absl::Status& status) {
    return {FailureCode::kVersion, std::move(title),
            "The answer cannot be read: " + std::string(status.message()) + ".",
            "Use a console and a daemon of the same version.", false};
}

/// A converter from a message to the described struct of the same fields.
template <class T>
auto as(const std::string& title) {
    return [title](const google::protobuf::Message& message) -> Result<T> {
        auto value = proto::fromMessage<T>(message);
        if (!value.ok()) return unreadable(title, value.status());
        return *std::move(value);
    };
}

template <class T, class Repeated>
Result<std::vector<T>> listOf(const std::string& title, const Repeated& messages) {
    std::vector<T> out;
    out.reserve(static_cast<size_t>(messages.size()));
    for (const auto& message : messages) {
        auto value = proto::fromMessage<T>(message);
        if (!value.ok()) return unreadable(title, value.status());
        out.push_back(*std::move(value));
    }
    return out;
}

inline Result<std::shared_ptr<model::RunState>> stateOf(const std::string& title,
                                                        const std::string& bytes,
                                                        v1::StateForm form) {
    auto state = proto::decodeState(bytes, form == v1::STATE_FORM_JSON);
    if (!state.ok()) return unreadable(title, state.status());
    return std::make_shared<model::RunState>(*std::move(state));
}

}  // namespace bulkhead::client
