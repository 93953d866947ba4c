// SPDX-License-Identifier: Apache-2.0
#include "backend/interchange/state_plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace bulkhead::interchange {
namespace {

using runtime::TensorPart;
using runtime::TensorTable;
using Box = TensorPart::Box;
using Piece = StateTensor::Piece;

constexpr const char* kAlone = "; --shard N exports what one shard holds, as it holds it";

/// The dimensions that boxes are of.
std::vector<uint64_t> dimensionsOf(const StateTensor& tensor, const Box& box) {
    if (!box.flat) return tensor.shape;
    return {tensor.bytes() / runtime::elementBytes(tensor.dtype)};
}

std::string sizesOf(const std::vector<uint64_t>& shape) {
    return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

bool isEmpty(const Box& box) {
    return std::find(box.extent.begin(), box.extent.end(), 0u) != box.extent.end();
}

bool overlap(const Box& a, const Box& b) {
    for (size_t i = 0; i < a.begin.size(); ++i)
        if (a.begin[i] >= b.begin[i] + b.extent[i] || b.begin[i] >= a.begin[i] + a.extent[i])
            return false;
    return !isEmpty(a) && !isEmpty(b);
}

/// Several shards may hold the same box; two that share elements otherwise would leave open which
/// of them counts.
std::string problemOf(const StateTensor& tensor) {
    std::vector<const Box*> boxes;
    uint64_t covered = 0;
    for (const Piece& piece : tensor.pieces) {
        if (piece.box.flat != tensor.pieces[0].box.flat) return "is cut in two ways";
        const bool known = std::any_of(boxes.begin(), boxes.end(),
                                       [&](const Box* box) { return *box == piece.box; });
        if (known) continue;
        for (const Box* box : boxes)
            if (overlap(*box, piece.box)) return "has parts that overlap";
        boxes.push_back(&piece.box);
        covered += tensor.bytesOf(piece);
    }
    if (covered == tensor.bytes()) return {};
    return absl::StrCat("has parts of ", covered, " bytes, expected its ", tensor.bytes());
}

struct Joining {
    StateTensor tensor;
    bool boxed = false;
    std::string unknownLayout;
};

absl::Status addPart(const TensorPart& part, size_t shard, const std::string& where,
                     Joining& into) {
    StateTensor& tensor = into.tensor;
    const bool first = tensor.pieces.empty();
    if (first) {
        tensor = {part.name, part.kind, part.path, part.dtype, part.shape, {}, false};
        into.boxed = part.box.has_value();
    }
    if (!part.unknownLayout.empty()) into.unknownLayout = part.unknownLayout;
    const bool same = tensor.kind == part.kind && tensor.dtype == part.dtype &&
                      tensor.path == part.path && into.boxed == part.box.has_value();
    if (!same)
        return absl::DataLossError(absl::StrCat(where, ": ", part.name,
                                                " is another tensor in shard ", shard,
                                                " than in shard ", tensor.pieces[0].shard));
    if (tensor.shape != part.shape && into.unknownLayout.empty())
        return absl::FailedPreconditionError(absl::StrCat(
            where, ": ", part.name, " has shape ", sizesOf(part.shape), " in shard ", shard,
            " and ", sizesOf(tensor.shape), " in shard ", tensor.pieces[0].shard,
            ": how these make one tensor is not known", kAlone));
    const Box whole{false, std::vector<uint64_t>(part.shape.size()), part.shape};
    tensor.pieces.push_back({shard, part.offset, part.box.value_or(whole)});
    return absl::OkStatus();
}

absl::Status check(const Joining& joined, size_t shards, const std::string& where) {
    const StateTensor& tensor = joined.tensor;
    if (!joined.unknownLayout.empty() && shards > 1)
        return absl::FailedPreconditionError(absl::StrCat(
            where, ": ", tensor.name, " lies on its ", shards, " ranks as ", joined.unknownLayout,
            ": how these make one tensor is not known here", kAlone));
    if (!joined.boxed) return absl::OkStatus();
    const std::string problem = problemOf(tensor);
    return problem.empty()
               ? absl::OkStatus()
               : absl::DataLossError(absl::StrCat(where, ": ", tensor.name, " ", problem));
}

/// Calls visit(in the whole, in the piece, bytes) for each run of bytes that is one in both.
template <class Visit>
void forRuns(const StateTensor& tensor, const Box& box, Visit&& visit) {
    if (isEmpty(box)) return;
    const std::vector<uint64_t> whole = dimensionsOf(tensor, box);
    uint64_t run = runtime::elementBytes(tensor.dtype);
    // Trailing dimensions that are there in full are one run with the one before them.
    size_t outer = whole.size();
    while (outer > 0) {
        run *= box.extent[--outer];
        if (box.extent[outer] != whole[outer]) break;
    }
    std::vector<uint64_t> at(outer);
    const uint64_t element = runtime::elementBytes(tensor.dtype);
    for (uint64_t in = 0;; in += run) {
        uint64_t place = 0;
        for (size_t i = 0; i < whole.size(); ++i)
            place = place * whole[i] + box.begin[i] + (i < outer ? at[i] : 0);
        visit(place * element, in, run);
        size_t i = outer;
        while (i > 0 && ++at[i - 1] == box.extent[i - 1]) at[--i] = 0;
        if (i == 0) return;
    }
}

}  // namespace

absl::StatusOr<StatePlan> joinTables(const std::vector<TensorTable>& tables,
                                     const std::string& where) {
    StatePlan plan;
    std::vector<Joining> joined;
    std::map<std::string, size_t> places;
    for (size_t shard = 0; shard < tables.size(); ++shard) {
        plan.stateBytes.push_back(tables[shard].stateBytes);
        for (const TensorPart& part : tables[shard].tensors) {
            const auto [place, fresh] = places.try_emplace(part.name, joined.size());
            if (fresh) joined.emplace_back();
            if (absl::Status s = addPart(part, shard, where, joined[place->second]); !s.ok())
                return s;
        }
        for (const auto& alias : tables[shard].aliases)
            if (std::find(plan.aliases.begin(), plan.aliases.end(), alias) == plan.aliases.end())
                plan.aliases.push_back(alias);
    }
    for (Joining& one : joined) {
        if (absl::Status s = check(one, tables.size(), where); !s.ok()) return s;
        one.tensor.copies = !one.boxed && one.tensor.pieces.size() > 1;
        plan.tensors.push_back(std::move(one.tensor));
    }
    if (!tables.empty()) {
        plan.model = tables[0].model;
        plan.constants = tables[0].constants;
    }
    return plan;
}

TensorTable asAlone(TensorTable table) {
    for (TensorPart& part : table.tensors) {
        if (part.box) part.shape = part.box->extent;
        part.box.reset();
        part.unknownLayout.clear();
    }
    return table;
}

void takeFromPiece(const StateTensor& tensor, const Piece& piece, std::span<const std::byte> from,
                   std::span<std::byte> whole) {
    forRuns(tensor, piece.box, [&](uint64_t at, uint64_t in, uint64_t bytes) {
        std::memcpy(whole.data() + at, from.data() + in, bytes);
    });
}

void putIntoPiece(const StateTensor& tensor, const Piece& piece, std::span<const std::byte> whole,
                  std::span<std::byte> to) {
    forRuns(tensor, piece.box, [&](uint64_t at, uint64_t in, uint64_t bytes) {
        std::memcpy(to.data() + in, whole.data() + at, bytes);
    });
}

}  // namespace bulkhead::interchange
