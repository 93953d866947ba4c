// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/embed/device_gradient.h"

#include <dlfcn.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/model/program_files.h"

namespace bulkhead::runtime {
namespace {

// The agent chooses the accelerator that a rank sees, by the driver's own environment variables.
constexpr int32_t kDeviceIndex = 0;

/// The program is an interpreter, say: plugins are where the agent says, or beside this library.
std::vector<std::string> foldersOfPlugins() {
    Dl_info here{};
    dladdr(reinterpret_cast<const void*>(&foldersOfPlugins), &here);
    return model::pluginFolders(here.dli_fname != nullptr ? here.dli_fname : "");
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceGradient>> DeviceGradient::create(const std::string& device,
                                                                       uint64_t floats) {
    std::unique_ptr<DeviceGradient> made(new DeviceGradient);
    if (absl::Status s = made->open(device); !s.ok()) return s;
    for (std::span<float>* memory : {&made->gradient_, &made->reduced_}) {
        absl::StatusOr<std::span<float>> taken = made->take(BULKHEAD_MEMORY_PEER, floats);
        if (!taken.ok()) return taken.status();
        *memory = *taken;
    }
    auto copier = DeviceCopy::create(made->device_);
    if (!copier.ok()) return copier.status();
    made->copier_ = *std::move(copier);
    return made;
}

absl::Status DeviceGradient::open(const std::string& device) {
    const std::vector<std::string> folders = foldersOfPlugins();
    const auto api = loadDevice(device, folders);
    if (!api.ok()) return api.status();
    device_.api = *api;
    const auto plane = loadDataPlane(device, folders);
    if (!plane.ok()) return plane.status();
    if (*plane == nullptr)
        return absl::NotFoundError(absl::StrCat("device ", device, " exchanges nothing itself"));
    absl::Status s = log_.check((*api)->open(log_.host(), kDeviceIndex, &device_.device),
                                absl::StrCat("device ", device));
    if (s.ok()) s = log_.check((*plane)->open(device_.device, 0, &plane_), "exchange");
    if (s.ok()) planeApi_ = *plane;
    return s;
}

absl::StatusOr<std::span<float>> DeviceGradient::take(bulkhead_memory kind, uint64_t floats) {
    const auto memory = device_.take(kind, floats * sizeof(float), "room for a gradient");
    if (!memory.ok()) return memory.status();
    return std::span(static_cast<float*>(*memory), floats);
}

absl::Status DeviceGradient::copy(void* to, const void* from, size_t bytes) {
    return device_.copy(to, from, bytes, "copy");
}

absl::StatusOr<float*> DeviceGradient::there(std::span<const float> sum) {
    if (sum.data() == reduced_.data()) return reduced_.data();
    if (replayed_.empty()) {
        absl::StatusOr<std::span<float>> taken = take(BULKHEAD_MEMORY_DEVICE, sum.size());
        if (!taken.ok()) return taken.status();
        replayed_ = *taken;
    }
    if (absl::Status s = copy(replayed_.data(), sum.data(), sum.size_bytes()); !s.ok()) return s;
    return replayed_.data();
}

void DeviceGradient::readSum(std::span<float> to, DeviceCopy::Done done) {
    copier_->begin(reduced_, to, std::move(done));
}

void DeviceGradient::close() {
    copier_.reset();
    if (plane_ != nullptr) planeApi_->close(std::exchange(plane_, nullptr));
}

}  // namespace bulkhead::runtime
