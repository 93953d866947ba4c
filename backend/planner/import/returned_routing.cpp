// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/returned_routing.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "backend/model/names.h"
#include "backend/planner/import/layers.h"
#include "backend/planner/import/refusal.h"
#include "backend/planner/import/routed_array.h"

namespace bulkhead::planner {
namespace {

using model::concat;

constexpr uint64_t kMostAnswered = uint64_t{1} << 32;

/// One request as it was answered.
struct Answer {
    std::string where, id, domain;
    RoutedArray routed;
    std::optional<uint64_t> prompt;  ///< number of rows that belong to the prompt
};

/// A token's experts in one layer are all there and different.
bool isRow(std::span<const int32_t> row) {
    for (size_t i = 0; i < row.size(); ++i) {
        if (row[i] < 0) return false;
        for (size_t j = 0; j < i; ++j)
            if (row[i] == row[j]) return false;
    }
    return true;
}

std::span<const int32_t> rowOf(const RoutedArray& array, uint64_t token, uint64_t layer) {
    return std::span(array.ids).subspan((token * array.layers + layer) * array.k, array.k);
}

class ResponseReader {
  public:
    ResponseReader(std::string_view source, const ImportOptions& options)
        : source_(source), options_(options) {}

    absl::Status add(const Json& json, const std::string& where) {
        const std::string place = where.empty() ? source_ : concat(source_, ": ", where);
        JsonFields fields(place);
        Answer answer;
        answer.where = place;
        if (has(json, "id")) answer.id = fields.text(json, "id", "");
        answer.domain = has(json, "domain") ? fields.text(json, "domain", "") : options_.domain;
        if (!fields.ok()) return fields.status();
        const bool isVllm = has(json, "prompt_routed_experts");
        if (!isVllm && has(json, "meta_info")) return addSglang(json["meta_info"], answer);
        if (!has(json, "choices") || !json["choices"].is_array())
            return refuse(place, "expected choices or meta_info with routed_experts");
        return addChoices(json, std::move(answer));
    }

    absl::StatusOr<Recording> finish();

  private:
    absl::Status addSglang(const Json& info, Answer answer) {
        JsonFields fields(answer.where);
        if (!has(info, "routed_experts"))
            return refuse(answer.where,
                          "meta_info.routed_experts: expected base64, found nothing; "
                          "start the server with --enable-return-routed-experts");
        const uint64_t prompt = fields.count(info, "prompt_tokens", "meta_info", 0, kMostAnswered);
        const uint64_t made =
            fields.count(info, "completion_tokens", "meta_info", 0, kMostAnswered);
        if (answer.id.empty() && has(info, "id")) answer.id = fields.text(info, "id", "meta_info");
        if (!fields.ok()) return fields.status();
        const uint64_t rows = prompt + made - (prompt + made > 0 ? 1 : 0);
        return addWhole(info["routed_experts"], rows, prompt, std::move(answer));
    }

    /// An array over prompt and generated tokens together.
    absl::Status addWhole(const Json& array, uint64_t rows, uint64_t prompt, Answer answer) {
        auto routed = routedArray(array, {rows, options_.model ? options_.model->topK : 0},
                                  concat(answer.where, ": routed_experts"));
        if (!routed.ok()) return routed.status();
        if (routed->tokens < prompt)
            return refuse(answer.where, concat("routed_experts: ", routed->tokens,
                                               " rows for a prompt of ", prompt));
        answer.routed = *std::move(routed);
        answer.prompt = prompt;
        return keep(std::move(answer));
    }

    absl::Status addChoices(const Json& json, Answer answer) {
        RoutedArray prompt;
        if (has(json, "prompt_routed_experts")) {
            auto routed = routedArray(json["prompt_routed_experts"], {},
                                      concat(answer.where, ": prompt_routed_experts"));
            if (!routed.ok()) return routed.status();
            prompt = *std::move(routed);
        }
        const Json& choices = json["choices"];
        for (size_t i = 0; i < choices.size(); ++i) {
            const std::string place = concat(answer.where, ": choices[", i, "]");
            const Json& choice = choices[i];
            Answer one{place,
                       choices.size() > 1 ? concat(answer.id, "#", i) : answer.id,
                       answer.domain,
                       {},
                       std::nullopt};
            const bool sglang = has(choice, "meta_info") || has(json, "sglext");
            if (sglang) {
                if (absl::Status ok = addSglang(sglangInfo(json, choice), std::move(one)); !ok.ok())
                    return ok;
                continue;
            }
            if (absl::Status ok = addVllm(json, choice, i == 0 ? prompt : RoutedArray{}, one);
                !ok.ok())
                return ok;
        }
        return absl::OkStatus();
    }

