// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/worker/device_choice.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/collectives/cpu_device.h"
#include "backend/runtime/protocol/messages.h"

namespace bulkhead::runtime {
namespace {

// The agent chooses the accelerator that a rank sees, by the driver's own environment variables.
constexpr int32_t kDeviceIndex = 0;

absl::StatusOr<ChosenDevice> open(const std::string& name, const bulkhead_device_api* api,
                                  const bulkhead_workload_api& workload, PluginLog& log) {
    // Asked first: a device that is opened takes memory, and seconds.
    if (workload.computes_on(api->name) == 0)
        return absl::InvalidArgumentError(absl::StrCat("workload ", workload.name,
                                                       " does not compute on device ", api->name,
                                                       "; use device \"auto\" or \"cpu\""));
    ChosenDevice chosen;
    chosen.api = api;
    if (absl::Status s = log.check(api->open(log.host(), kDeviceIndex, &chosen.device),
                                   absl::StrCat("device ", name));
        !s.ok())
        return s;
    return chosen;
}

absl::StatusOr<ChosenDevice> openPlugin(const std::string& name,
                                        const bulkhead_workload_api& workload, PluginLog& log,
                                        const std::vector<std::string>& folders) {
    const char* why = std::getenv(protocol::rankVariable("no-gpu").c_str());
    if (why != nullptr && name == "cuda")
        return absl::FailedPreconditionError(absl::StrCat("device ", name, ": ", why));
    absl::StatusOr<const bulkhead_device_api*> api = loadDevice(name, folders);
    if (!api.ok()) return api.status();
    const auto plane = loadDataPlane(name, folders);
    if (!plane.ok()) return plane.status();
    absl::StatusOr<ChosenDevice> chosen = open(name, *api, workload, log);
    if (chosen.ok()) chosen->planeApi = *plane;
    return chosen;
}

absl::StatusOr<ChosenDevice> openCpu(const bulkhead_workload_api& workload, PluginLog& log) {
    const bulkhead_device_api* api = cpuDeviceApi(BULKHEAD_DEVICE_ABI);
    if (api == nullptr)
        return absl::InternalError("the built-in CPU device does not serve this ABI version");
    return open("cpu", api, workload, log);
}

}  // namespace

absl::StatusOr<ChosenDevice> chooseDevice(const std::string& wanted,
                                          const bulkhead_workload_api& workload, PluginLog& log,
                                          const std::vector<std::string>& folders) {
    if (wanted == "cpu") return openCpu(workload, log);
    if (wanted != "auto") return openPlugin(wanted, workload, log, folders);
    absl::StatusOr<ChosenDevice> gpu = openPlugin("cuda", workload, log, folders);
    if (gpu.ok()) return gpu;
    absl::StatusOr<ChosenDevice> cpu = openCpu(workload, log);
    if (!cpu.ok()) return cpu.status();
    cpu->instead = absl::IsNotFound(gpu.status()) ? "this build has no CUDA device"
                                                  : std::string(gpu.status().message());
    return cpu;
}

}  // namespace bulkhead::runtime
