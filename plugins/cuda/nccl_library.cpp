// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/nccl_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace bulkhead::cuda {
namespace {

constexpr char kFile[] = "libnccl.so.2";

absl::StatusOr<NcclLibrary> load() {
    void* object = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
    if (object == nullptr)
        return absl::UnavailableError(
            absl::StrCat("a replica of several GPUs needs NCCL: ", dlerror(),
                         "; install NCCL 2.28, or put its "
                         "folder into LD_LIBRARY_PATH, or use one shard per replica"));
    NcclLibrary library;
    const char* lacking = nullptr;
    const auto find = [&](const char* name, auto& into) {
        into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(dlsym(object, name));
        if (into == nullptr) lacking = name;
    };
    find("ncclGetUniqueId", library.getUniqueId);
    find("ncclCommInitRankConfig", library.commInitRankConfig);
    find("ncclCommFinalize", library.commFinalize);
    find("ncclCommDestroy", library.commDestroy);
    find("ncclCommAbort", library.commAbort);
    find("ncclCommGetAsyncError", library.commGetAsyncError);
    find("ncclGetErrorString", library.getErrorString);
    find("ncclGetLastError", library.getLastError);
    find("ncclAllGather", library.allGather);
    find("ncclSend", library.send);
    find("ncclRecv", library.recv);
    find("ncclGroupStart", library.groupStart);
    find("ncclGroupEnd", library.groupEnd);
    find("ncclGetVersion", library.getVersion);
    if (lacking != nullptr)
        return absl::FailedPreconditionError(
            absl::StrCat(kFile, " lacks ", lacking, "; install NCCL 2.28 or newer"));
    return library;
}

}  // namespace

absl::StatusOr<const NcclLibrary*> ncclLibrary() {
    static const absl::StatusOr<NcclLibrary> library = load();
    if (!library.ok()) return library.status();
    return &*library;
}

}  // namespace bulkhead::cuda
