// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/config.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "toml++/toml.h"

namespace bulkhead::llama_moe {
namespace {

constexpr int64_t kLargest = int64_t{1} << 20;

struct CountKey {
    const char* name;
    size_t ModelConfig::*member;
    bool required;
};
constexpr std::array kCounts = {
    CountKey{"dim", &ModelConfig::dim, true},
    CountKey{"layers", &ModelConfig::layers, true},
    CountKey{"heads", &ModelConfig::heads, true},
    CountKey{"kv_heads", &ModelConfig::kvHeads, true},
    CountKey{"attention_chunk", &ModelConfig::attentionChunk, true},
    CountKey{"ffn_hidden", &ModelConfig::ffnHidden, true},
    CountKey{"experts", &ModelConfig::experts, true},
    CountKey{"top_k", &ModelConfig::topK, false},
    CountKey{"expert_hidden", &ModelConfig::expertHidden, true},
    CountKey{"shared_hidden", &ModelConfig::sharedHidden, true},
};

struct RealKey {
    const char* name;
    double ModelConfig::*member;
    double least;
    double most;
};
constexpr std::array kReals = {
    RealKey{"rope_theta", &ModelConfig::ropeTheta, 1.0, 1e9},
    RealKey{"norm_epsilon", &ModelConfig::normEpsilon, 1e-12, 1e-1},
    RealKey{"balance_rate", &ModelConfig::balanceRate, 0.0, 1.0},
};

std::string knownKeys() {
    std::string names = "size";
    for (const CountKey& key : kCounts) absl::StrAppend(&names, ", ", key.name);
    for (const RealKey& key : kReals) absl::StrAppend(&names, ", ", key.name);
    return names;
}

std::string shown(const toml::node& node) {
    std::ostringstream out;
    if (const auto* text = node.as_string())
        out << '"' << text->get() << '"';
    else if (const auto* whole = node.as_integer())
        out << whole->get();
    else if (const auto* real = node.as_floating_point())
        out << real->get();
    else
        out << "a " << node.type();
    return out.str();
}

std::string at(const std::string& where, const toml::node& node) {
    return absl::StrCat(where, " line ", uint32_t{node.source().begin.line});
}

absl::StatusOr<toml::table> parse(std::string_view text, const std::string& where) {
    try {
        return toml::parse(text);
    } catch (const toml::parse_error& error) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, " line ", uint32_t{error.source().begin.line},
                         " is not TOML: ", std::string(error.description())));
    }
}

absl::Status takeKey(const std::string& key, const toml::node& node, const std::string& where,
                     ModelConfig& config) {
    for (const CountKey& known : kCounts) {
        if (known.name != key) continue;
        const auto* value = node.as_integer();
        if (value == nullptr || value->get() < 1 || value->get() > kLargest)
            return absl::InvalidArgumentError(absl::StrCat(at(where, node), ": ", key,
                                                           " must be a whole number from 1 to ",
                                                           kLargest, ", not ", shown(node)));
        config.*known.member = static_cast<size_t>(value->get());
        return absl::OkStatus();
    }
    for (const RealKey& known : kReals) {
        if (known.name != key) continue;
        const auto value = node.is_number() ? node.value<double>() : std::nullopt;
        if (!value || !(*value >= known.least && *value <= known.most))
            return absl::InvalidArgumentError(
                absl::StrCat(at(where, node), ": ", key, " must be a number from ", known.least,
                             " to ", known.most, ", not ", shown(node)));
        config.*known.member = *value;
        return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat(at(where, node), ": unknown key ", key, "; a model knows ", knownKeys()));
}

absl::Status takeTable(const toml::table& table, const std::string& where, bool mayNameSize,
                       ModelConfig& config) {
    for (const auto& [key, node] : table) {
        if (mayNameSize && key == "size") continue;
        if (absl::Status s = takeKey(std::string(key.str()), node, where, config); !s.ok())
            return s;
    }
    return absl::OkStatus();
}

std::string sizesIn(const std::string& directory) {
    std::string names;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory, error))
        if (entry.path().extension() == ".toml")
            absl::StrAppend(&names, names.empty() ? "" : ", ", entry.path().stem().string());
    return names.empty() ? absl::StrCat("none are in ", directory)
                         : absl::StrCat("choose one of ", names);
}

