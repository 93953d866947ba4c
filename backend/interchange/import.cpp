// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "backend/common/limits.h"
#include "backend/common/output_file.h"
#include "backend/interchange/checkpoint_states.h"
#include "backend/interchange/metadata.h"
#include "backend/interchange/safetensors.h"
#include "backend/interchange/transfer.h"
#include "backend/model/json.h"
#include "backend/model/names.h"
#include "bulkhead/state_hash.h"

namespace bulkhead::interchange {
namespace {

using model::Json;
using runtime::CheckpointManifest;
using runtime::StateSnapshot;
using runtime::TensorTable;

/// The identity of no run: where it lies among a run's own checkpoints it counts for nothing.
constexpr const char* kImportedRun = "imported";

/// The new checkpoint without the tensors of the file.
struct Base {
    CheckpointManifest manifest;
    std::vector<TensorTable> tables;
    StatePlan plan;
    bool hasStates = false;  ///< it is a checkpoint that lies on disk
};

absl::Status wrong(const std::string& file, const std::string& what, const std::string& remedy) {
    constexpr size_t kMostWords = 400;  // names may be long
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": ", model::printable(model::shortened(what, kMostWords)), "; ", remedy));
}

constexpr const char* kExportAgain =
    "export it again with --optimizer, or name a checkpoint of the same model by --like";

/// A table that wants more memory than its tensors need is a lie: a file takes no more than it has.
absl::Status checkSize(const std::string& file, const TensorTable& table, uint64_t fileBytes) {
    constexpr uint64_t kPadding = 256, kMore = 1 << 20;
    const uint64_t most = fileBytes + kPadding * table.tensors.size() + kMore;
    if (table.stateBytes <= most) return absl::OkStatus();
    return wrong(file,
                 absl::StrCat(kTablesKey, ": state_bytes is ", table.stateBytes,
                              ", expected at most ", most, " for its tensors"),
                 kExportAgain);
}

absl::StatusOr<Base> baseOfFile(const std::string& file, const SafetensorsHeader& header,
                                uint64_t fileBytes) {
    const auto manifest = header.metadata.find(kManifestKey),
               tables = header.metadata.find(kTablesKey);
    if (manifest == header.metadata.end() || tables == header.metadata.end())
        return wrong(file, "it does not say of which job it is and where its tensors belong",
                     "name a checkpoint of the same model by --like");
    Base base;
    const std::string place = file + ", " + kManifestKey;
    auto parsed = runtime::parseManifest(place, manifest->second);
    if (!parsed.ok()) return parsed.status();
    base.manifest = *std::move(parsed);
    const auto list = model::parseJson(tables->second);
    if (!list.ok() || !list->is_array() || list->size() != base.manifest.shards ||
        list->size() > kMaxGroupMembers || list->empty())
        return wrong(file,
                     absl::StrCat(kTablesKey, ": expected a list of ", base.manifest.shards,
                                  " tables, 1 to ", kMaxGroupMembers),
                     kExportAgain);
    for (const Json& one : *list) {
        auto table =
            runtime::parseTensorTable(absl::StrCat(file, ", ", kTablesKey), model::dumpJson(one));
        if (!table.ok()) return table.status();
        if (absl::Status s = checkSize(file, *table, fileBytes); !s.ok()) return s;
        base.tables.push_back(*std::move(table));
    }
    auto plan = joinTables(base.tables, file);
    if (!plan.ok()) return plan.status();
    base.plan = *std::move(plan);
    return base;
}

absl::StatusOr<Base> baseLike(const FileSystem& files, const std::string& like) {
    auto states = CheckpointStates::open(files, like, std::nullopt);
    if (!states.ok()) return states.status();
    if (absl::Status s = states->checkHashes(); !s.ok()) return s;
    return Base{states->manifest(), states->tables(), states->plan(), true};
}

bool isKeptPerParameter(const StateTensor& tensor) {
    return !tensor.isModel() && tensor.path.size() > 1 &&
           tensor.path[0] == runtime::PathWord("optimizer") &&
           tensor.path[1] == runtime::PathWord("state");
}

