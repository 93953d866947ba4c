// SPDX-License-Identifier: Apache-2.0
#include "backend/model/event_json.h"

namespace bulkhead::model::json_detail {

template Json write(const EventBody& value);
template void read(const Json& json, EventBody& value, Reading& reading);
template Json write(const JobSpec& value);
template void read(const Json& json, JobSpec& value, Reading& reading);
template Json write(const RunState& value);
template void read(const Json& json, RunState& value, Reading& reading);

}  // namespace bulkhead::model::json_detail