absl::Status takeSize(const toml::node& node, const std::string& directory, ModelConfig& config) {
    const auto* size = node.as_string();
    if (size == nullptr || size->get().empty() || size->get().find('/') != std::string::npos)
        return absl::InvalidArgumentError(absl::StrCat(
            at("[model]", node), ": size must be the name of a model size, not ", shown(node)));
    const std::string path = absl::StrCat(directory, "/", size->get(), ".toml");
    std::ifstream file(path);
    if (directory.empty() || !file)
        return absl::NotFoundError(
            absl::StrCat("[model]: there is no size \"", size->get(), "\"; ", sizesIn(directory)));
    std::ostringstream text;
    text << file.rdbuf();
    absl::StatusOr<toml::table> table = parse(text.str(), path);
    if (!table.ok()) return table.status();
    config.name = size->get();
    return takeTable(*table, path, false, config);
}

absl::Status checkShape(const ModelConfig& c) {
    for (const CountKey& key : kCounts)
        if (key.required && c.*key.member == 0)
            return absl::InvalidArgumentError(
                absl::StrCat("[model]: ", key.name, " is missing; give it, or a size that has it"));
    const auto bad = [](auto&&... parts) {
        return absl::InvalidArgumentError(absl::StrCat("[model]: ", parts...));
    };
    if (c.dim % c.heads != 0) return bad("heads must divide dim (", c.dim, "), but is ", c.heads);
    if (c.headDim() % 2 != 0)
        return bad("dim / heads must be even for rotary positions, but is ", c.headDim());
    if (c.heads % c.kvHeads != 0)
        return bad("kv_heads must divide heads (", c.heads, "), but is ", c.kvHeads);
    if (c.topK > c.experts)
        return bad("top_k must be at most experts (", c.experts, "), but is ", c.topK);
    return absl::OkStatus();
}

/// 2^40: four times that many bytes are beyond any machine, and no product below overflows.
constexpr double kMostElements = 1099511627776.0;

/// Matrix elements of the whole model, as a double so that it cannot overflow.
double weights(const ModelConfig& c) {
    const auto real = [](size_t value) { return static_cast<double>(value); };
    const double feedForward =
        3 * real(c.dim) *
        (real(c.ffnHidden) + real(c.sharedHidden) + real(c.experts) * real(c.expertHidden));
    const double attention = real(c.dim) * (real(c.qkvWidth()) + real(c.dim));
    return real(c.layers) * (attention + feedForward) + 2 * real(c.dim) * kVocabulary;
}

/// Elements one token keeps from forward to backward, likewise.
double perToken(const ModelConfig& c, size_t sequence) {
    const auto real = [](size_t value) { return static_cast<double>(value); };
    const double attention = 4 * real(c.dim) + real(c.qkvWidth()) + real(c.heads) * real(sequence);
    const double mixture =
        real(c.topK) * (2 * real(c.dim) + 3 * real(c.expertHidden)) + 3 * real(c.sharedHidden);
    return real(c.layers) * (attention + 3 * real(c.ffnHidden) + mixture) + kVocabulary;
}

}  // namespace

absl::StatusOr<ModelConfig> readModelConfig(std::string_view text, const std::string& directory) {
    absl::StatusOr<toml::table> table = parse(text, "[model]");
    if (!table.ok()) return table.status();
    ModelConfig config;
    config.name = "custom";
    if (const toml::node* size = table->get("size"))
        if (absl::Status s = takeSize(*size, directory, config); !s.ok()) return s;
    if (absl::Status s = takeTable(*table, "[model]", true, config); !s.ok()) return s;
    if (absl::Status s = checkShape(config); !s.ok()) return s;
    return config;
}

absl::Status checkFits(const ModelConfig& config, size_t shards, size_t samples,
                       size_t sequenceLength) {
    if (sequenceLength == 0 || samples == 0)
        return absl::InvalidArgumentError("sequence_length and micro_batch must be at least 1");
    if (config.mixtureLayers() > 0 && config.experts % shards != 0)
        return absl::InvalidArgumentError(
            absl::StrCat("[model]: experts must be a multiple of the job's shards (", shards,
                         "), but is ", config.experts, "; change experts or shards"));
    if (weights(config) > kMostElements)
        return absl::InvalidArgumentError(absl::StrCat(
            "[model]: ", weights(config),
            " parameters are beyond what can be held; make dim, layers or experts smaller"));
    const double tokens = static_cast<double>(samples) * static_cast<double>(sequenceLength);
    if (tokens * perToken(config, sequenceLength) > kMostElements)
        return absl::InvalidArgumentError(absl::StrCat(
            "a micro-batch of ", samples, " x ", sequenceLength,
            " tokens is beyond what can be held; make micro_batch or sequence_length smaller"));
    return absl::OkStatus();
}

}  // namespace bulkhead::llama_moe