    /// meta_info of a choice, or what the OpenAI form says in "sglext" and "usage".
    Json sglangInfo(const Json& json, const Json& choice) const {
        if (has(choice, "meta_info")) {
            Json info = choice["meta_info"];
            for (const char* key : {"prompt_tokens", "completion_tokens"})
                if (info.is_object() && !has(info, key) && has(json, "usage") &&
                    has(json["usage"], key))
                    info[key] = json["usage"][key];
            return info;
        }
        Json info = has(json, "usage") ? json["usage"] : Json::object();
        if (info.is_object() && has(json["sglext"], "routed_experts"))
            info["routed_experts"] = json["sglext"]["routed_experts"];
        return info;
    }

    absl::Status addVllm(const Json& json, const Json& choice, RoutedArray prompt, Answer answer) {
        const bool generated = has(choice, "routed_experts");
        if (!generated && prompt.tokens == 0)
            return refuse(answer.where,
                          "routed_experts: nothing; start the server with "
                          "--enable-return-routed-experts");
        if (generated && !has(json, "prompt_routed_experts") && has(json, "usage")) {
            JsonFields fields(answer.where);
            const Json& usage = json["usage"];
            const uint64_t tokens = fields.count(usage, "prompt_tokens", "usage", 0, kMostAnswered);
            if (!fields.ok()) return fields.status();
            return addWhole(choice["routed_experts"], 0, tokens, std::move(answer));
        }
        RoutedArray made;
        if (generated) {
            auto routed =
                routedArray(choice["routed_experts"], {}, concat(answer.where, ": routed_experts"));
            if (!routed.ok()) return routed.status();
            made = *std::move(routed);
        }
        answer.prompt = prompt.tokens;
        if (prompt.tokens == 0) {
            answer.routed = std::move(made);
        } else {
            if (made.tokens > 0 && (made.layers != prompt.layers || made.k != prompt.k))
                return refuse(answer.where, "routed_experts: other layers or k than the prompt's");
            answer.routed = std::move(prompt);
            answer.routed.tokens += made.tokens;
            answer.routed.ids.insert(answer.routed.ids.end(), made.ids.begin(), made.ids.end());
        }
        return keep(std::move(answer));
    }

    absl::Status keep(Answer answer) {
        if (answer.routed.tokens == 0) return absl::OkStatus();
        const RoutedArray& first = answers_.empty() ? answer.routed : answers_[0].routed;
        if (answer.routed.layers != first.layers || answer.routed.k != first.k)
            return refuse(answer.where,
                          concat(answer.routed.layers, " layers x ", answer.routed.k,
                                 ", other responses have ", first.layers, " x ", first.k));
        answers_.push_back(std::move(answer));
        return absl::OkStatus();
    }

    std::vector<uint32_t> routedLayers() const;
    absl::Status write(const Answer& answer, const std::vector<uint32_t>& layers,
                       RoutingBuilder& builder);

