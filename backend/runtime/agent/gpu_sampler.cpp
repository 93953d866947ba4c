// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/gpu_sampler.h"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace bulkhead::runtime {
namespace nvml {

// As much of NVML's interface as is used, so that no header of NVIDIA's is needed to build.
using Device = void*;
using EventSet = void*;
constexpr int kOk = 0;
constexpr int kInsufficientSize = 7;
constexpr int kTemperatureOfGpu = 0;
constexpr int kClockOfMultiprocessors = 1;
constexpr int kClockOfMemory = 2;
constexpr int kUncorrected = 1;
constexpr int kSinceLoaded = 0;
constexpr unsigned long long kXidEvent = 0x8;
constexpr unsigned long long kNotAvailable = ~0ull;
constexpr unsigned kMostProcesses = 1024;

struct Utilization {
    unsigned gpu, memory;
};
struct Memory {
    unsigned long long total, free, used;
};
struct Process {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstance, computeInstance;
};
struct Event {
    Device device;
    unsigned long long type, data;
    unsigned gpuInstance, computeInstance;
};

}  // namespace nvml

/// Functions that this driver's library lacks are null.
struct GpuSampler::Library {
    using Device = nvml::Device;
    using EventSet = nvml::EventSet;
    struct Past {
        std::vector<uint64_t> newXids;
        std::optional<uint64_t> lastXid;
        std::optional<uint64_t> eccErrors;
    };

    explicit Library(void* object) {
        const auto find = [object](const char* name, auto& into) {
            into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(dlsym(object, name));
        };
        find("nvmlInit_v2", init);
        find("nvmlShutdown", shutdown);
        find("nvmlDeviceGetCount_v2", count);
        find("nvmlDeviceGetHandleByIndex_v2", handle);
        find("nvmlDeviceGetName", name);
        find("nvmlDeviceGetUUID", uuid);
        find("nvmlDeviceGetUtilizationRates", utilization);
        find("nvmlDeviceGetMemoryInfo", memory);
        find("nvmlDeviceGetTemperature", temperature);
        find("nvmlDeviceGetPowerUsage", power);
        find("nvmlDeviceGetClockInfo", clock);
        find("nvmlDeviceGetTotalEccErrors", ecc);
        find("nvmlDeviceGetComputeRunningProcesses_v3", processes);
        find("nvmlEventSetCreate", eventSetCreate);
        find("nvmlEventSetFree", eventSetFree);
        find("nvmlDeviceRegisterEvents", registerEvents);
        find("nvmlEventSetWait_v2", eventSetWait);
    }

    /// The reason for which there is nothing to ask here; empty when there is.
    std::string start() {
        if (init == nullptr || count == nullptr || handle == nullptr)
            return "the library found is not NVIDIA's management library";
        if (const int code = init(); code != nvml::kOk)
            return absl::StrCat("the driver does not answer (NVML code ", code, ")");
        started = true;
        unsigned gpus = 0;
        if (const int code = count(&gpus); code != nvml::kOk)
            return absl::StrCat("the driver does not say how many there are (NVML code ", code,
                                ")");
        if (gpus == 0) return "the driver has no GPU";
        if (eventSetCreate == nullptr || eventSetCreate(&events) != nvml::kOk) events = nullptr;
        for (unsigned i = 0; i < gpus; ++i) {
            Device device = nullptr;
            // One that is lost keeps its place: the indices are the driver's.
            devices.push_back(handle(i, &device) == nvml::kOk ? device : nullptr);
            past.emplace_back();
            if (device != nullptr && events != nullptr && registerEvents != nullptr)
                (void)registerEvents(device, nvml::kXidEvent, events);
        }
        return "";
    }
    ~Library() {
        if (events != nullptr && eventSetFree != nullptr) (void)eventSetFree(events);
        if (started && shutdown != nullptr) (void)shutdown();
    }

    /// Those that happened since the last call; does not wait.
    void collectXids() {
        if (events == nullptr || eventSetWait == nullptr) return;
        nvml::Event event{};
        for (int most = 64; most > 0 && eventSetWait(events, &event, 0) == nvml::kOk; --most)
            for (size_t i = 0; i < devices.size(); ++i)
                if (devices[i] == event.device && event.type == nvml::kXidEvent)
                    past[i].newXids.push_back(event.data);
    }

