// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/threads.h"
#include "bulkhead/data_plane.h"
#include "bulkhead/workload.h"

/// Loads workload and device plugins and turns their C status codes into absl::Status.
namespace bulkhead::runtime {

/// Receives what plugins say. One per process is usual; must outlive everything opened with it.
/// Thread: any.
class PluginLog {
  public:
    PluginLog();
    const bulkhead_host* host() const { return &host_; }

    /// Turns a plugin's answer into a Status: OK for BULKHEAD_OK, else the code's kind with `what`
    /// and the plugin's last line, which is consumed.
    [[nodiscard]] absl::Status check(bulkhead_status status, std::string_view what);

  private:
    Mutex mutex_;
    std::string lastError_ ABSL_GUARDED_BY(mutex_);
    bulkhead_host host_;
};

/// `name` is a path of a .so, or a plugin's name, looked up as bulkhead_KIND_NAME.so and NAME.so in
/// `folders` in order. The object stays loaded for ever: threads and handlers of a plugin may
/// outlive every pointer to it. NotFound lists where it was looked for; FailedPrecondition when the
/// file is no plugin, or one of another ABI version, or with a smaller table than this build needs.
[[nodiscard]] absl::StatusOr<const bulkhead_workload_api*> loadWorkload(
    const std::string& name, const std::vector<std::string>& folders);
[[nodiscard]] absl::StatusOr<const bulkhead_device_api*> loadDevice(
    const std::string& name, const std::vector<std::string>& folders);

/// The exchange of that device plugin; null: it has none. Errors as above.
[[nodiscard]] absl::StatusOr<const bulkhead_data_plane_api*> loadDataPlane(
    const std::string& name, const std::vector<std::string>& folders);

/// Folders of plugins beside a program: BULKHEAD_PLUGIN_PATH (colon separated) if set, then
/// ../lib/bulkhead, ../plugins and . from the program's own folder.
std::vector<std::string> pluginFolders();

}  // namespace bulkhead::runtime
