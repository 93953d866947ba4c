// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/planner/data/model_shape.h"

namespace bulkhead::planner {

/// One request: a run of tokens, prefill first. Requests stand in the order they were recorded.
struct Request {
    std::string id;           ///< the engine's, or ""
    uint32_t domain = 0;      ///< index into Routing::domains()
    uint64_t firstToken = 0;  ///< in Routing
    uint64_t tokens = 0;
    /// The first so many are prompt, the others generated; nullopt: the recording does not say.
    std::optional<uint64_t> prefillTokens;
    bool operator==(const Request&) const = default;
};

/// Experts that every token chose in every MoE layer: logical ids, exactly top-k different ones.
/// Stored by layer, [layer][token][k], in one byte an id where experts <= 256 and two otherwise:
/// 1 M tokens x 58 layers x 8 of 256 experts take 464 MB. A solver copies a layer out with
/// readLayer() and lays it out as it needs it.
/// Immutable once built (RoutingBuilder); any number of threads may read.
class Routing {
  public:
    const ModelShape& shape() const { return shape_; }
    uint64_t tokens() const { return tokens_; }
    const std::vector<Request>& requests() const { return requests_; }
    /// Names; at least one when there is a request ("" for a recording without domains).
    const std::vector<std::string>& domains() const { return domains_; }

    /// The k-th expert of a token. For single looks; loops use readLayer.
    uint16_t expert(uint32_t layer, uint64_t token, uint32_t k) const;

    /// Copies the ids of tokens [firstToken, firstToken + out.size() / topK) as [token][k].
    /// out.size() is a multiple of topK and the range lies within tokens().
    void readLayer(uint32_t layer, uint64_t firstToken, std::span<uint16_t> out) const;

    /// Replaces what a shape says beyond its sizes (name, widths, layer numbers, router groups);
    /// InvalidArgument when layers, experts or top-k differ or the rest does not fit them. To be
    /// called before the routing is shared.
    [[nodiscard]] absl::Status describe(ModelShape shape);

    /// Bytes held for ids.
    uint64_t bytes() const;

  private:
    friend class RoutingBuilder;
    ModelShape shape_;
    uint64_t tokens_ = 0;
    std::vector<Request> requests_;
    std::vector<std::string> domains_;
    std::vector<std::vector<uint8_t>> narrow_;  ///< [layer]; used when experts <= 256
    std::vector<std::vector<uint16_t>> wide_;   ///< [layer]; used otherwise
};

/// Builds a Routing request by request: beginRequest, then the request's tokens either token by
/// token (addTokens) or layer by layer (addLayer for every layer), then the next. Thread: one.
class RoutingBuilder {
  public:
    /// InvalidArgument (naming the number) unless 1 <= topK <= experts <= 65,536, layers >= 1,
    /// layerNumbers is empty or as long as layers, and router groups divide experts.
    [[nodiscard]] static absl::StatusOr<RoutingBuilder> create(ModelShape shape);

    const ModelShape& shape() const { return made_.shape_; }
    void reserve(uint64_t tokens);

    /// `domain` by name; a name not seen before becomes the next domain.
    void beginRequest(std::string_view id, std::string_view domain);

    /// ids [token][layer][k]. InvalidArgument naming token of the request, layer and k when an id
    /// is not below `experts` or a token has one expert twice; nothing of the call is then kept.
    [[nodiscard]] absl::Status addTokens(std::span<const uint16_t> ids);

    /// ids [token][k] of one layer, with the same refusals. A request's layers must in the end have
    /// equally many tokens; the next beginRequest or finish() says when they have not.
    [[nodiscard]] absl::Status addLayer(uint32_t layer, std::span<const uint16_t> ids);

    /// Sets how many tokens of the open request belong to its prompt.
    void setPrefillTokens(uint64_t tokens);

    /// InvalidArgument when layers of a request differ in tokens, when more tokens are said to be
    /// prompt than the request has, or when there is no token. A request without tokens is left
    /// out.
    [[nodiscard]] absl::StatusOr<Routing> finish();

  private:
    explicit RoutingBuilder(ModelShape shape);
    uint64_t layerTokens(uint32_t layer) const;
    absl::Status check(std::span<const uint16_t> row, uint64_t token, uint32_t layer) const;
    void append(uint32_t layer, std::span<const uint16_t> ids);
    void closeRequest();

    Routing made_;
    absl::Status firstError_;
    bool open_ = false;
};

}  // namespace bulkhead::planner
