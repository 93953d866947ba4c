// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/sglang_recorder.h"

#include <deque>
#include <map>
#include <utility>

#include "backend/model/names.h"
#include "backend/planner/import/layers.h"
#include "backend/planner/import/refusal.h"
#include "backend/planner/import/sglang_tokens.h"
#include "backend/planner/import/torch_file.h"

namespace bulkhead::planner {
namespace {

using model::concat;

/// InvalidArgument unless `tensor` holds whole numbers, not more than a model can have.
absl::Status checkTable(const Tensor& tensor, size_t axes, std::string_view file,
                        std::string_view field) {
    const auto& shape = tensor.shape();
    if (!isInteger(tensor.element()) || shape.size() != axes || tensor.size() == 0 ||
        shape[axes - 2] > kMostLayers || shape[axes - 1] > kMostExperts)
        return refuse(file,
                      concat(field, ": expected whole numbers of ", axes,
                             " axes, the last two layers and experts, found ", tensor.text()));
    return absl::OkStatus();
}

absl::StatusOr<Recording> readStat(const Tensor& given, std::string_view file,
                                   const ImportOptions& options) {
    const size_t axes = given.shape().size();
    if (absl::Status ok = checkTable(given, axes == 2 ? 2 : 3, file, "logical_count"); !ok.ok())
        return ok;
    const uint64_t steps = axes == 3 ? given.shape()[0] : 1;
    const auto layers = static_cast<uint32_t>(given.shape()[axes - 2]);
    const auto experts = static_cast<uint32_t>(given.shape()[axes - 1]);
    Recording out;
    out.source = concat(file, ", SGLang stat dump");
    out.shape.experts = experts;
    uint64_t unused = 0;
    std::vector<int64_t> row(experts);
    for (uint64_t step = 0; step < steps; ++step) {
        const Tensor table = axes == 3 ? given[step] : given;
        CountsWindow window{concat("step ", step), options.domain, Phase::kUnknown,
                            Counts(layers, experts)};
        for (uint32_t layer = 0; layer < layers; ++layer) {
            table.integers(uint64_t{layer} * experts, row);
            for (uint32_t e = 0; e < experts; ++e)
                if (!addTokens(row[e], window.counts.row(layer)[e]))
                    return refuse(file, concat("logical_count: step ", step, ", layer ", layer,
                                               ", expert ", e, ": ", wrongTokens(row[e])));
        }
        if (window.counts.total() == 0)
            ++unused;
        else
            out.windows.push_back(std::move(window));
    }
    if (unused > 0)
        out.notes.push_back(concat(unused, " of ", steps,
                                   " steps of the buffer are all zero: never used, left out."));
    out.notes.push_back("Ids are logical, counts are summed over ranks by the engine.");
    if (absl::Status ok = keepRoutedLayers(out, file, options); !ok.ok()) return ok;
    return out;
}

/// The files of one detail dump, opened; they stay where they are, tensors point into them.
struct Rank {
    std::string name, bytes;
    TorchFile torch;
    const PickleDict* dict = nullptr;
};

/// Counts of passes, summed over ranks, then physical to logical.
absl::StatusOr<Recording> readPasses(const std::deque<Rank>& ranks, const Tensor& map,
                                     const ImportOptions& options) {
    const std::string& file = ranks.front().name;
    const auto logical = logicalOf(map, file);
    if (!logical.ok()) return logical.status();
    std::map<std::pair<int64_t, std::string>, Counts> passes;
    for (const Rank& rank : ranks) {
        auto records = recordsOf(rank.torch, *rank.dict, rank.name);
        if (!records.ok()) return records.status();
        uint64_t held = 0;
        for (size_t i = 0; i < records->size(); ++i) {
            const std::string path = concat("records[", i, "]");
            const PickleDict& record = *(*records)[i];
            const auto pass = rank.torch.integer(record, "forward_pass_id", path);
            if (!pass.ok()) return pass.status();
            const auto gatherer = rank.torch.text(record, "gatherer_key", path);
            if (!gatherer.ok()) return gatherer.status();
            const auto table = rank.torch.tensor(record, "global_physical_count", path);
            if (!table.ok()) return table.status();
            if (!*pass || !*table)
                return refuse(
                    rank.name,
                    concat(path, ": forward_pass_id or global_physical_count is missing"));
            if (absl::Status ok = checkTable(**table, 2, rank.name, path); !ok.ok()) return ok;
            if (absl::Status ok = addHeld(**table, rank.bytes.size(), path, held); !ok.ok())
                return ok;
            auto [counts, isNew] = passes.try_emplace({**pass, gatherer->value_or("primary")},
                                                      logical->layers, logical->experts);
            (void)isNew;
            if (absl::Status ok =
                    addPhysical(**table, *logical, concat(rank.name, ": ", path), counts->second);
                !ok.ok())
                return ok;
        }
    }
    Recording out;
    out.source = concat(file, ranks.size() > 1 ? concat(" and ", ranks.size() - 1, " more") : "",
                        ", SGLang per_pass dump");
    out.shape.experts = logical->experts;
    for (auto& [key, counts] : passes)
        if (counts.total() > 0)
            out.windows.push_back(
                {concat("pass ", key.first, key.second == "primary" ? "" : concat(" ", key.second)),
                 options.domain, Phase::kUnknown, std::move(counts)});
    out.notes.push_back(concat("Passes are summed over the ", ranks.size(), " ranks at hand."));
    out.notes.push_back(kMapNote);
    if (absl::Status ok = keepRoutedLayers(out, file, options); !ok.ok()) return ok;
    return out;
}

absl::Status openRank(const std::string& name, const Files& files, std::deque<Rank>& ranks) {
    auto bytes = files.read(name);
    if (!bytes.ok()) return bytes.status();
    Rank& rank = ranks.emplace_back();
    rank.name = name;
    rank.bytes = *std::move(bytes);
    auto torch = TorchFile::open(rank.bytes, name);
    if (!torch.ok()) return torch.status();
    rank.torch = *std::move(torch);
    auto dict = rank.torch.dict();
    if (!dict.ok()) return dict.status();
    rank.dict = *dict;
    return absl::OkStatus();
}

/// A rank twice means two dumps in one folder, which nobody can tell apart by content.
absl::Status checkRanksDiffer(const std::deque<Rank>& ranks) {
    std::map<int64_t, std::string> seen;
    for (const Rank& rank : ranks) {
        auto records = recordsOf(rank.torch, *rank.dict, rank.name);
        if (!records.ok()) return records.status();
        if (records->empty()) continue;
        const auto number = rank.torch.integer(*records->front(), "rank", "records[0]");
        if (!number.ok()) return number.status();
        const auto [other, isNew] = seen.emplace(number->value_or(0), rank.name);
        if (!isNew)
            return refuse(rank.name, concat("rank ", other->first, " as in ", other->second,
                                            "; put each dump into a folder of its own"));
    }
    return absl::OkStatus();
}

}  // namespace

bool looksLikeTorch(std::string_view bytes) {
    return bytes.starts_with("PK\x03\x04");
}

absl::StatusOr<Recording> readSglang(const std::vector<std::string>& names, const Files& files,
                                     const ImportOptions& options) {
    std::deque<Rank> ranks;
    for (const std::string& name : names)
        if (absl::Status ok = openRank(name, files, ranks); !ok.ok()) return ok;
    if (ranks.empty()) return absl::InvalidArgumentError("no SGLang dump was named");
    const Rank& first = ranks.front();
    const auto logicalCount = first.torch.tensor(*first.dict, "logical_count", "");
    if (!logicalCount.ok()) return logicalCount.status();
    if (*logicalCount && ranks.size() > 1)
        return refuse(ranks[1].name,
                      concat("a second stat dump beside ", first.name, "; name one of them"));
    if (*logicalCount) return readStat(**logicalCount, first.name, options);
    const auto map = first.torch.tensor(*first.dict, "last_physical_to_logical_map", "");
    if (!map.ok()) return map.status();
    if (!*map)
        return refuse(first.name,
                      "expected a recorder's dump with logical_count, or with records and "
                      "last_physical_to_logical_map");
    if (absl::Status ok = checkTable(**map, 2, first.name, "last_physical_to_logical_map");
        !ok.ok())
        return ok;
    if (absl::Status ok = checkRanksDiffer(ranks); !ok.ok()) return ok;
    const auto records = recordsOf(first.torch, *first.dict, first.name);
    if (!records.ok()) return records.status();
    const bool perToken =
        !records->empty() &&
        first.torch.pickle().find(*records->front(), "topk_ids_of_layer") != nullptr;
    if (!perToken) return readPasses(ranks, **map, options);
    std::vector<SglangRank> views;
    for (const Rank& rank : ranks)
        views.push_back({rank.name, rank.bytes.size(), &rank.torch, rank.dict});
    return readSglangTokens(views, **map, options);
}

}  // namespace bulkhead::planner