    GpuFigures read(size_t index) {
        GpuFigures figures;
        figures.sample.gpu = static_cast<uint32_t>(index);
        if (Device device = devices[index]; device != nullptr) {
            char text[96] = {};
            if (name != nullptr && name(device, text, sizeof text - 1) == nvml::kOk)
                figures.sample.name = text;
            readLoad(device, &figures.sample);
            readState(device, &figures.sample);
            readProcesses(device, &figures);
        }
        noteTroubles(past[index], &figures);
        return figures;
    }

    static void noteTroubles(Past& past, GpuFigures* figures) {
        model::GpuTroubled trouble;
        trouble.gpu = figures->sample.gpu;
        trouble.name = figures->sample.name;
        for (const uint64_t xid : std::exchange(past.newXids, {})) {
            past.lastXid = trouble.xid = xid;
            figures->troubles.push_back(trouble);
        }
        figures->sample.lastXid = past.lastXid;
        const std::optional<uint64_t> errors = figures->sample.eccUncorrected;
        if (errors && past.eccErrors && *errors > *past.eccErrors) {
            trouble.xid.reset();
            trouble.eccUncorrected = *errors - *past.eccErrors;
            figures->troubles.push_back(trouble);
        }
        if (errors) past.eccErrors = errors;
    }

    void readLoad(Device device, model::GpuSample* figures) const {
        nvml::Utilization load{};
        if (utilization != nullptr && utilization(device, &load) == nvml::kOk)
            figures->busyPercent = load.gpu;
        nvml::Memory bytes{};
        if (memory == nullptr || memory(device, &bytes) != nvml::kOk) return;
        figures->memoryTotalBytes = bytes.total;
        figures->memoryUsedBytes = bytes.used;
    }

    void readState(Device device, model::GpuSample* figures) const {
        unsigned value = 0;
        if (temperature != nullptr &&
            temperature(device, nvml::kTemperatureOfGpu, &value) == nvml::kOk)
            figures->temperatureCelsius = value;
        if (power != nullptr && power(device, &value) == nvml::kOk)
            figures->powerWatts = value / 1000.0;  // it tells milliwatts
        if (clock != nullptr && clock(device, nvml::kClockOfMultiprocessors, &value) == nvml::kOk)
            figures->clockMhz = value;
        if (clock != nullptr && clock(device, nvml::kClockOfMemory, &value) == nvml::kOk)
            figures->memoryClockMhz = value;
        unsigned long long errors = 0;
        if (ecc != nullptr &&
            ecc(device, nvml::kUncorrected, nvml::kSinceLoaded, &errors) == nvml::kOk)
            figures->eccUncorrected = errors;
    }

    void readProcesses(Device device, GpuFigures* figures) const {
        if (processes == nullptr) return;
        std::vector<nvml::Process> list(16);
        auto many = static_cast<unsigned>(list.size());
        int code = processes(device, &many, list.data());
        // Others may start in between.
        for (int tries = 0; code == nvml::kInsufficientSize && tries < 3; ++tries) {
            list.resize(std::min(many + 16, nvml::kMostProcesses));
            many = static_cast<unsigned>(list.size());
            code = processes(device, &many, list.data());
        }
        if (code != nvml::kOk) return;
        for (size_t i = 0; i < std::min<size_t>(many, list.size()); ++i) {
            std::optional<uint64_t>& bytes = figures->processes[static_cast<int32_t>(list[i].pid)];
            if (list[i].usedGpuMemory != nvml::kNotAvailable)
                bytes = bytes.value_or(0) + list[i].usedGpuMemory;
        }
    }

    int (*init)() = nullptr;
    int (*shutdown)() = nullptr;
    int (*count)(unsigned*) = nullptr;
    int (*handle)(unsigned, Device*) = nullptr;
    int (*name)(Device, char*, unsigned) = nullptr;
    int (*uuid)(Device, char*, unsigned) = nullptr;
    int (*utilization)(Device, nvml::Utilization*) = nullptr;
    int (*memory)(Device, nvml::Memory*) = nullptr;
    int (*temperature)(Device, int, unsigned*) = nullptr;
    int (*power)(Device, unsigned*) = nullptr;
    int (*clock)(Device, int, unsigned*) = nullptr;
    int (*ecc)(Device, int, int, unsigned long long*) = nullptr;
    int (*processes)(Device, unsigned*, nvml::Process*) = nullptr;
    int (*eventSetCreate)(EventSet*) = nullptr;
    int (*eventSetFree)(EventSet) = nullptr;
    int (*registerEvents)(Device, unsigned long long, EventSet) = nullptr;
    int (*eventSetWait)(EventSet, nvml::Event*, unsigned) = nullptr;