    std::string source_;
    const ImportOptions& options_;
    std::vector<Answer> answers_;
    uint64_t dropped_ = 0;
};

/// Layers in which any token has k different experts; the others are dense.
std::vector<uint32_t> ResponseReader::routedLayers() const {
    std::vector<uint32_t> out;
    for (uint32_t layer = 0; layer < answers_[0].routed.layers; ++layer) {
        const bool any = std::any_of(answers_.begin(), answers_.end(), [&](const Answer& answer) {
            for (uint64_t t = 0; t < answer.routed.tokens; ++t)
                if (isRow(rowOf(answer.routed, t, layer))) return true;
            return false;
        });
        if (any) out.push_back(layer);
    }
    return out;
}

absl::Status ResponseReader::write(const Answer& answer, const std::vector<uint32_t>& layers,
                                   RoutingBuilder& builder) {
    builder.beginRequest(answer.id, answer.domain);
    std::vector<uint16_t> ids;
    uint64_t prompt = 0;
    for (uint64_t t = 0; t < answer.routed.tokens; ++t) {
        ids.clear();
        size_t missing = 0;
        for (const uint32_t layer : layers) {
            const auto row = rowOf(answer.routed, t, layer);
            if (!isRow(row)) ++missing;
            for (const int32_t id : row) {
                if (id >= static_cast<int32_t>(builder.shape().experts))
                    return refuse(answer.where,
                                  concat("token ", t, ", layer ", layer, ": expert ", id,
                                         ", expected 0 to ", builder.shape().experts - 1));
                ids.push_back(static_cast<uint16_t>(id));
            }
        }
        if (missing == layers.size()) {
            ++dropped_;
            continue;
        }
        if (missing > 0)
            return refuse(answer.where, concat("token ", t, ": ", missing, " of ", layers.size(),
                                               " MoE layers without k different experts"));
        if (absl::Status ok = builder.addTokens(ids); !ok.ok())
            return refuse(answer.where, std::string(ok.message()));
        if (answer.prompt && t < *answer.prompt) ++prompt;
    }
    if (answer.prompt) builder.setPrefillTokens(prompt);
    return absl::OkStatus();
}

absl::StatusOr<Recording> ResponseReader::finish() {
    if (answers_.empty()) return refuse(source_, "there is no routed token in it");
    Recording out;
    const std::vector<uint32_t> layers = routedLayers();
    if (layers.empty()) return refuse(source_, "no layer of it routes");
    out.shape.layers = static_cast<uint32_t>(layers.size());
    out.shape.topK = static_cast<uint32_t>(answers_[0].routed.k);
    int32_t largest = 0;
    for (const Answer& answer : answers_)
        for (const int32_t id : answer.routed.ids) largest = std::max(largest, id);
    if (options_.model && options_.model->experts > 0) {
        out.shape.experts = options_.model->experts;
    } else {
        out.shape.experts = std::min<uint32_t>(static_cast<uint32_t>(largest) + 1, kMostExperts);
        out.notes.push_back(concat("The responses do not say how many experts there are; ",
                                   out.shape.experts,
                                   " is one more than the largest id. Name the model to be sure."));
    }
    if (layers.size() < answers_[0].routed.layers) {
        out.shape.layerNumbers = layers;
        out.notes.push_back(concat("Of ", answers_[0].routed.layers, " layers sent, the ",
                                   layers.size(), " in which tokens have ", out.shape.topK,
                                   " different experts are the MoE layers."));
    }
    auto builder = RoutingBuilder::create(out.shape);
    if (!builder.ok()) return refuse(source_, std::string(builder.status().message()));
    for (const Answer& answer : answers_)
        if (absl::Status ok = write(answer, layers, *builder); !ok.ok()) return ok;
    auto routing = builder->finish();
    if (!routing.ok()) return refuse(source_, std::string(routing.status().message()));
    out.source = concat(source_, ", routing returned with responses");
    out.notes.push_back(
        "Ids are taken as logical: both engines return what the router chose. The last generated "
        "token of a request is never run and has no routing.");
    if (dropped_ > 0)
        out.notes.push_back(concat(dropped_, " tokens without routing were left out."));
    out.routing = *std::move(routing);
    return out;
}

}  // namespace

bool looksLikeResponse(const Json& json) {
    if (json.is_array()) return !json.empty() && json[0].is_object() && looksLikeResponse(json[0]);
    return json.is_object() && (json.contains("prompt_routed_experts") ||
                                json.contains("meta_info") || json.contains("choices"));
}

absl::StatusOr<Recording> readResponses(const std::vector<Response>& responses,
                                        std::string_view source, const ImportOptions& options) {
    ResponseReader reader(source, options);
    for (const Response& response : responses) {
        if (!response.json->is_object())
            return refuse(concat(source, ": ", response.where), "expected a response object");
        if (absl::Status ok = reader.add(*response.json, response.where); !ok.ok()) return ok;
    }
    return reader.finish();
}

}  // namespace bulkhead::planner
