// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/live/serving_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/planner/data/merge.h"
#include "backend/planner/evaluate/counted_load.h"
#include "backend/planner/live/drift.h"
#include "backend/planner/solve/held_out.h"

namespace bulkhead::planner {
namespace {

constexpr size_t kMostDomains = 256;
constexpr const char *kSends = "sends", *kCopies = "copies", *kGpuLoad = "GPU load";

/// The latest whole requests of `parts`, in order, with at most `most` tokens (one at least).
absl::StatusOr<Routing> latest(const std::vector<const Routing*>& parts, uint64_t most) {
    struct Place {
        const Routing* in;
        const Request* request;
    };
    std::vector<Place> kept;
    uint64_t tokens = 0;
    for (size_t p = parts.size(); p-- > 0;) {
        const std::vector<Request>& requests = parts[p]->requests();
        for (size_t r = requests.size(); r-- > 0;) {
            tokens += requests[r].tokens;
            if (tokens > most && !kept.empty()) break;
            kept.push_back({parts[p], &requests[r]});
        }
        if (tokens > most) break;
    }
    auto builder = RoutingBuilder::create(parts.back()->shape());
    if (!builder.ok()) return builder.status();
    std::vector<uint16_t> ids;
    for (auto place = kept.rbegin(); place != kept.rend(); ++place)
        if (auto status = appendRequest(*place->in, *place->request, *builder, ids); !status.ok())
            return status;
    return builder->finish();
}

double totalOf(const std::map<std::string, std::vector<double>>& counts, size_t experts) {
    double sum = 0;
    for (const auto& [domain, values] : counts)
        for (size_t e = 0; e < experts; ++e) sum += values[e];
    return sum;
}

}  // namespace

std::string ExpectedSaving::text() const {
    return absl::StrFormat(
        "%s %.3f expected on requests not seen, %.1f%% %s than %.3f with the plan before, on the "
        "requests that the new one was made from",
        figure, expected, std::abs(part()) * 100, part() >= 0 ? "less" : "more", found);
}

ExpectedSaving expectedSaving(const ServingFigures& found, const Forecast& forecast) {
    const auto& e = forecast.expected;
    ExpectedSaving made{found.leftFirst, found.nodeLoad, e.nodeLoad.mean};
    if (made.figure == kSends) {
        made.found = found.sends.value_or(0);
        made.expected = e.sends.mean;
    } else if (made.figure == kCopies) {
        made.found = found.copies.value_or(0);
        made.expected = e.copies.mean;
    } else if (made.figure == kGpuLoad) {
        made.found = found.gpuLoad;
        made.expected = e.gpuLoad.mean;
    }
    return made;
}

ServingWatch::ServingWatch(Plan plan, const ServingWatchOptions& options)
    : plan_(std::move(plan)), options_(options) {
    if (options_.window == 0) options_.window = std::max<uint64_t>(plan_.origin.tokens, 1);
}

absl::StatusOr<ServingWatch> ServingWatch::create(Plan plan, const ServingWatchOptions& options) {
    if (plan.forecast.blocks == 0)
        return absl::FailedPreconditionError(
            "the plan says nothing of what to expect of it, so nothing can leave that range");
    return ServingWatch(std::move(plan), options);
}

absl::Status ServingWatch::add(const Recording& recording) {
    if (auto status = checkFit(plan_, recording.shape); !status.ok()) return status;
    if (recording.routing ? counted() : routing_.has_value())
        return absl::InvalidArgumentError(
            absl::StrCat(recording.source, " has ", recording.routing ? "tokens" : "counts only",
                         ", what came before had ", recording.routing ? "counts only" : "tokens"));
    return recording.routing ? addTokens(*recording.routing) : addCounts(recording);
}

absl::Status ServingWatch::addTokens(const Routing& routing) {
    std::vector<const Routing*> parts;
    if (routing_) parts.push_back(&*routing_);
    parts.push_back(&routing);
    auto made = latest(parts, options_.window);
    if (!made.ok()) return made.status();
    routing_ = *std::move(made);
    came_ += routing.tokens();
    return absl::OkStatus();
}

absl::Status ServingWatch::addCounts(const Recording& recording) {
    if (recording.windows.empty())
        return absl::InvalidArgumentError(
            absl::StrCat(recording.source, " has neither tokens nor counts"));
    if (plan_.redundant() > 0 && plan_.origin.router == Router::kTokenAware)
        return absl::FailedPreconditionError(
            "the plan's replicas are chosen token by token, whose load counts do not tell; record "
            "tokens, or plan with --router of the engine's way");
    size_t domains = counts_.size();
    for (const CountsWindow& window : recording.windows)
        domains += !counts_.contains(window.domain);
    if (domains > kMostDomains)
        return absl::InvalidArgumentError(
            absl::StrCat(recording.source, ": more than ", kMostDomains, " domains"));
    const size_t cells = size_t{plan_.shape.layers} * plan_.shape.experts;
    for (const CountsWindow& window : recording.windows) {
        const double tokens = static_cast<double>(window.counts.total(0)) / plan_.shape.topK;
        const double keeps = std::exp(-2 * tokens / static_cast<double>(options_.window));
        for (auto& [domain, values] : counts_)
            for (double& value : values) value *= keeps;
        std::vector<double>& to = counts_[window.domain];
        to.resize(cells, 0);
        for (size_t i = 0; i < cells; ++i) to[i] += static_cast<double>(window.counts.values()[i]);
        came_ += static_cast<uint64_t>(tokens);
    }
    return absl::OkStatus();
}

Recording ServingWatch::recent() const {
    Recording made;
    made.shape = plan_.shape;
    made.source = "recordings that were watched";
    if (routing_) {
        made.routing = routing_;
        return made;
    }
    for (const auto& [domain, values] : counts_) {
        CountsWindow window{"recent", domain, Phase::kUnknown,
                            Counts(plan_.shape.layers, plan_.shape.experts)};
        for (uint32_t layer = 0; layer < plan_.shape.layers; ++layer)
            for (uint32_t e = 0; e < plan_.shape.experts; ++e)
                window.counts.row(layer)[e] = static_cast<uint64_t>(
                    std::llround(values[size_t{layer} * plan_.shape.experts + e]));
        made.windows.push_back(std::move(window));
    }
    return made;
}

absl::StatusOr<ServingFigures> ServingWatch::figures() const {
    ServingFigures made;
    made.enough = came_ >= options_.window;
    const std::string& objective = plan_.origin.objective;
    if (routing_) {
        const HeldOutOptions wanted =
            homesFor(objective, plan_.origin.prefix > 0 ? plan_.origin.prefix : 0.3,
                     plan_.origin.homeCap > 0 ? plan_.origin.homeCap : options_.homeCap);
        const auto held = heldOut(wholeOf(*routing_), plan_, wanted);
        if (!held.ok()) return held.status();
        made.tokens = routing_->tokens();
        made.sends = held->outcome.sendsPerToken;
        made.copies = held->outcome.copiesPerToken;
        made.nodeLoad = held->outcome.nodeLoadMaxOverMean;
        made.gpuLoad = held->outcome.gpuLoadMaxOverMean;
    } else {
        const auto load = loadFromCounts(recent(), plan_);
        if (!load.ok()) return load.status();
        made.tokens =
            static_cast<uint64_t>(totalOf(counts_, plan_.shape.experts) / plan_.shape.topK);
        made.nodeLoad = load->nodeLoadMaxOverMean;
        made.gpuLoad = load->gpuLoadMaxOverMean;
    }
    if (!made.enough) return made;
    const auto look = [&](const char* what, std::optional<double> found, const Range& promised) {
        if (!found || !outgrows(*found, promised.high, options_.drift)) return;
        if (made.left.empty()) made.leftFirst = what;
        absl::StrAppend(
            &made.left, made.left.empty() ? "" : ", ",
            absl::StrFormat("%s %.3f, at most %.3f was promised", what, *found, promised.high));
    };
    const auto& expected = plan_.forecast.expected;
    if (objective == "copies")
        look(kCopies, made.copies, expected.copies);
    else if (objective == "balance")
        look(kGpuLoad, made.gpuLoad, expected.gpuLoad);
    else
        look(kSends, made.sends, expected.sends);
    look("node load", made.nodeLoad, expected.nodeLoad);
    return made;
}

}  // namespace bulkhead::planner