    bool started = false;
    EventSet events = nullptr;
    std::vector<Device> devices;
    std::vector<Past> past;  ///< by GPU
};

GpuSampler::GpuSampler(const char* library) {
    void* object = dlopen(library, RTLD_NOW | RTLD_LOCAL);  // kept: a driver is never unloaded
    if (object == nullptr) {
        whyNone_ = absl::StrCat("no NVIDIA driver here: there is no ", library);
        return;
    }
    library_ = std::make_unique<Library>(object);
    whyNone_ = library_->start();
    if (!whyNone_.empty()) library_.reset();
}

GpuSampler::~GpuSampler() = default;

std::vector<GpuFigures> GpuSampler::sample() {
    std::vector<GpuFigures> gpus;
    if (library_ == nullptr) return gpus;
    library_->collectXids();
    for (size_t i = 0; i < library_->devices.size(); ++i) gpus.push_back(library_->read(i));
    return gpus;
}

std::vector<GpuPlace> GpuSampler::places() const {
    std::vector<GpuPlace> places;
    if (library_ == nullptr || library_->uuid == nullptr) return places;
    for (size_t i = 0; i < library_->devices.size(); ++i) {
        char text[96] = {};
        nvml::Device device = library_->devices[i];
        if (device != nullptr && library_->uuid(device, text, sizeof text - 1) == nvml::kOk)
            places.push_back({static_cast<uint32_t>(i), text});
    }
    return places;
}

std::vector<GpuPlace> visibleGpus(const std::vector<GpuPlace>& all, const char* variable) {
    if (variable == nullptr) return all;
    std::vector<GpuPlace> visible;
    const std::vector<std::string> entries = absl::StrSplit(variable, ',');
    for (const std::string& entry : entries) {
        const auto found = std::ranges::find_if(all, [&](const GpuPlace& gpu) {
            return entry == absl::StrCat(gpu.gpu) ||
                   (entry.starts_with("GPU-") && gpu.uuid.starts_with(entry));
        });
        if (found == all.end()) break;
        visible.push_back(*found);
    }
    return visible;
}

absl::StatusOr<std::vector<GpuPlace>> chooseGpus(const std::vector<GpuPlace>& all,
                                                 const std::string& wanted) {
    if (wanted == "all") return all;
    std::vector<GpuPlace> chosen;
    if (wanted == "none") return chosen;
    const std::vector<std::string> part = absl::StrSplit(wanted, '/');
    size_t which = 0, parts = 0;
    if (part.size() == 2 && absl::SimpleAtoi(part[0], &which) &&
        absl::SimpleAtoi(part[1], &parts) && which >= 1 && which <= parts) {
        for (size_t i = which - 1; i < all.size(); i += parts) chosen.push_back(all[i]);
        return chosen;
    }
    const std::vector<std::string> entries = absl::StrSplit(wanted, ',');
    for (const std::string& entry : entries) {
        const auto is = [&](const GpuPlace& gpu) {
            return entry == gpu.uuid || entry == absl::StrCat(gpu.gpu);
        };
        const auto found = std::find_if(all.begin(), all.end(), is);
        if (found == all.end())
            return absl::InvalidArgumentError(absl::StrCat(
                "no GPU of this node is \"", entry, "\"; it has ",
                all.empty() ? "none"
                            : absl::StrJoin(all, ", ",
                                            [](std::string* out, const GpuPlace& gpu) {
                                                absl::StrAppend(out, gpu.gpu, " (", gpu.uuid, ")");
                                            }),
                "; expected all, none, indices or UUIDs with commas between, or i/n"));
        if (std::find(chosen.begin(), chosen.end(), *found) == chosen.end())
            chosen.push_back(*found);
    }
    return chosen;
}

GpuSampler::Share GpuSampler::shareOf(int32_t pid, const std::vector<GpuFigures>& gpus) {
    Share share;
    for (const GpuFigures& gpu : gpus) {
        const auto it = gpu.processes.find(pid);
        if (it == gpu.processes.end()) continue;
        share.gpus.push_back(gpu.sample.gpu);
        if (gpu.sample.busyPercent)
            share.busyPercent = std::max(share.busyPercent.value_or(0), *gpu.sample.busyPercent);
        if (it->second) share.memoryBytes = share.memoryBytes.value_or(0) + *it->second;
    }
    return share;
}

}  // namespace bulkhead::runtime
