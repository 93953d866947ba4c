// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstring>

#include "backend/interchange/safetensors.h"
#include "backend/interchange/transfer.h"
#include "tests/interchange/memory_files.h"
#include "tests/interchange/sample.h"
#include "tests/support/fuzz/targets.h"

/// The readers of files that come from elsewhere: tensor tables, headers of safetensors, and a
/// whole import.
namespace bulkhead::interchange {
namespace {

std::string fileOf(std::string_view header, std::string_view data) {
    const uint64_t length = header.size();
    std::string file(reinterpret_cast<const char*>(&length), sizeof length);
    return file.append(header).append(data);
}

/// All of an exported file: its header and its data.
std::string exported(bool optimizer) {
    const std::string folder = "/tmp/bulkhead_fuzz_" + std::to_string(::getpid());
    const std::string manifest = writeSample(diskFiles(), folder);
    ExportOrder order;
    order.manifest = manifest;
    order.out = folder + "/f.safetensors";
    order.optimizer = optimizer;
    order.replace = true;
    (void)exportCheckpoint(diskFiles(), order);
    std::string bytes = *diskFiles().read(order.out);
    (void)diskFiles().removeFolder(folder);
    return bytes;
}

bool tensorTable(std::string_view bytes) {
    return runtime::parseTensorTable("/t", std::string(bytes)).ok();
}

bool header(std::string_view bytes) {
    return parseSafetensorsHeader(bytes, 8 + bytes.size() + 24, "/f").ok();
}

bool importOf(std::string bytes, const std::string& like) {
    MemoryFiles files;
    if (!like.empty()) writeSample(files, "/like");
    files.content["/f"] = std::move(bytes);
    ImportOrder order;
    order.file = "/f";
    order.like = like;
    order.out = "/out";
    return importCheckpoint(files, order).ok();
}

bool wholeFile(std::string_view bytes) {
    return importOf(std::string(bytes), "");
}

/// A header over data that stays: most changed files would end at the first length.
bool overItsData(std::string_view bytes) {
    static const std::string kFile = exported(true);
    uint64_t length = 0;
    std::memcpy(&length, kFile.data(), sizeof length);
    return importOf(fileOf(bytes, std::string_view(kFile).substr(8 + length)), "");
}

bool overItsDataLike(std::string_view bytes) {
    static const std::string kFile = exported(false);
    uint64_t length = 0;
    std::memcpy(&length, kFile.data(), sizeof length);
    return importOf(fileOf(bytes, std::string_view(kFile).substr(8 + length)),
                    "/like/manifest.json");
}

std::string headerOf(const std::string& file) {
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    return file.substr(8, length);
}

}  // namespace
}  // namespace bulkhead::interchange

namespace bulkhead::fuzz {

using namespace interchange;

const std::vector<Target>& targets() {
    static const std::vector<Target> kTargets = {
        {"tensor_table",
         tensorTable,
         {runtime::tensorTableText(sampleTable(0)), runtime::tensorTableText(sampleTable(1))}},
        {"safetensors_header",
         header,
         {R"({"__metadata__":{"a":"b"},"v":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"w":{"dtype":"U8","shape":[8],"data_offsets":[16,24]}})"}},
        {"import", wholeFile, {exported(true)}},
        {"import_header", overItsData, {headerOf(exported(true))}},
        {"import_header_like", overItsDataLike, {headerOf(exported(false))}},
    };
    return kTargets;
}

}  // namespace bulkhead::fuzz