std::string typeOf(const std::string& dtype, const std::vector<uint64_t>& shape) {
    return absl::StrCat(dtype, " [", absl::StrJoin(shape, ", "), "]");
}

/// The file's tensors and numbers, held against those of the plan.
class Sources {
  public:
    Sources(const FileSystem* files, const ImportOrder& order, const Base& base,
            const SafetensorsHeader& header)
        : files_(*files), order_(order), base_(base), header_(header) {
        for (const SafetensorsEntry& entry : header.entries) entries_[entry.name] = &entry;
    }

    /// Everything that the file has is the model's, and everything that a state needs is there.
    absl::Status check() {
        if (absl::Status s = readNumbers(); !s.ok()) return s;
        std::map<std::string, const StateTensor*> known;
        for (const StateTensor& tensor : base_.plan.tensors) known[tensor.name] = &tensor;
        for (const auto& [name, of] : base_.plan.aliases) known[name] = known[of];
        for (const SafetensorsEntry& entry : header_.entries) {
            const auto found = known.find(entry.name);
            if (found == known.end() || found->second == nullptr || found->second->isNumber())
                return wrong(order_.file,
                             absl::StrCat("tensor \"", entry.name, "\" is not the model's"),
                             "take it out, or name a checkpoint of its own model by --like");
            const StateTensor& tensor = *found->second;
            if (entry.dtype != tensor.dtype || entry.shape != tensor.shape)
                return wrong(order_.file,
                             absl::StrCat("tensor \"", entry.name, "\" is ",
                                          typeOf(entry.dtype, entry.shape), ", expected ",
                                          typeOf(tensor.dtype, tensor.shape)),
                             "convert it where it was made");
            hasOptimizer_ = hasOptimizer_ || !tensor.isModel();
        }
        for (const auto& [name, json] : numbers_) {
            const auto found = known.find(name);
            if (found == known.end() || !found->second->isNumber())
                return wrong(order_.file,
                             absl::StrCat(kNumbersKey, ": \"", name, "\" is not the model's"),
                             "take it out");
        }
        hasOptimizer_ = hasOptimizer_ || !numbers_.empty();
        for (const StateTensor& tensor : base_.plan.tensors)
            if (absl::Status s = checkThere(tensor); !s.ok()) return s;
        return checkAliases();
    }

    std::string optimizerWords() const {
        if (order_.freshOptimizer) return "begins anew";
        return hasOptimizer_ ? "from the file" : "as in " + order_.like;
    }

    /// The whole tensor; empty: the state has it already, or it is zero.
    absl::StatusOr<std::vector<std::byte>> read(const StateTensor& tensor) const {
        if (const auto number = numbers_.find(tensor.name); number != numbers_.end())
            return numberBytes(number->second);
        const SafetensorsEntry* entry = entryOf(tensor);
        return entry == nullptr ? std::vector<std::byte>() : readEntry(*entry);
    }
    bool isZero(const StateTensor& tensor) const {
        return order_.freshOptimizer && isKeptPerParameter(tensor);
    }

  private:
    absl::Status readNumbers() {
        const auto text = header_.metadata.find(kNumbersKey);
        if (text == header_.metadata.end()) return absl::OkStatus();
        const auto json = model::parseJson(text->second);
        if (!json.ok() || !json->is_object())
            return wrong(order_.file,
                         absl::StrCat(kNumbersKey, ": expected a JSON object, ",
                                      json.ok() ? absl::string_view("found another value")
                                                : json.status().message()),
                         kExportAgain);
        for (const auto& item : json->items()) {
            numbers_[item.key()] = model::dumpJson(item.value());
            if (const auto bytes = numberBytes(numbers_[item.key()]); !bytes.ok())
                return wrong(
                    order_.file,
                    absl::StrCat(kNumbersKey, ": \"", item.key(), "\": ", bytes.status().message()),
                    kExportAgain);
        }
        return absl::OkStatus();
    }

