// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/plan/plan_json.h"

#include "absl/strings/str_cat.h"
#include "backend/model/json.h"

namespace bulkhead::planner {

namespace {
constexpr const char* kFormat = "bulkhead.plan";
constexpr int kVersion = 1;
}  // namespace

std::string formatPlan(const Plan& plan) {
    model::Json json = model::toJson(plan);
    json["format"] = kFormat;
    json["version"] = kVersion;
    return model::dumpJson(json);
}

absl::StatusOr<Plan> parsePlan(std::string_view text, const std::string& file) {
    const auto refuse = [&](std::string_view what) {
        return absl::InvalidArgumentError(absl::StrCat(file, ": ", std::string(what)));
    };
    if (text.size() > kMostPlanBytes)
        return refuse(absl::StrCat("more than ", kMostPlanBytes, " bytes is no plan"));
    if (text.find_first_not_of(" \t\r\n") == text.npos) return refuse("it is empty");
    absl::StatusOr<model::Json> json = model::parseJson(text);
    if (!json.ok()) return refuse(std::string(json.status().message()));
    if (!json->is_object() || json->value("format", model::Json()) != kFormat)
        return refuse("this is no plan of ours; expected \"format\": \"bulkhead.plan\"");
    if (json->value("version", model::Json()) != kVersion)
        return refuse(absl::StrCat("at version: this program reads version ", kVersion));
    json->erase("format");
    json->erase("version");
    absl::StatusOr<Plan> plan = model::fromJson<Plan>(*json, model::UnknownKeys::kRefuse);
    if (!plan.ok()) return refuse(std::string(plan.status().message()));
    if (auto status = checkPlan(*plan); !status.ok()) return refuse(std::string(status.message()));
    return plan;
}

}  // namespace bulkhead::planner
