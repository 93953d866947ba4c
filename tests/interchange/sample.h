// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/runtime/checkpoint/checkpoint.h"
#include "backend/runtime/checkpoint/tensor_table.h"
#include "bulkhead/state_hash.h"

namespace bulkhead::interchange {

using runtime::TensorKind;
using runtime::TensorPart;
using runtime::TensorTable;

inline TensorPart part(std::string name, std::string dtype, std::vector<uint64_t> shape,
                       uint64_t offset, TensorKind kind = TensorKind::kParameter) {
    TensorPart made;
    made.name = std::move(name);
    made.dtype = std::move(dtype);
    made.shape = std::move(shape);
    made.offset = offset;
    made.kind = kind;
    return made;
}

/// A model on two shards: `rows` cut by rows, `columns` by columns, `flat` after its 5th element;
/// `bias` is held by both, and tied to `head.bias`; then the optimizer's.
inline TensorTable sampleTable(size_t shard) {
    TensorTable table;
    table.model = "Sample";
    table.stateBytes = 512;
    table.aliases = {{"head.bias", "bias"}};
    table.constants = {{{"optimizer", "state"}, "{}"},
                       {{"optimizer", "param_groups", uint64_t{0}, "params"}, R"(["rows"])"}};
    TensorPart rows = part("rows", "F32", {3, 2}, 0);
    rows.box = shard == 0 ? TensorPart::Box{false, {0, 0}, {2, 2}}
                          : TensorPart::Box{false, {2, 0}, {1, 2}};
    TensorPart columns = part("columns", "I16", {2, 3, 2}, 64);
    columns.box = shard == 0 ? TensorPart::Box{false, {0, 0, 0}, {2, 1, 2}}
                             : TensorPart::Box{false, {0, 1, 0}, {2, 2, 2}};
    TensorPart flat = part("flat", "F64", {2, 4}, 128);
    flat.box = shard == 0 ? TensorPart::Box{true, {0}, {5}} : TensorPart::Box{true, {5}, {3}};
    TensorPart bias = part("bias", "BF16", {4}, 192, TensorKind::kBuffer);
    TensorPart there = part("optimizer.state.rows", "NUMBER", {}, 256, TensorKind::kPresence);
    there.path = {"optimizer", "state", "rows"};
    TensorPart moment =
        part("optimizer.state.rows.exp_avg", "F32", {3, 2}, 320, TensorKind::kOptimizer);
    moment.path = {"optimizer", "state", "rows", "exp_avg"};
    moment.box = rows.box;
    TensorPart rate = part("optimizer.param_groups.0.lr", "NUMBER", {}, 384, TensorKind::kNumber);
    rate.path = {"optimizer", "param_groups", uint64_t{0}, "lr"};
    table.tensors = {rows, columns, flat, bias, there, moment, rate};
    return table;
}

/// Bytes that follow from the tensor's name and the element's place in the whole; numbers are told.
inline std::vector<std::byte> sampleState(size_t shard) {
    std::vector<std::byte> state(512);
    const auto set = [&](size_t at, auto value) { std::memcpy(&state[at], &value, sizeof value); };
    for (size_t i = 0; i < (shard == 0 ? 4u : 2u); ++i) {
        set(i * 4, static_cast<float>(1 + i + 4 * shard));
        set(320 + i * 4, static_cast<float>(101 + i + 4 * shard));
    }
    const std::vector<int16_t> columns = shard == 0
                                             ? std::vector<int16_t>{0, 1, 6, 7}
                                             : std::vector<int16_t>{2, 3, 4, 5, 8, 9, 10, 11};
    for (size_t i = 0; i < columns.size(); ++i) set(64 + i * 2, columns[i]);
    for (size_t i = 0; i < (shard == 0 ? 5u : 3u); ++i)
        set(128 + i * 8, static_cast<double>(i + 5 * shard) / 2);
    for (size_t i = 0; i < 4; ++i) set(192 + i * 2, static_cast<uint16_t>(0x3f80 + i));
    set(256, int64_t{1});
    set(264, int64_t{1});
    set(384, int64_t{3});
    set(392, 0.25);
    return state;
}

/// Writes a checkpoint of that model into `folder`; returns its manifest's path.
inline std::string writeSample(FileSystem& files, const std::string& folder,
                               std::vector<TensorTable> tables = {sampleTable(0), sampleTable(1)},
                               std::vector<std::vector<std::byte>> states = {sampleState(0),
                                                                             sampleState(1)}) {
    runtime::CheckpointManifest manifest;
    manifest.job = "sample";
    manifest.run = "4f1c";
    manifest.step = manifest.last.step = 7;
    manifest.lineage = manifest.last.lineage = 2;
    manifest.shards = static_cast<uint32_t>(tables.size());
    manifest.jobJson = "{}";
    manifest.dataPosition = "where it was";
    for (size_t shard = 0; shard < tables.size(); ++shard) {
        runtime::StateSnapshot snapshot;
        snapshot.lineage = 2;
        snapshot.step = 7;
        snapshot.bytes.resize(states[shard].size());
        std::copy(states[shard].begin(), states[shard].end(), snapshot.bytes.begin());
        snapshot.hash = bulkhead_state_hash(snapshot.bytes.data(), snapshot.bytes.size());
        snapshot.tensors =
            std::make_shared<const std::string>(runtime::tensorTableText(tables[shard]));
        manifest.files.push_back(
            *runtime::writeShardFile(files, folder, static_cast<int32_t>(shard), snapshot));
    }
    return *runtime::writeManifest(files, folder, manifest);
}

}  // namespace bulkhead::interchange