    const SafetensorsEntry* entryOf(const StateTensor& tensor) const {
        if (const auto found = entries_.find(tensor.name); found != entries_.end())
            return found->second;
        for (const auto& [name, of] : base_.plan.aliases)
            if (of == tensor.name && entries_.contains(name)) return entries_.at(name);
        return nullptr;
    }

    absl::Status checkThere(const StateTensor& tensor) const {
        if (isZero(tensor) || numbers_.contains(tensor.name) || entryOf(tensor) != nullptr)
            return absl::OkStatus();
        const bool left = !tensor.isModel() && !hasOptimizer_ && base_.hasStates;
        if (left) return absl::OkStatus();
        return wrong(
            order_.file,
            absl::StrCat("there is no tensor \"", tensor.name, "\", expected ",
                         typeOf(tensor.dtype, tensor.shape)),
            tensor.isModel() ? "name a checkpoint of its own model by --like" : kExportAgain);
    }

    absl::StatusOr<std::vector<std::byte>> readEntry(const SafetensorsEntry& entry) const {
        std::vector<std::byte> bytes(entry.end - entry.begin);
        if (absl::Status s = files_.read(order_.file, header_.dataBegin + entry.begin, bytes);
            !s.ok())
            return s;
        return bytes;
    }

    /// Names of one tensor must have one value.
    absl::Status checkAliases() const {
        for (const auto& [name, of] : base_.plan.aliases) {
            const auto one = entries_.find(name), other = entries_.find(of);
            if (one == entries_.end() || other == entries_.end()) continue;
            const auto a = readEntry(*one->second), b = readEntry(*other->second);
            if (!a.ok()) return a.status();
            if (!b.ok()) return b.status();
            if (*a != *b)
                return wrong(order_.file,
                             absl::StrCat("tensors \"", name, "\" and \"", of,
                                          "\" are one in the model, and have different values"),
                             "take one of them out");
        }
        return absl::OkStatus();
    }

    const FileSystem& files_;
    const ImportOrder& order_;
    const Base& base_;
    const SafetensorsHeader& header_;
    std::map<std::string, const SafetensorsEntry*> entries_;
    std::map<std::string, std::string> numbers_;  ///< as JSON
    bool hasOptimizer_ = false;
};

absl::StatusOr<std::shared_ptr<StateSnapshot>> makeState(const FileSystem& files,
                                                         const ImportOrder& order, const Base& base,
                                                         const Sources& sources, size_t shard) {
    auto state = std::make_shared<StateSnapshot>();
    const CheckpointManifest& m = base.manifest;
    if (base.hasStates) {
        auto read = runtime::readShardFile(files, order.like, m, static_cast<int32_t>(shard));
        if (!read.ok()) return read.status();
        state = *std::move(read);
    } else {
        state->bytes.assign(base.plan.stateBytes[shard], std::byte{0});
    }
    state->lineage = m.lineage;
    state->step = m.step;
    state->layout = m.layout;
    state->expertShard = m.expertShard;
    state->last = m.last;
    for (const StateTensor& tensor : base.plan.tensors) {
        const bool here = std::any_of(tensor.pieces.begin(), tensor.pieces.end(),
                                      [&](const auto& piece) { return piece.shard == shard; });
        if (!here) continue;
        const auto whole = sources.read(tensor);
        if (!whole.ok()) return whole.status();
        for (const StateTensor::Piece& piece : tensor.pieces) {
            if (piece.shard != shard) continue;
            const std::span<std::byte> to(state->bytes.data() + piece.offset,
                                          tensor.bytesOf(piece));
            if (sources.isZero(tensor))
                std::fill(to.begin(), to.end(), std::byte{0});
            else if (!whole->empty())
                putIntoPiece(tensor, piece, *whole, to);
        }
    }
    state->hash = bulkhead_state_hash(state->bytes.data(), state->bytes.size());
    state->tensors =
        std::make_shared<const std::string>(runtime::tensorTableText(base.tables[shard]));
    return state;
}

