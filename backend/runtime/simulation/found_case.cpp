// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/found_case.h"

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "backend/runtime/simulation/driven_job.h"

namespace bulkhead::simulation {
namespace {

using nlohmann::json;

template <class E>
E enumOf(const std::string& name) {
    const auto& names = EnumNames<E>::kNames;
    for (size_t i = 0; i < names.size(); ++i)
        if (names[i] == name) return static_cast<E>(i);
    throw std::invalid_argument(absl::StrCat("\"", name, "\" is not known"));
}

}  // namespace

Setup setupOf(uint64_t seed, bool drivers) {
    return drivers ? drawDrivenSetup(seed) : drawSetup(seed);
}

Verdict runTrial(const FoundCase& found) {
    return runTrial(found.seed, setupOf(found.seed, found.drivers), found.schedule);
}

absl::StatusOr<FoundCase> parseCase(const std::string& text) {
    try {
        const json j = json::parse(text);
        FoundCase found{j.at("seed"), j.at("drivers"), j.at("broken"), {}};
        for (const json& f : j.at("faults"))
            found.schedule.push_back({enumOf<FaultKind>(f.at("kind")), f.at("at"),
                                      enumOf<Trigger>(f.at("trigger")), f.at("duration"),
                                      f.at("replica"), f.at("shard"), f.at("other"),
                                      f.at("parameter")});
        return found;
    } catch (const std::exception& e) {
        return absl::InvalidArgumentError(
            absl::StrCat("this is no case of bulkhead-sim soak: ", e.what()));
    }
}

std::string toText(const FoundCase& found) {
    json faults = json::array();
    for (const Fault& f : found.schedule)
        faults.push_back({{"kind", std::string(enumName(f.kind))},
                          {"at", f.at},
                          {"trigger", std::string(enumName(f.trigger))},
                          {"duration", f.duration},
                          {"replica", f.replica},
                          {"shard", f.shard},
                          {"other", f.other},
                          {"parameter", f.parameter}});
    const json j = {{"seed", found.seed},
                    {"drivers", found.drivers},
                    {"broken", found.broken},
                    {"faults", faults}};
    return j.dump(1) + "\n";
}

uint64_t freshSeed() {
    uint64_t seed = 0;
    const char* given = std::getenv("BULKHEAD_FRESH_SEED");
    if (given != nullptr && absl::SimpleAtoi(given, &seed)) return seed;
    return std::random_device{}();
}

}  // namespace bulkhead::simulation
