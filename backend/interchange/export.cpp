// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "backend/common/output_file.h"
#include "backend/interchange/checkpoint_states.h"
#include "backend/interchange/metadata.h"
#include "backend/interchange/safetensors.h"
#include "backend/interchange/torch_file.h"
#include "backend/interchange/transfer.h"
#include "backend/model/json.h"
#include "bulkhead/state_hash.h"

namespace bulkhead::interchange {
namespace {

/// The length of its header, before the header.
constexpr size_t kSafetensorsStart = 8;

using model::Json;
using runtime::CheckpointManifest;
using runtime::PathWord;
using runtime::TensorKind;

/// The part of the plan that is exported.
struct Content {
    std::vector<const StateTensor*> tensors;
    /// Numbers by name, as JSON text.
    std::map<std::string, std::pair<const StateTensor*, std::string>> numbers;
};

std::string hexHash(const std::string& text) {
    return absl::StrFormat("%016x", XXH3_64bits(text.data(), text.size()));
}

/// Equal for all checkpoints of models with the same tensors.
std::string modelHash(const StatePlan& plan) {
    std::set<std::string> lines;
    for (const StateTensor& tensor : plan.tensors)
        if (tensor.isModel())
            lines.insert(absl::StrCat(tensor.name, " ", tensor.dtype, " ",
                                      absl::StrJoin(tensor.shape, ","), "\n"));
    return hexHash(absl::StrJoin(lines, ""));
}

std::map<std::string, std::string> metadataOf(const CheckpointStates& states,
                                              const Content& content, const ExportOrder& order) {
    const CheckpointManifest& m = states.manifest();
    std::vector<std::string> hashes;
    for (const runtime::CheckpointFile& file : m.files)
        if (!order.shard || *order.shard == file.shard)
            hashes.push_back(absl::StrFormat("%016x", file.hash));
    std::map<std::string, std::string> metadata = {
        {"format", "pt"},  // readers of transformers ask for it
        {kJobKey, m.job},
        {kRunKey, m.run},
        {kStepKey, absl::StrCat(m.step)},
        {kLineageKey, absl::StrCat(m.lineage)},
        {kModelKey, states.plan().model},
        {kModelHashKey, modelHash(states.plan())},
        {kJobHashKey, hexHash(m.jobJson)},
        {kStateHashKey, absl::StrJoin(hashes, ",")},
    };
    if (order.shard) metadata[kShardKey] = absl::StrCat(*order.shard);
    if (!order.optimizer) return metadata;
    Json numbers = Json::object();
    for (const auto& [name, number] : content.numbers) numbers[name] = Json::parse(number.second);
    metadata[kNumbersKey] = model::dumpJson(numbers);
    if (order.shard) return metadata;
    Json tables = Json::array();
    for (const runtime::TensorTable& table : states.tables())
        tables.push_back(Json::parse(runtime::tensorTableText(table)));
    metadata[kTablesKey] = model::dumpJson(tables);
    metadata[kManifestKey] = runtime::manifestText(m);
    return metadata;
}

absl::StatusOr<Content> contentOf(const CheckpointStates& states, bool optimizer) {
    Content content;
    for (const StateTensor& tensor : states.plan().tensors) {
        if (!tensor.isModel() && !optimizer) continue;
        if (!tensor.isNumber()) {
            content.tensors.push_back(&tensor);
            continue;
        }
        const auto bytes = states.read(tensor);
        if (!bytes.ok()) return bytes.status();
        content.numbers[tensor.name] = {&tensor, numberJson(*bytes)};
    }
    return content;
}

std::string_view textOf(const std::vector<std::byte>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

absl::Status writeSafetensors(OutputFile& out, const CheckpointStates& states, Content content,
                              const std::map<std::string, std::string>& metadata) {
    // Large elements first: then each tensor lies at a multiple of its element.
    std::stable_sort(content.tensors.begin(), content.tensors.end(),
                     [](const auto* a, const auto* b) {
                         return runtime::elementBytes(a->dtype) > runtime::elementBytes(b->dtype);
                     });
    SafetensorsHeader header;
    header.metadata = metadata;
    uint64_t at = 0;
    const auto add = [&](const std::string& name, const StateTensor& tensor) {
        header.entries.push_back({name, tensor.dtype, tensor.shape, at, at + tensor.bytes()});
        at += tensor.bytes();
    };
    const auto aliasesOf = [&](const StateTensor& tensor) {
        std::vector<std::string> names;
        for (const auto& [name, of] : states.plan().aliases)
            if (of == tensor.name) names.push_back(name);
        return names;
    };
    for (const StateTensor* tensor : content.tensors) {
        add(tensor->name, *tensor);
        for (const std::string& name : aliasesOf(*tensor)) add(name, *tensor);
    }
    const auto text = safetensorsHeaderText(header);
    if (!text.ok()) return text.status();
    if (absl::Status s = out.append(*text); !s.ok()) return s;
    for (const StateTensor* tensor : content.tensors) {
        const auto bytes = states.read(*tensor);
        if (!bytes.ok()) return bytes.status();
        for (size_t times = 0; times <= aliasesOf(*tensor).size(); ++times)
            if (absl::Status s = out.append(textOf(*bytes)); !s.ok()) return s;
    }
    return absl::OkStatus();
}

/// Paths below which the optimizer has nothing yet.
std::set<std::vector<PathWord>> absentPaths(const Content& content) {
    std::set<std::vector<PathWord>> absent;
    for (const auto& [name, number] : content.numbers)
        if (number.first->kind == TensorKind::kPresence && number.second != "true")
            absent.insert(number.first->path);
    return absent;
}

bool isBelow(const std::vector<PathWord>& path, const std::set<std::vector<PathWord>>& tops) {
    std::vector<PathWord> top = path;
    for (; !top.empty(); top.pop_back())
        if (tops.contains(top)) return true;
    return false;
}

absl::Status writeTorch(OutputFile& out, const CheckpointStates& states, const Content& content,
                        const std::map<std::string, std::string>& metadata, bool optimizer) {
    std::map<std::string, TorchTensor> byName;
    for (size_t i = 0; i < content.tensors.size(); ++i) {
        const StateTensor& tensor = *content.tensors[i];
        if (absl::Status s = checkTorchDtype(tensor.name, tensor.dtype); !s.ok()) return s;
        byName[tensor.name] = {tensor.dtype, tensor.shape, i};
    }
    TorchValue::Dict model;
    model.ordered = true;
    for (const StateTensor* tensor : content.tensors)
        if (tensor->isModel()) model[tensor->name].value = byName[tensor->name];
    for (const auto& [name, of] : states.plan().aliases) model[name].value = byName[of];
    TorchValue root;
    if (optimizer) {
        root.at({"model"}).value = std::move(model);
        for (const runtime::TensorConstant& constant : states.plan().constants)
            root.at(constant.path) = TorchValue::ofJson(constant.json);
        const auto absent = absentPaths(content);
        for (const StateTensor* tensor : content.tensors)
            if (!tensor->isModel() && !isBelow(tensor->path, absent))
                root.at(tensor->path).value = byName[tensor->name];
        for (const auto& [name, number] : content.numbers)
            if (number.first->kind == TensorKind::kNumber && !isBelow(number.first->path, absent))
                root.at(number.first->path) = TorchValue::ofNumber(number.second);
    } else {
        root.value = std::move(model);
    }
    const std::map<std::string, std::string> more = {
        {"bulkhead.json", model::dumpJson(Json(metadata))}};
    return writeTorchFile(
        out, root, content.tensors.size(),
        [&](size_t i) { return states.read(*content.tensors[i]); }, more);
}

/// Only files as an export makes them are replaced: whoever mistypes a name keeps the file.
absl::Status isReplaceable(const FileSystem& files, const std::string& path) {
    const auto size = files.size(path);
    if (!size.ok() || *size == 0) return absl::OkStatus();  // a pipe, or nothing is lost
    std::string head(std::min<uint64_t>(*size, kSafetensorsStart + 1), '\0');
    if (absl::Status s = files.read(path, 0, std::as_writable_bytes(std::span(head))); !s.ok())
        return s;
    if (head.starts_with("PK\3\4") || (head.size() > kSafetensorsStart && head.back() == '{'))
        return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrCat(path,
                     " is neither a safetensors nor a torch file, and is not replaced; choose "
                     "another place"));
}

}  // namespace

absl::StatusOr<std::string> exportName(const FileSystem& files, const ExportOrder& order) {
    const auto manifest = runtime::readManifest(files, order.manifest);
    if (!manifest.ok()) return manifest.status();
    std::string run = manifest->job;  // a name that somebody else wrote is no path
    std::replace(run.begin(), run.end(), '/', '_');
    const std::string shard = order.shard ? absl::StrCat("-shard", *order.shard) : "";
    return absl::StrCat(run, "-step", manifest->step, shard,
                        order.form == Form::kTorch ? ".pt" : ".safetensors");
}

absl::StatusOr<Exported> exportCheckpoint(const FileSystem& files, const ExportOrder& order) {
    if (order.replace)
        if (absl::Status s = isReplaceable(files, order.out); !s.ok()) return s;
    auto states = CheckpointStates::open(files, order.manifest, order.shard);
    if (!states.ok()) return states.status();
    auto out = OutputFile::create(order.out, order.replace);
    if (!out.ok()) return out.status();
    if (absl::Status s = states->checkHashes(); !s.ok()) return s;
    const auto content = contentOf(*states, order.optimizer);
    if (!content.ok()) return content.status();
    const auto metadata = metadataOf(*states, *content, order);
    absl::Status status = order.form == Form::kSafetensors
                              ? writeSafetensors(**out, *states, *content, metadata)
                              : writeTorch(**out, *states, *content, metadata, order.optimizer);
    if (status.ok()) status = (*out)->publish();
    if (!status.ok()) return status;
    const CheckpointManifest& m = states->manifest();
    return Exported{m.job, m.step, content->tensors.size(), (*out)->size()};
}

}  // namespace bulkhead::interchange