/// It goes with all that lies in it.
absl::Status mayReplace(const FileSystem& files, const std::string& folder) {
    const auto refused = [&](const std::string& why) {
        return absl::AlreadyExistsError(absl::StrCat(
            folder, " ", why, ", so --force does not replace it; choose another place"));
    };
    const std::string manifest = folder + "/manifest.json";
    if (!files.exists(manifest)) return refused("exists and is no checkpoint");
    const auto read = runtime::readManifest(files, manifest);
    if (!read.ok()) return refused("exists and is no checkpoint");
    if (read->run != kImportedRun) return refused("is a checkpoint that a run wrote");
    std::set<std::string> known{"manifest.json"};
    for (const runtime::CheckpointFile& file : read->files)
        known.insert({file.name, runtime::tensorTablePath(file.name)});
    for (const std::string& name : files.list(folder))
        if (!known.contains(name))
            return refused(absl::StrCat("holds ", name, ", which is no part of a checkpoint"));
    return absl::OkStatus();
}

absl::Status moveIntoPlace(FileSystem& files, const std::string& from, const std::string& to,
                           bool replace) {
    const std::string old = from + ".replaced";
    const bool there = files.exists(to);
    if (there) {
        if (!replace) return alreadyThere(to);
        if (absl::Status s = mayReplace(files, to); !s.ok()) return s;
        if (absl::Status s = files.rename(to, old); !s.ok()) return s;
    }
    if (absl::Status s = files.rename(from, to); !s.ok()) {
        if (there) (void)files.rename(old, to);
        return s;
    }
    if (there) runtime::discardCheckpoint(files, old);
    return files.syncFolder(folderOf(to));
}

}  // namespace

absl::StatusOr<Imported> importCheckpoint(FileSystem& files, const ImportOrder& order) {
    if (!order.replace && files.exists(order.out)) return alreadyThere(order.out);
    const auto header = readSafetensorsHeader(files, order.file);
    if (!header.ok()) return header.status();
    const auto fileBytes = files.size(order.file);
    if (!fileBytes.ok()) return fileBytes.status();
    const auto base = order.like.empty() ? baseOfFile(order.file, *header, *fileBytes)
                                         : baseLike(files, order.like);
    if (!base.ok()) return base.status();
    Sources sources(&files, order, *base, *header);
    if (absl::Status s = sources.check(); !s.ok()) return s;

    Imported imported;
    imported.optimizer = sources.optimizerWords();
    imported.step = base->manifest.step;
    imported.shards = base->manifest.shards;
    imported.manifest = order.out + "/manifest.json";
    CheckpointManifest manifest = base->manifest;
    manifest.version = runtime::kManifestVersion;
    manifest.run = kImportedRun;
    manifest.unixNs = order.unixNs;
    manifest.files.clear();
    const std::string beside = absl::StrCat(order.out, ".", ::getpid(), ".partial");
    absl::Status status;
    for (size_t shard = 0; shard < base->tables.size() && status.ok(); ++shard) {
        const auto state = makeState(files, order, *base, sources, shard);
        status = state.status();
        if (!status.ok()) break;
        const auto file =
            runtime::writeShardFile(files, beside, static_cast<int32_t>(shard), **state);
        status = file.status();
        if (!status.ok()) break;
        manifest.files.push_back(*file);
        imported.hashes.push_back(absl::StrFormat("%016x", file->hash));
    }
    if (status.ok()) status = runtime::writeManifest(files, beside, manifest).status();
    if (status.ok()) status = moveIntoPlace(files, beside, order.out, order.replace);
    const auto said = header->metadata.find(kStateHashKey);
    const bool isWhole = order.like.empty() && !order.freshOptimizer;
    if (isWhole && said != header->metadata.end() &&
        said->second != absl::StrJoin(imported.hashes, ","))
        imported.changed = said->second;
    if (status.ok()) return imported;
    (void)files.removeFolder(beside);
    return status;
}

}  // namespace bulkhead::interchange
