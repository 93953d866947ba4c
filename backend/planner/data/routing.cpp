// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/data/routing.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "backend/model/names.h"

namespace bulkhead::planner {
namespace {

using model::concat;

constexpr uint32_t kNarrowExperts = 256;

}  // namespace

uint16_t Routing::expert(uint32_t layer, uint64_t token, uint32_t k) const {
    const uint64_t at = token * shape_.topK + k;
    return narrow_.empty() ? wide_[layer][at] : narrow_[layer][at];
}

void Routing::readLayer(uint32_t layer, uint64_t firstToken, std::span<uint16_t> out) const {
    const auto at = static_cast<std::ptrdiff_t>(firstToken * shape_.topK);
    assert(out.size() % shape_.topK == 0 && firstToken + out.size() / shape_.topK <= tokens_);
    if (narrow_.empty())
        std::copy_n(wide_[layer].begin() + at, out.size(), out.begin());
    else
        std::copy_n(narrow_[layer].begin() + at, out.size(), out.begin());
}

absl::Status Routing::describe(ModelShape shape) {
    if (absl::Status valid = checkShape(shape); !valid.ok()) return valid;
    if (shape.layers != shape_.layers || shape.experts != shape_.experts ||
        shape.topK != shape_.topK)
        return absl::InvalidArgumentError(concat(
            "routing of ", shape_.layers, " x ", shape_.experts, ", top ", shape_.topK,
            " cannot be described as ", shape.layers, " x ", shape.experts, ", top ", shape.topK));
    shape_ = std::move(shape);
    return absl::OkStatus();
}

uint64_t Routing::bytes() const {
    return tokens_ * shape_.topK * shape_.layers * (narrow_.empty() ? 2 : 1);
}

absl::StatusOr<RoutingBuilder> RoutingBuilder::create(ModelShape shape) {
    if (absl::Status valid = checkShape(shape); !valid.ok()) return valid;
    return RoutingBuilder(std::move(shape));
}

RoutingBuilder::RoutingBuilder(ModelShape shape) {
    if (shape.experts <= kNarrowExperts)
        made_.narrow_.resize(shape.layers);
    else
        made_.wide_.resize(shape.layers);
    made_.shape_ = std::move(shape);
}

void RoutingBuilder::reserve(uint64_t tokens) {
    for (auto& layer : made_.narrow_) layer.reserve(tokens * made_.shape_.topK);
    for (auto& layer : made_.wide_) layer.reserve(tokens * made_.shape_.topK);
}

void RoutingBuilder::beginRequest(std::string_view id, std::string_view domain) {
    closeRequest();
    auto& domains = made_.domains_;
    auto found = std::find(domains.begin(), domains.end(), domain);
    if (found == domains.end()) found = domains.emplace(domains.end(), domain);
    made_.requests_.push_back({.id = std::string(id),
                               .domain = static_cast<uint32_t>(found - domains.begin()),
                               .firstToken = made_.tokens_,
                               .tokens = 0,
                               .prefillTokens = std::nullopt});
    open_ = true;
}

void RoutingBuilder::setPrefillTokens(uint64_t tokens) {
    assert(open_);
    made_.requests_.back().prefillTokens = tokens;
}

uint64_t RoutingBuilder::layerTokens(uint32_t layer) const {
    const size_t ids =
        made_.narrow_.empty() ? made_.wide_[layer].size() : made_.narrow_[layer].size();
    return ids / made_.shape_.topK - made_.tokens_;
}

absl::Status RoutingBuilder::check(std::span<const uint16_t> row, uint64_t token,
                                   uint32_t layer) const {
    const Request& request = made_.requests_.back();
    const auto refuse = [&](const auto&... words) {
        return absl::InvalidArgumentError(
            concat("request ", made_.requests_.size() - 1,
                   request.id.empty() ? "" : concat(" (", request.id, ")"), ", token ", token,
                   ", layer ", layer, ": ", words...));
    };
    for (size_t k = 0; k < row.size(); ++k) {
        if (row[k] >= made_.shape_.experts)
            return refuse("expert ", row[k], " of ", made_.shape_.experts);
        for (size_t j = 0; j < k; ++j)
            if (row[j] == row[k]) return refuse("expert ", row[k], " twice");
    }
    return absl::OkStatus();
}

void RoutingBuilder::append(uint32_t layer, std::span<const uint16_t> ids) {
    if (made_.narrow_.empty()) {
        made_.wide_[layer].insert(made_.wide_[layer].end(), ids.begin(), ids.end());
    } else {
        std::vector<uint8_t>& to = made_.narrow_[layer];
        const size_t old = to.size();
        to.resize(old + ids.size());
        for (size_t i = 0; i < ids.size(); ++i) to[old + i] = static_cast<uint8_t>(ids[i]);
    }
}

absl::Status RoutingBuilder::addTokens(std::span<const uint16_t> ids) {
    assert(open_);
    const uint32_t k = made_.shape_.topK;
    const uint32_t layers = made_.shape_.layers;
    const size_t rows = ids.size() / k;
    if (ids.size() % (size_t{k} * layers) != 0)
        return absl::InvalidArgumentError(
            concat("request ", made_.requests_.size() - 1, ": ", ids.size(),
                   " expert ids are no whole number of tokens of ", layers, " layers x ", k));
    for (size_t row = 0; row < rows; ++row)
        if (absl::Status ok = check(ids.subspan(row * k, k), layerTokens(0) + row / layers,
                                    static_cast<uint32_t>(row % layers));
            !ok.ok())
            return ok;
    for (size_t row = 0; row < rows; ++row)
        append(static_cast<uint32_t>(row % layers), ids.subspan(row * k, k));
    return absl::OkStatus();
}

absl::Status RoutingBuilder::addLayer(uint32_t layer, std::span<const uint16_t> ids) {
    assert(open_ && layer < made_.shape_.layers);
    const uint32_t k = made_.shape_.topK;
    if (ids.size() % k != 0)
        return absl::InvalidArgumentError(
            concat("request ", made_.requests_.size() - 1, ", layer ", layer, ": ", ids.size(),
                   " expert ids are no whole number of tokens of ", k));
    for (size_t row = 0; row < ids.size() / k; ++row)
        if (absl::Status ok = check(ids.subspan(row * k, k), layerTokens(layer) + row, layer);
            !ok.ok())
            return ok;
    append(layer, ids);
    return absl::OkStatus();
}

void RoutingBuilder::closeRequest() {
    if (!open_) return;
    open_ = false;
    Request& request = made_.requests_.back();
    request.tokens = layerTokens(0);
    for (uint32_t layer = 1; layer < made_.shape_.layers && firstError_.ok(); ++layer)
        if (layerTokens(layer) != request.tokens)
            firstError_ = absl::InvalidArgumentError(
                concat("request ", made_.requests_.size() - 1, ": layer ", layer, " has ",
                       layerTokens(layer), " tokens, layer 0 has ", request.tokens));
    if (request.prefillTokens && *request.prefillTokens > request.tokens && firstError_.ok())
        firstError_ = absl::InvalidArgumentError(
            concat("request ", made_.requests_.size() - 1, ": ", *request.prefillTokens,
                   " prompt tokens of ", request.tokens, " in all"));
    made_.tokens_ += request.tokens;
    if (request.tokens == 0) made_.requests_.pop_back();
}

absl::StatusOr<Routing> RoutingBuilder::finish() {
    closeRequest();
    if (!firstError_.ok()) return firstError_;
    if (made_.tokens_ == 0) return absl::InvalidArgumentError("there is no token in it");
    return std::move(made_);
}

}  // namespace bulkhead::planner
