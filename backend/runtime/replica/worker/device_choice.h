// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/runtime/replica/plugin_host.h"
#include "bulkhead/workload.h"

namespace bulkhead::runtime {

struct ChosenDevice {
    const bulkhead_device_api* api = nullptr;
    bulkhead_device* device = nullptr;                  ///< opened; the caller closes it
    const bulkhead_data_plane_api* planeApi = nullptr;  ///< null: it does not exchange
    std::string instead;  ///< of what "auto" asked for: why the CPU took over; empty: it did not
};

/// Opens what the job's `device` names. "cpu": the built-in one. "auto": a GPU if the CUDA plugin
/// is there, its driver answers and the workload computes on it, else the CPU; `instead` says why,
/// in one line. Anything else is a plugin's name or path, and its failure is the answer.
/// InvalidArgument when the workload does not compute on the device that was asked for.
[[nodiscard]] absl::StatusOr<ChosenDevice> chooseDevice(const std::string& wanted,
                                                        const bulkhead_workload_api& workload,
                                                        PluginLog& log,
                                                        const std::vector<std::string>& folders);

}  // namespace bulkhead::runtime
