// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/sglang_tokens.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "backend/model/names.h"
#include "backend/planner/import/layers.h"
#include "backend/planner/import/refusal.h"

namespace bulkhead::planner {
namespace {

using model::concat;

constexpr int64_t kExtend = 1;  ///< ForwardMode.EXTEND: prefill; the others decode or mix both
constexpr int64_t kDecode = 2;

/// One record: the ids as logical ones, only of tokens and layers that have any.
struct Pass {
    std::string where;
    int64_t pass = 0, mode = 0;
    std::vector<uint64_t> pieces;  ///< tokens of each piece of a prefill
    Tensor ids;                    ///< [layers, tokens, 8] physical, -1 padded
    uint64_t tokens() const { return ids.shape()[1]; }
    uint64_t width() const { return ids.shape()[2]; }
};

absl::StatusOr<Pass> passOf(const SglangRank& rank, const PickleDict& record, size_t i,
                            const LogicalOf& logical) {
    Pass out;
    const std::string path = concat("records[", i, "]");
    out.where = concat(rank.name, ": ", path);
    const auto id = rank.torch->integer(record, "forward_pass_id", path);
    const auto mode = rank.torch->integer(record, "forward_mode", path);
    const auto ids = rank.torch->tensor(record, "topk_ids_of_layer", path);
    for (const absl::Status& status : {id.status(), mode.status(), ids.status()})
        if (!status.ok()) return status;
    if (!*id || !*ids) return refuse(out.where, "forward_pass_id or topk_ids_of_layer is missing");
    out.pass = **id;
    out.mode = mode->value_or(kDecode);
    out.ids = **ids;
    const auto& shape = out.ids.shape();
    if (!isInteger(out.ids.element()) || shape.size() != 3 || shape[0] != logical.layers ||
        shape[2] == 0 || shape[2] > kMostExperts)
        return refuse(out.where, concat("topk_ids_of_layer: expected whole numbers [",
                                        logical.layers, ", tokens, k], found ", out.ids.text()));
    const auto lengths = rank.torch->integers(record, "extend_seq_lens", path, shape[1]);
    if (!lengths.ok()) return lengths.status();
    if (out.mode != kExtend || !*lengths) return out;
    uint64_t left = shape[1];
    for (const int64_t length : **lengths) {
        if (length < 0 || static_cast<uint64_t>(length) > left)
            return refuse(out.where, concat("extend_seq_lens: a piece of ", length, " tokens, ",
                                            left, " are left"));
        out.pieces.push_back(static_cast<uint64_t>(length));
        left -= static_cast<uint64_t>(length);
    }
    return out;
}

/// Ids of one token in one layer, without padding.
size_t unpadded(std::span<const int64_t> row) {
    return static_cast<size_t>(
        std::count_if(row.begin(), row.end(), [](int64_t id) { return id >= 0; }));
}

/// The layers that route at all, and the number of experts of a token: both are derived from the
/// ids, since the file does not name them.
struct Found {
    std::vector<uint32_t> layers;
    uint32_t topK = 0;
};

absl::StatusOr<Found> look(const std::vector<Pass>& passes, uint32_t layers,
                           std::string_view file) {
    Found out;
    std::vector<int64_t> row;
    for (uint32_t layer = 0; layer < layers; ++layer) {
        size_t most = 0;
        for (const Pass& pass : passes) {
            row.resize(pass.width());
            for (uint64_t t = 0; t < pass.tokens(); ++t) {
                pass.ids.integers((layer * pass.tokens() + t) * pass.width(), row);
                most = std::max(most, unpadded(row));
            }
        }
        if (most == 0) continue;
        if (out.topK != 0 && out.topK != most)
            return refuse(file, concat("layer ", layer, " routes to ", most, " experts, layer ",
                                       out.layers.back(), " to ", out.topK));
        out.topK = static_cast<uint32_t>(most);
        out.layers.push_back(layer);
    }
    if (out.layers.empty()) return refuse(file, "nothing was routed in it");
    return out;
}

/// Builds requests out of passes.
class TokenWriter {
  public:
    TokenWriter(RoutingBuilder& builder, const LogicalOf& logical, const Found& found,
                std::string domain)
        : builder_(builder), logical_(logical), found_(found), domain_(std::move(domain)) {}

