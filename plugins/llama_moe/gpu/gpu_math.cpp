// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/gpu/gpu_math.h"

#include <algorithm>
#include <numeric>

#include "bulkhead/data_plane.h"
#include "bulkhead/state_hash.h"
#include "plugins/llama_moe/gpu/grid.h"

namespace bulkhead::llama_moe {

GpuMath::~GpuMath() {
    if (machine_ == nullptr) return;
    (void)finish();  // nothing may still use the memory that goes now
    api_->close(machine_);
}

void GpuMath::product(const Product<Bf16>& p) {
    if (p.m == 0 || p.n == 0) return;
    const gpu::MatrixProduct product{p.turnA == Turn::kYes,
                                     p.turnB == Turn::kYes,
                                     p.wide,
                                     p.m,
                                     p.n,
                                     p.k,
                                     p.a,
                                     p.lda,
                                     p.b,
                                     p.ldb,
                                     p.c,
                                     p.ldc,
                                     p.alpha,
                                     p.beta};
    api_->product(machine_, &product);
}

absl::Status GpuMath::check() {
    if (machine_ == nullptr) return absl::OkStatus();
    return fromDevice(api_->check(machine_), "computing");
}

void GpuMath::normForward(const float* x, const Bf16* gain, Bf16* y, float* scale, float* same,
                          size_t rows, size_t dim, float epsilon) {
    launch(gpu::NormForward{x, gain, y, scale, same, rows, dim, epsilon}, blocksOfRows(rows));
}

void GpuMath::normBackward(const float* dy, const float* x, const Bf16* gain, const float* scale,
                           float* dx, Bf16* rounded, float* dGain, size_t rows, size_t dim) {
    if (rows == 0) return;
    const size_t parts = std::min(rows, kParts);
    launch(gpu::NormBackward{dy, x, gain, scale, dx, rounded, parts_.data(), rows, dim}, parts);
    launch(gpu::ColumnSums{parts_.data(), dGain, parts, dim},
           (dim + gpu::ColumnSums::kColumns - 1) / gpu::ColumnSums::kColumns);
}

void GpuMath::swigluForward(const Bf16* h, Bf16* act, size_t rows, size_t hidden) {
    launch(gpu::SwigluForward{h, act, rows, hidden}, blocksOfElements(rows * hidden / 2));
}

void GpuMath::swigluBackward(Bf16* h, const Bf16* dAct, size_t rows, size_t hidden) {
    launch(gpu::SwigluBackward{h, dAct, rows, hidden}, blocksOfElements(rows * hidden / 2));
}

void GpuMath::route(const float* logits, const Bf16* balance, int32_t* chosen, float* gates,
                    size_t rows, size_t experts, size_t k) {
    launch(gpu::Route{logits, balance, chosen, gates, rows, static_cast<uint32_t>(experts),
                      static_cast<uint32_t>(k)},
           blocksOfElements(rows));
}

void GpuMath::sortByExpert(const int32_t* chosen, int32_t* place, int32_t* starts, size_t choices,
                           size_t experts) {
    const size_t stretches = std::max<size_t>(blocksOfThreads(choices), 1);
    const size_t stretch = (choices + stretches - 1) / stretches;
    const auto count = static_cast<uint32_t>(experts);
    launch(gpu::CountChoices{chosen, choiceCounts_.data(), choices, stretch, count}, stretches);
    launch(gpu::PlaceChoices{chosen, choiceCounts_.data(), place, starts, choices, stretch, count},
           stretches);
}

namespace {

gpu::RowGroups groupsOf(const Groups& groups) {
    return {groups.starts, static_cast<uint32_t>(groups.count), groups.rows};
}

}  // namespace

void GpuMath::multiplyGroups(const Groups& groups, const Bf16* x, const GroupWeights<Bf16>& w,
                             Bf16* y) {
    if (groups.count == 0 || groups.rows == 0) return;
    const gpu::MultiplyGroups body{{x, w.first, y, groupsOf(groups), w.apart,
                                    static_cast<uint32_t>(w.out), static_cast<uint32_t>(w.in)}};
    launch(body, body.jobs());
}

void GpuMath::multiplyGroupsBack(const Groups& groups, const Bf16* x, const Bf16* dy,
                                 const GroupWeights<Bf16>& w, float* dw, Bf16* dx) {
    if (groups.count == 0 || groups.rows == 0) return;
    const auto in = static_cast<uint32_t>(w.in), out = static_cast<uint32_t>(w.out);
    const gpu::MultiplyGroupsBack body{{dy, w.first, dx, groupsOf(groups), w.apart, in, out},
                                       {x, dy, dw, groupsOf(groups), w.apart, in, out}};
    launch(body, body.jobs());
}

void GpuMath::spread(const Bf16* from, const int32_t* place, const float* gates, Bf16* to,
                     size_t rows, size_t k, size_t dim) {
    launch(gpu::Spread{from, place, gates, to, rows * k, dim, static_cast<uint32_t>(k)},
           blocksOfElements(rows * k * dim / 2));
}

void GpuMath::collect(const Bf16* from, const int32_t* place, float* to, size_t rows, size_t k,
                      size_t dim) {
    launch(gpu::Collect{from, place, to, rows, dim, static_cast<uint32_t>(k)}, blocksOfRows(rows));
}

void GpuMath::routeBackward(const Bf16* dSpread, const int32_t* place, const Bf16* normed,
                            const int32_t* chosen, const float* gates, Bf16* dLogits,
                            float* dNormed, size_t rows, size_t experts, size_t k, size_t dim) {
    launch(gpu::RouteBackward{dSpread, place, normed, chosen, gates, dLogits, dNormed, rows, dim,
                              static_cast<uint32_t>(experts), static_cast<uint32_t>(k)},
           blocksOfRows(rows));
}

void GpuMath::addSurplus(const int32_t* chosen, float* surplus, size_t choices, size_t experts) {
    launch(gpu::AddSurplus{chosen, surplus, choices, static_cast<uint32_t>(experts)},
           blocksOfRows(experts));
}

void GpuMath::embed(const Bf16* table, const int32_t* tokens, float* out, size_t rows, size_t dim) {
    launch(gpu::Embed{table, tokens, out, rows, dim}, blocksOfRows(rows));
}

void GpuMath::embedBackward(const float* dOut, const int32_t* order, const int32_t* starts,
                            float* dTable, size_t dim) {
    launch(gpu::EmbedBackward{dOut, order, starts, dTable, dim, kVocabulary}, kVocabulary);
}

void GpuMath::crossEntropy(float* logits, const int32_t* targets, double* loss, Bf16* dLogits,
                           size_t rows, size_t classes) {
    launch(gpu::CrossEntropy{logits, targets, loss, dLogits, rows, classes}, blocksOfRows(rows));
}

void GpuMath::add(float* to, const float* from, size_t count) {
    launch(gpu::Add{to, from, count}, blocksOfElements(count));
}

void GpuMath::narrow(const float* from, Bf16* to, size_t count) {
    launch(gpu::Narrow{from, to, count}, blocksOfElements(count));
}

absl::Status GpuMath::useLayout(const Layout& layout) {
    if (layout.segments() == segments_) return absl::OkStatus();
    std::vector<gpu::Stretch> cut;
    for (const Segment& segment : layout.segments())
        for (size_t at = segment.begin; at < segment.end; at += gpu::kStretch)
            cut.push_back({at, std::min<size_t>(segment.end - at, gpu::kStretch),
                           segment.kind == TensorKind::kPadding   ? gpu::Treated::kNot
                           : segment.kind == TensorKind::kBalance ? gpu::Treated::kBalance
                           : segment.kind == TensorKind::kMatrix  ? gpu::Treated::kDecaying
                                                                  : gpu::Treated::kPlain});
    segments_.clear();                   // should what follows fail
    BULKHEAD_RETURN_IF_ERROR(finish());  // nothing may still read the stretches of before
    BULKHEAD_RETURN_IF_ERROR(stretches_.reserve(device(), cut.size()));
    copy(stretches_.data(), cut.data(), cut.size());
    BULKHEAD_RETURN_IF_ERROR(finish());
    stretchCount_ = cut.size();
    segments_ = layout.segments();
    return absl::OkStatus();
}

absl::Status GpuMath::adamW(const AdamW<float>& rule, const Layout& layout, const float* reduced,
                            const StateRuns<float>& state, Bf16* image) {
    BULKHEAD_RETURN_IF_ERROR(useLayout(layout));
    launch(gpu::Update{stretches_.data(), stretchCount_, reduced, state.parameters, state.first,
                       state.second, image, rule.beta1, 1.0f - rule.beta1, rule.beta2,
                       1.0f - rule.beta2, rule.epsilon, rule.weightDecay, rule.learningRate,
                       rule.gradientScale, rule.correction1, rule.correction2, rule.balanceRate},
           blocksOfRows(stretchCount_));
    return absl::OkStatus();
}

absl::StatusOr<double> GpuMath::sumOfSquares(const Layout& layout, const float* reduced) {
    BULKHEAD_RETURN_IF_ERROR(useLayout(layout));
    launch(gpu::SquareSums{stretches_.data(), stretchCount_, reduced, squares_.data()}, kParts);
    copy(squaresOnHost_.data(), squares_.data(), kParts);
    BULKHEAD_RETURN_IF_ERROR(finish());
    return std::accumulate(squaresOnHost_.data(), squaresOnHost_.data() + kParts, 0.0);
}

absl::StatusOr<uint64_t> GpuMath::stateHash(const void* state, size_t bytes) {
    static_assert(gpu::kHashedPiece == BULKHEAD_STATE_PIECE);
    const char* from = static_cast<const char*>(state);
    const size_t whole = bytes / BULKHEAD_STATE_PIECE, rest = bytes % BULKHEAD_STATE_PIECE;
    BULKHEAD_RETURN_IF_ERROR(pieceSums_.reserve(device(), whole * gpu::kPairs));
    BULKHEAD_RETURN_IF_ERROR(pieceHashes_.reserve(device(), whole));
    BULKHEAD_RETURN_IF_ERROR(pieceHashesOnHost_.reserve(device(), whole + 1));
    BULKHEAD_RETURN_IF_ERROR(lastPiece_.reserve(device(), BULKHEAD_STATE_PIECE));
    launch(gpu::PieceSums{from, pieceSums_.data(), whole}, blocksOfThreads(whole * gpu::kPairs));
    launch(gpu::PieceHashes{pieceSums_.data(), pieceHashes_.data(), whole}, blocksOfThreads(whole));
    uint64_t* hashes = pieceHashesOnHost_.data();
    copy(hashes, pieceHashes_.data(), whole);
    copy(lastPiece_.data(), from + (bytes - rest), rest);
    BULKHEAD_RETURN_IF_ERROR(finish());
    if (rest > 0) hashes[whole] = XXH3_64bits(lastPiece_.data(), rest);
    return XXH3_64bits(hashes, (whole + (rest > 0)) * sizeof(uint64_t));
}

void GpuMath::besideExchange(bool may) {
    api_->spare(machine_, may ? BULKHEAD_EXCHANGE_PROCESSORS : 0);
}

}  // namespace bulkhead::llama_moe
