// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/model/event.h"
#include "backend/model/job_spec.h"
#include "backend/model/json.h"
#include "backend/model/run_state.h"

/// toJson and fromJson of the values that hold half the model. A walk over every kind of event
/// takes the compiler seconds, so these are compiled once, in event_json.cpp; who writes or reads
/// one of them includes this instead of json.h.
namespace bulkhead::model::json_detail {

extern template Json write(const EventBody& value);
extern template void read(const Json& json, EventBody& value, Reading& reading);
extern template Json write(const JobSpec& value);
extern template void read(const Json& json, JobSpec& value, Reading& reading);
extern template Json write(const RunState& value);
extern template void read(const Json& json, RunState& value, Reading& reading);

}  // namespace bulkhead::model::json_detail
