// SPDX-License-Identifier: Apache-2.0
#include "backend/campaign/campaign_file.h"

#include <array>
#include <cmath>
#include <filesystem>
#include <optional>

#include "backend/model/command_text.h"

namespace bulkhead::campaign {
namespace {

using model::concat;

constexpr std::string_view kDuration = "a duration such as 500ms, 30s or 15m";
constexpr std::array<std::string_view, 5> kPhases = {"compute", "exchange", "vote", "apply", "any"};

/// The first thing wrong, as "key: expected ..., found ...": the reader adds file and line.
class Check {
  public:
    void time(const std::string& key, const std::string& text, std::string_view expected) {
        if (!model::parseDuration(text)) fail(key, expected, text);
    }
    void fail(const std::string& key, std::string_view expected, std::string_view found) {
        if (problem_.empty())
            problem_ = concat(key, ": expected ", expected, ", found ",
                              found.empty() ? std::string("nothing")
                                            : concat("\"", model::shortened(found, 60), "\""));
    }
    void say(const std::string& key, std::string_view words) {
        if (problem_.empty()) problem_ = concat(key, ": ", words);
    }
    const std::string& problem() const { return problem_; }

  private:
    std::string problem_;
};

void checkFaultOf(Check& check, const std::string& key, const FaultLine& line) {
    const auto fault = model::parseFault(aimed(line.fault, {"0", "r0s0", "node0"}));
    if (!fault.ok()) {
        check.say(key + ".fault", std::string(fault.status().message()));
    } else if (fault->atStep != 0 || !fault->atPhase.empty()) {
        check.say(key + ".fault",
                  "expected no @step: a campaign says when by \"at\" or \"every\", and within a "
                  "step by \"phase\"");
    }
    bool known = line.phase.empty();
    for (const std::string_view phase : kPhases) known = known || line.phase == phase;
    if (!known) check.fail(key + ".phase", "one of " + model::joined(kPhases), line.phase);
    if (!line.phase.empty() && fault.ok() &&
        (fault->kind == model::FaultKind::kKillNode || fault->kind == model::FaultKind::kFillDisk))
        check.say(key + ".phase", "a fault of a node waits for no phase; leave it out");
}

void checkLines(Check& check, const CampaignFile& file) {
    constexpr uint64_t kShortestMs = 1000;
    for (size_t i = 0; i < file.faults.size(); ++i) {
        const std::string key = concat("faults[", i, "]");
        const FaultLine& line = file.faults[i];
        checkFaultOf(check, key, line);
        if (line.at != "0s") check.time(key + ".at", line.at, kDuration);
        if (!line.every.empty()) check.say(key + ".every", "belongs under [[rates]]");
        const auto at = model::parseDuration(line.at);
        const auto whole = model::parseDuration(file.duration);
        if (at && whole && *at >= *whole)
            check.fail(key + ".at", concat("less than the duration ", file.duration), line.at);
    }
    for (size_t i = 0; i < file.rates.size(); ++i) {
        const std::string key = concat("rates[", i, "]");
        const FaultLine& line = file.rates[i];
        checkFaultOf(check, key, line);
        if (!line.at.empty()) check.say(key + ".at", "belongs under [[faults]]");
        const auto every = model::parseDuration(line.every);
        if (!every || *every < kShortestMs)
            check.fail(key + ".every", "a mean spacing of at least 1s, such as 40s", line.every);
    }
}

bool isPart(double value) {
    return std::isfinite(value) && value >= 0 && value <= 1;
}

void checkWhole(Check& check, const CampaignFile& file) {
    check.time("duration", file.duration, kDuration);
    check.time("settle", file.settle, kDuration);
    if (file.faults.empty() && file.rates.empty())
        check.say("faults", "expected a [[faults]] or a [[rates]] at least: nothing would happen");
    if (!isPart(file.pass.minInjected) || file.pass.minInjected == 0)
        check.say("pass.min_injected", "expected a part above 0 and at most 1, such as 0.5");
    if (!isPart(file.pass.minEffectiveTime))
        check.say("pass.min_effective_time", "expected a part from 0 to 1, such as 0.6");
    if (!file.pass.maxStall.empty()) check.time("pass.max_stall", file.pass.maxStall, kDuration);
    if (!file.pass.maxRejoin.empty()) check.time("pass.max_rejoin", file.pass.maxRejoin, kDuration);
}

}  // namespace

std::string aimed(std::string_view fault, const Target& target) {
    std::string out(fault);
    const auto put = [&out](std::string_view key, const std::string& value) {
        const std::string any = concat(key, "=any");
        const size_t at = out.find(any);
        if (at == std::string::npos) return;
        const size_t behind = at + any.size();
        if (behind == out.size() || out[behind] == ',' || out[behind] == '@')
            out.replace(at, any.size(), concat(key, "=", value));
    };
    put("replica", target.replica);
    put("rank", target.rank);
    put("node", target.node);
    return out;
}

absl::StatusOr<ParsedCampaign> parseCampaign(std::string_view text, std::string_view name) {
    toml::table root;
    if (absl::Status s = model::parseToml(text, name, root); !s.ok()) return s;
    ParsedCampaign parsed{{}, model::TomlReader{std::string(name)}};
    parsed.reader.readTable(root, parsed.file);
    if (parsed.reader.failed()) return parsed.reader.status();
    if (parsed.file.name.empty()) parsed.file.name = std::filesystem::path(name).stem().string();
    Check check;
    checkWhole(check, parsed.file);
    checkLines(check, parsed.file);
    if (!check.problem().empty())
        return absl::InvalidArgumentError(parsed.reader.located(check.problem()));
    return parsed;
}

}  // namespace bulkhead::campaign
