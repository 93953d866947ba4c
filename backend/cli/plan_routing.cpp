// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/plan_routing.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <new>
#include <utility>

#include "backend/cli/cli.h"
#include "backend/cli/follow.h"
#include "backend/common/file_system.h"
#include "backend/planner/catalogue/catalogue.h"
#include "backend/planner/data/merge.h"
#include "backend/planner/import/import.h"

namespace bulkhead::cli {
namespace {

namespace fs = std::filesystem;

/// A hundred times the built-in one.
constexpr uint64_t kMostCatalogueBytes = 4 << 20;

/// "NAME" of the built-in catalogue, "FILE.toml#NAME", or a FILE.toml with one model.
absl::StatusOr<planner::ModelSpec> modelOf(const std::string& given) {
    const size_t hash = given.rfind('#');
    const bool inFile = hash != std::string::npos || given.ends_with(".toml");
    std::string file = "the built-in catalogue", text(planner::builtInCatalogue());
    if (inFile) {
        file = given.substr(0, hash);
        auto content = readAtMost(file, kMostCatalogueBytes);
        if (!content.ok()) return content.status();
        text = *std::move(content);
    }
    const auto models = planner::parseCatalogue(text, file);
    if (!models.ok()) return models.status();
    if (!inFile || hash != std::string::npos)
        return planner::modelNamed(*models, inFile ? given.substr(hash + 1) : given);
    if (models->size() == 1) return models->front();
    std::string names;
    for (const planner::ModelSpec& model : *models)
        names += (names.empty() ? "" : ", ") + model.name;
    return absl::InvalidArgumentError(file + " has " + std::to_string(models->size()) +
                                      " models; write " + file + "#NAME with one of " +
                                      (names.empty() ? "them" : names));
}

absl::Status chooseModel(const std::string& given, planner::ImportOptions& options) {
    const auto model = modelOf(given);
    if (!model.ok()) return model.status();
    auto shape = planner::shapeOf(*model);
    if (!shape.ok()) return shape.status();
    options.model = *std::move(shape);
    options.decoderLayers = model->layers;
    return absl::OkStatus();
}

/// DOMAIN and PATH of "DOMAIN=PATH"; a path that is there is never split.
std::pair<std::string, std::string> split(const std::string& given) {
    std::error_code error;
    const size_t at = given.find('=');
    if (at == std::string::npos || fs::exists(given, error)) return {"", given};
    return {given.substr(0, at), given.substr(at + 1)};
}

absl::StatusOr<planner::Recording> withinMemory(std::vector<planner::Recording> recordings) {
    try {
        return planner::merged(std::move(recordings));
    } catch (const std::bad_alloc&) {
        return absl::ResourceExhaustedError(
            "together they take more memory than there is; give fewer, or shorter ones");
    }
}

}  // namespace

void addRoutingOptions(CLI::App& verb, RoutingArguments& arguments) {
    verb.add_option(
            "--routing", arguments.routing,
            "recording: meta.json, meta_info.json, .pt, .npy, .json, .jsonl, a server's log, "
            "or a folder of one dump; DOMAIN=PATH labels it; may be given again")
        ->required();
    verb.add_option("--model", arguments.model,
                    "model it was recorded from, as in the catalogue; FILE.toml of one model, or "
                    "FILE.toml#NAME");
    verb.add_option("--part", arguments.part, "which of several models in one file of counts");
}

client::Failure planFailure(std::string title, const absl::Status& status) {
    const bool missing = status.code() == absl::StatusCode::kNotFound;
    return localFailure(missing ? client::FailureCode::kNotFound : client::FailureCode::kInvalid,
                        std::move(title), std::string(status.message()));
}

absl::Status checkNotRead(const std::string& out, const RoutingArguments& arguments) {
    std::error_code none;
    for (const std::string& given : arguments.routing)
        if (const std::string path = split(given).second; fs::equivalent(out, path, none))
            return absl::InvalidArgumentError(path + " is the recording to be read");
    return absl::OkStatus();
}

client::Result<planner::Recording> readRouting(const RoutingArguments& arguments) {
    planner::ImportOptions options;
    options.modelName = arguments.part;
    if (!arguments.model.empty()) {
        if (absl::Status ok = chooseModel(arguments.model, options); !ok.ok())
            return planFailure("Cannot use model " + arguments.model, ok);
    }
    const SayInterrupted interrupted;
    std::vector<planner::Recording> recordings;
    for (const std::string& given : arguments.routing) {
        const auto [domain, path] = split(given);
        options.domain = domain;
        auto recording = planner::importRecording(path, options);
        if (!recording.ok())
            return planFailure("Cannot read routing from " + path, recording.status());
        recordings.push_back(*std::move(recording));
    }
    auto joined = withinMemory(std::move(recordings));
    if (!joined.ok()) return planFailure("Cannot join the recordings", joined.status());
    return *std::move(joined);
}

}  // namespace bulkhead::cli