    absl::Status add(const Pass& pass, size_t rank) {
        uint64_t first = 0;
        for (const uint64_t tokens : pass.pieces) {
            if (absl::Status ok = piece(pass, rank, first, tokens, true); !ok.ok()) return ok;
            first += tokens;
        }
        return piece(pass, rank, first, pass.tokens() - first, pass.mode == kExtend);
    }
    uint64_t dropped() const { return dropped_; }
    bool phasesMixed() const { return phasesMixed_; }

  private:
    absl::Status piece(const Pass& pass, size_t rank, uint64_t first, uint64_t count,
                       bool prefill) {
        if (count == 0) return absl::OkStatus();
        builder_.beginRequest(concat("pass ", pass.pass, ", rank ", rank, ", token ", first),
                              domain_);
        uint64_t kept = 0;
        for (uint64_t t = first; t < first + count; ++t) {
            const auto state = token(pass, t);
            if (!state.ok()) return state.status();
            if (!*state) {
                ++dropped_;
                continue;
            }
            if (absl::Status ok = builder_.addTokens(ids_); !ok.ok())
                return refuse(pass.where, std::string(ok.message()));
            ++kept;
        }
        if (prefill)
            builder_.setPrefillTokens(kept);
        else if (pass.mode == kDecode)
            builder_.setPrefillTokens(0);
        else
            phasesMixed_ = true;
        return absl::OkStatus();
    }

    /// Fills ids_ with a token's logical ids of all routed layers; false for a padding token.
    absl::StatusOr<bool> token(const Pass& pass, uint64_t t) {
        ids_.clear();
        row_.resize(pass.width());
        size_t empty = 0;
        for (const uint32_t layer : found_.layers) {
            pass.ids.integers((layer * pass.tokens() + t) * pass.width(), row_);
            const size_t count = unpadded(row_);
            if (count == 0) ++empty;
            if (count != 0 && count != found_.topK)
                return refuse(pass.where, concat("token ", t, ", layer ", layer, ": ", count,
                                                 " experts, other tokens have ", found_.topK));
            for (const int64_t id : row_) {
                if (id >= int64_t{logical_.physical})
                    return refuse(pass.where, concat("token ", t, ", layer ", layer, ": slot ", id,
                                                     " of ", logical_.physical));
                if (id >= 0) ids_.push_back(logical_.at(layer, static_cast<uint64_t>(id)));
            }
        }
        if (empty != 0 && empty != found_.layers.size())
            return refuse(pass.where, concat("token ", t, ": routed in some MoE layers only"));
        return empty == 0;
    }

