// SPDX-License-Identifier: Apache-2.0
#include "backend/proto/state_form.h"

#include <cinttypes>
#include <cstdio>

#include "backend/common/fingerprint.h"
#include "backend/model/event_json.h"

namespace bulkhead::proto {
const std::string& stateFingerprint() {
    static const std::string digest = [] {
        char text[17];
        std::snprintf(text, sizeof text, "%016" PRIx64, shapeHash<model::RunState>());
        return std::string(text);
    }();
    return digest;
}

std::string encodeState(const model::RunState& state, bool json) {
    return json ? model::toJsonText(state) : model::encodeKeyframe(state);
}

absl::StatusOr<model::RunState> decodeState(std::string_view bytes, bool json) {
    if (!json) return model::decodeKeyframe(bytes);
    absl::StatusOr<model::RunState> state = model::fromJsonText<model::RunState>(bytes);
    if (state.ok()) model::repair(*state);
    return state;
}

}  // namespace bulkhead::proto
