// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/plugin_host.h"

#include <dlfcn.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backend/model/program_files.h"

namespace bulkhead::runtime {
namespace {

namespace fs = std::filesystem;

absl::StatusCode codeOf(bulkhead_status status) {
    switch (status) {
        case BULKHEAD_OK:
            return absl::StatusCode::kOk;
        case BULKHEAD_ABORTED:
            return absl::StatusCode::kAborted;
        case BULKHEAD_INVALID:
            return absl::StatusCode::kInvalidArgument;
        case BULKHEAD_OUT_OF_MEMORY:
            return absl::StatusCode::kResourceExhausted;
        case BULKHEAD_UNAVAILABLE:
            return absl::StatusCode::kUnavailable;
        case BULKHEAD_TIMED_OUT:
            return absl::StatusCode::kDeadlineExceeded;
        case BULKHEAD_INTERNAL:
            break;
    }
    return absl::StatusCode::kInternal;
}

absl::StatusOr<std::string> locate(const std::string& kind, const std::string& name,
                                   const std::vector<std::string>& folders) {
    if (std::string path = model::pluginFile(kind, name, folders); !path.empty()) return path;
    if (name.find('/') != std::string::npos || name.ends_with(".so"))
        return absl::NotFoundError(
            absl::StrCat(kind, " plugin ", name, ": no such file; give the path of a .so"));
    return absl::NotFoundError(absl::StrCat("unknown ", kind, " \"", name, "\": no bulkhead_", kind,
                                            "_", name, ".so in ", absl::StrJoin(folders, ", "),
                                            "; check the job's `", kind,
                                            "` or set BULKHEAD_PLUGIN_PATH"));
}

absl::StatusOr<std::pair<std::string, void*>> open(const std::string& kind, const std::string& name,
                                                   const std::vector<std::string>& folders) {
    absl::StatusOr<std::string> path = locate(kind, name, folders);
    if (!path.ok()) return path.status();
    // Never closed: what a plugin registered with libraries below it cannot be taken back.
    void* object = dlopen(path->c_str(), RTLD_NOW | RTLD_LOCAL);
    if (object == nullptr)
        return absl::FailedPreconditionError(
            absl::StrCat(*path, " cannot be loaded: ", dlerror(), "; rebuild it for this machine"));
    return std::pair(*path, object);
}

/// Null when the object does not export `symbol`.
template <class Api>
absl::StatusOr<const Api*> tableOf(const std::pair<std::string, void*>& object,
                                   const std::string& kind, const char* symbol, uint32_t version) {
    const auto& [path, handle] = object;
    using GetApi = const Api* (*)(uint32_t);
    const auto get = reinterpret_cast<GetApi>(dlsym(handle, symbol));
    if (get == nullptr) return nullptr;
    const Api* api = get(version);
    if (api == nullptr || api->abi_version != version)
        return absl::FailedPreconditionError(
            absl::StrCat(path, " does not serve ", kind, " ABI ", version,
                         " of this program; rebuild it against these headers"));
    if (api->struct_size < sizeof(Api))
        return absl::FailedPreconditionError(
            absl::StrCat(path, " has a table of ", api->struct_size, " bytes, this program needs ",
                         sizeof(Api), "; rebuild it against these headers"));
    return api;
}

template <class Api>
absl::StatusOr<const Api*> load(const std::string& kind, const char* symbol, uint32_t version,
                                const std::string& name, const std::vector<std::string>& folders) {
    const auto object = open(kind, name, folders);
    if (!object.ok()) return object.status();
    absl::StatusOr<const Api*> api = tableOf<Api>(*object, kind, symbol, version);
    if (api.ok() && *api == nullptr)
        return absl::FailedPreconditionError(
            absl::StrCat(object->first, " is no ", kind, " plugin: it does not export ", symbol));
    return api;
}

}  // namespace

PluginLog::PluginLog() {
    host_.context = this;
    host_.log = [](void*, int32_t severity, const char* line) {
        const auto level = severity >= 2   ? spdlog::level::err
                           : severity == 1 ? spdlog::level::warn
                                           : spdlog::level::info;
        spdlog::log(level, "{}", line);
    };
    host_.error = [](void* context, const char* line) {
        auto* self = static_cast<PluginLog*>(context);
        const MutexLock lock(self->mutex_);
        self->lastError_ = line;
    };
}

absl::Status PluginLog::check(bulkhead_status status, std::string_view what) {
    if (status == BULKHEAD_OK) return absl::OkStatus();
    const MutexLock lock(mutex_);
    std::string why = std::exchange(lastError_, {});
    return absl::Status(
        codeOf(status),
        absl::StrCat(std::string(what), ": ", why.empty() ? "the plugin gave no reason" : why));
}

absl::StatusOr<const bulkhead_workload_api*> loadWorkload(const std::string& name,
                                                          const std::vector<std::string>& folders) {
    return load<bulkhead_workload_api>("workload", BULKHEAD_WORKLOAD_GET_API, BULKHEAD_WORKLOAD_ABI,
                                       name, folders);
}

absl::StatusOr<const bulkhead_device_api*> loadDevice(const std::string& name,
                                                      const std::vector<std::string>& folders) {
    return load<bulkhead_device_api>("device", BULKHEAD_DEVICE_GET_API, BULKHEAD_DEVICE_ABI, name,
                                     folders);
}

absl::StatusOr<const bulkhead_data_plane_api*> loadDataPlane(
    const std::string& name, const std::vector<std::string>& folders) {
    const auto object = open("device", name, folders);
    if (!object.ok()) return object.status();
    return tableOf<bulkhead_data_plane_api>(*object, "data plane", BULKHEAD_DATA_PLANE_GET_API,
                                            BULKHEAD_DATA_PLANE_ABI);
}

std::vector<std::string> pluginFolders() {
    std::error_code error;
    return model::pluginFolders(fs::read_symlink("/proc/self/exe", error));
}

}  // namespace bulkhead::runtime