    RoutingBuilder& builder_;
    const LogicalOf& logical_;
    const Found& found_;
    std::string domain_;
    std::vector<int64_t> row_;
    std::vector<uint16_t> ids_;
    uint64_t dropped_ = 0;
    bool phasesMixed_ = false;
};

/// FNV-1a over a pass' ids: equal passes of two ranks are found by it.
uint64_t fingerprint(const Pass& pass) {
    uint64_t hash = 0xcbf29ce484222325;
    const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
    for (const uint64_t tokens : pass.pieces) mix(tokens);
    std::vector<int64_t> block(pass.width());
    for (uint64_t at = 0; at < pass.ids.size(); at += block.size()) {
        pass.ids.integers(at, block);
        for (const int64_t id : block) mix(static_cast<uint64_t>(id));
    }
    return hash;
}

struct Passes {
    std::vector<Pass> passes;
    std::vector<size_t> rank;  ///< of each
    size_t twins = 0;          ///< left out: another rank had the same
};

absl::StatusOr<Passes> passesOf(const std::vector<SglangRank>& ranks, const LogicalOf& logical) {
    Passes out;
    std::map<std::pair<int64_t, uint64_t>, size_t> seen;
    for (size_t r = 0; r < ranks.size(); ++r) {
        const auto records = recordsOf(*ranks[r].torch, *ranks[r].dict, ranks[r].name);
        if (!records.ok()) return records.status();
        uint64_t held = 0;
        for (size_t i = 0; i < records->size(); ++i) {
            auto pass = passOf(ranks[r], *(*records)[i], i, logical);
            if (!pass.ok()) return pass.status();
            if (absl::Status ok = addHeld(pass->ids, ranks[r].bytes, pass->where, held); !ok.ok())
                return ok;
            const auto [first, isNew] = seen.emplace(std::pair(pass->pass, fingerprint(*pass)), r);
            if (!isNew && first->second != r) {
                ++out.twins;
                continue;
            }
            out.passes.push_back(*std::move(pass));
            out.rank.push_back(r);
        }
    }
    return out;
}

void addNotes(const TokenWriter& writer, size_t twins, std::vector<std::string>& notes) {
    notes.push_back(kMapNote);
    notes.push_back(
        "The dump names no requests: each piece of a prefill pass is taken as one, the decode "
        "tokens "
        "of a pass as one together.");
    if (twins > 0)
        notes.push_back(concat(twins, " passes were the same on several ranks and count once."));
    if (writer.dropped() > 0)
        notes.push_back(concat(writer.dropped(), " padding tokens were left out."));
    if (writer.phasesMixed())
        notes.push_back("Passes that mix prefill and decode have tokens of unknown phase.");
}

}  // namespace

absl::StatusOr<std::vector<const PickleDict*>> recordsOf(const TorchFile& torch,
                                                         const PickleDict& dict,
                                                         std::string_view file) {
    const PickleObject* found = torch.pickle().find(dict, "records");
    const auto* list = found == nullptr ? nullptr : std::get_if<PickleList>(&found->value);
    if (list == nullptr) return refuse(file, "records: expected a list");
    std::vector<const PickleDict*> out;
    std::set<const PickleDict*> seen;
    for (size_t i = 0; i < list->items.size(); ++i) {
        out.push_back(torch.pickle().get<PickleDict>(list->items[i]));
        if (out.back() == nullptr) return refuse(file, concat("records[", i, "]: expected a dict"));
        if (!seen.insert(out.back()).second)
            return refuse(file, concat("records[", i, "]: a record that came before"));
    }
    return out;
}

absl::Status addHeld(const Tensor& tensor, uint64_t fileBytes, std::string_view where,
                     uint64_t& sum) {
    sum += tensor.size() * bytesOf(tensor.element());
    if (sum > fileBytes) return refuse(where, "records that share their numbers");
    return absl::OkStatus();
}

absl::StatusOr<Recording> readSglangTokens(const std::vector<SglangRank>& ranks, const Tensor& map,
                                           const ImportOptions& options) {
    const std::string& file = ranks.front().name;
    const auto logical = logicalOf(map, file);
    if (!logical.ok()) return logical.status();
    const auto read = passesOf(ranks, *logical);
    if (!read.ok()) return read.status();
    const auto found = look(read->passes, logical->layers, file);
    if (!found.ok()) return found.status();
    Recording out;
    if (absl::Status ok = numberLayers(logical->layers, found->layers, options, file, out);
        !ok.ok())
        return ok;
    out.shape.experts = logical->experts;
    out.shape.topK = found->topK;
    auto builder = RoutingBuilder::create(out.shape);
    if (!builder.ok()) return refuse(file, std::string(builder.status().message()));
    TokenWriter writer(*builder, *logical, *found, options.domain);
    for (size_t i = 0; i < read->passes.size(); ++i)
        if (absl::Status ok = writer.add(read->passes[i], read->rank[i]); !ok.ok()) return ok;
    auto routing = builder->finish();
    if (!routing.ok()) return refuse(file, std::string(routing.status().message()));
    out.source = concat(file, ranks.size() > 1 ? concat(" and ", ranks.size() - 1, " more") : "",
                        ", SGLang per_token dump");
    addNotes(writer, read->twins, out.notes);
    out.routing = *std::move(routing);
    return out;
}

}  // namespace bulkhead::planner
