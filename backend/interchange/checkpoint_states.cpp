// SPDX-License-Identifier: Apache-2.0
#include "backend/interchange/checkpoint_states.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "backend/model/json.h"

namespace bulkhead::interchange {
namespace {

using model::Json;

enum NumberKind : int64_t { kNone = 0, kTruth = 1, kInteger = 2, kFloat = 3 };

std::vector<std::byte> packed(int64_t kind, int64_t bits) {
    std::vector<std::byte> bytes(runtime::kNumberBytes);
    std::memcpy(bytes.data(), &kind, sizeof kind);
    std::memcpy(bytes.data() + sizeof kind, &bits, sizeof bits);
    return bytes;
}

}  // namespace

std::string numberJson(std::span<const std::byte> bytes) {
    int64_t kind = 0, bits = 0;
    std::memcpy(&kind, bytes.data(), sizeof kind);
    std::memcpy(&bits, bytes.data() + sizeof kind, sizeof bits);
    switch (kind) {
        case kTruth:
            return bits != 0 ? "true" : "false";
        case kInteger:
            return absl::StrCat(bits);
        case kFloat:
            return model::dumpJson(model::json_detail::doubleToJson(std::bit_cast<double>(bits)));
        default:
            return "null";
    }
}

absl::StatusOr<std::vector<std::byte>> numberBytes(const std::string& json) {
    const auto parsed = model::parseJson(json);
    if (!parsed.ok()) return parsed.status();
    if (parsed->is_null()) return packed(kNone, 0);
    if (parsed->is_boolean()) return packed(kTruth, parsed->get<bool>() ? 1 : 0);
    if (parsed->is_number_integer() &&
        !(parsed->is_number_unsigned() && parsed->get<uint64_t>() > INT64_MAX))
        return packed(kInteger, parsed->get<int64_t>());
    double value = 0;
    if (!parsed->is_number_integer() && model::json_detail::doubleFromJson(*parsed, value))
        return packed(kFloat, std::bit_cast<int64_t>(value));
    return absl::InvalidArgumentError(
        absl::StrCat("expected null, true, false, a number, \"inf\", "
                     "\"-inf\" or \"nan\", found ",
                     json));
}

absl::StatusOr<CheckpointStates> CheckpointStates::open(const FileSystem& files,
                                                        const std::string& manifestPath,
                                                        std::optional<int32_t> shard) {
    CheckpointStates out;
    out.files_ = &files;
    out.path_ = manifestPath;
    auto manifest = runtime::readManifest(files, manifestPath);
    if (!manifest.ok()) return manifest.status();
    out.manifest_ = *std::move(manifest);
    std::vector<runtime::CheckpointFile> listed = out.manifest_.files;
    std::sort(listed.begin(), listed.end(),
              [](const auto& a, const auto& b) { return a.shard < b.shard; });
    for (size_t i = 0; i < listed.size(); ++i) {
        if (listed[i].shard != static_cast<int32_t>(i))
            return absl::DataLossError(absl::StrCat(manifestPath, " names no file of shard ", i));
        if (!shard || *shard == listed[i].shard) out.shards_.push_back(listed[i]);
    }
    if (out.shards_.empty())
        return absl::NotFoundError(absl::StrCat(manifestPath, " has shards 0 to ",
                                                listed.size() - 1, ", and none of number ",
                                                shard.value_or(0)));
    for (const runtime::CheckpointFile& file : out.shards_) {
        const std::string path = absl::StrCat(folderOf(manifestPath), "/", file.name);
        auto table = runtime::readTensorTable(files, path);
        if (!table.ok()) return table.status();
        out.tables_.push_back(shard ? asAlone(*std::move(table)) : *std::move(table));
    }
    auto plan = joinTables(out.tables_, manifestPath);
    if (!plan.ok()) return plan.status();
    out.plan_ = *std::move(plan);
    return out;
}

absl::Status CheckpointStates::checkHashes() const {
    for (size_t i = 0; i < shards_.size(); ++i) {
        const auto state = runtime::readShardFile(*files_, path_, manifest_, shards_[i].shard);
        if (!state.ok()) return state.status();
        if ((*state)->bytes.size() != plan_.stateBytes[i])
            return absl::DataLossError(
                absl::StrCat(path_, ": the state of shard ", shards_[i].shard, " has ",
                             (*state)->bytes.size(), " bytes, and its tensor table is of ",
                             plan_.stateBytes[i], "; put back the table that was there"));
    }
    return absl::OkStatus();
}

absl::StatusOr<std::vector<std::byte>> CheckpointStates::readPiece(
    const StateTensor& tensor, const StateTensor::Piece& piece) const {
    std::vector<std::byte> bytes(tensor.bytesOf(piece));
    const absl::Status read =
        runtime::readShardBytes(*files_, path_, shards_[piece.shard], piece.offset, bytes);
    if (!read.ok()) return read;
    return bytes;
}

absl::StatusOr<std::vector<std::byte>> CheckpointStates::read(const StateTensor& tensor) const {
    if (tensor.pieces.size() == 1 && !tensor.pieces[0].box.flat &&
        tensor.pieces[0].box.extent == tensor.shape)
        return readPiece(tensor, tensor.pieces[0]);
    std::vector<std::byte> whole(tensor.bytes()), first;
    for (const StateTensor::Piece& piece : tensor.pieces) {
        auto bytes = readPiece(tensor, piece);
        if (!bytes.ok()) return bytes.status();
        takeFromPiece(tensor, piece, *bytes, whole);
        if (!tensor.copies) continue;
        if (first.empty()) first = whole;
        if (first != whole)
            return absl::FailedPreconditionError(absl::StrCat(
                path_, ": ", tensor.name, " is not the same in shards ",
                shards_[tensor.pieces[0].shard].shard, " and ", shards_[piece.shard].shard,
                ", and neither says which part of a tensor it has; --shard N exports what one "
                "shard holds, as it holds it"));
    }
    return whole;
}

}  // namespace bulkhead::interchange
