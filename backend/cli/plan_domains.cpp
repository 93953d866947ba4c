// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/cli/follow.h"
#include "backend/cli/plan_files.h"
#include "backend/cli/text.h"
#include "backend/model/json.h"
#include "backend/planner/solve/per_domain.h"

namespace bulkhead::cli {

using namespace planner;  // NOLINT: this file is nothing but a verb of the planner

namespace {

constexpr size_t kMostName = 100;  ///< bytes of a domain in a file's name

/// Files of the domains' own plans beside `out`: "dir/plan.math___code.json" of "dir/plan.json" and
/// "math & code". Names that differ in nothing but what a file system may take for the same, or by
/// what is cut off, have a number behind.
std::map<std::string, std::string> filesFor(const std::string& out,
                                            const std::vector<std::string>& domains) {
    const size_t slash = out.rfind('/'), dot = out.rfind('.');
    const bool extension = dot != out.npos && (slash == out.npos || dot > slash);
    const std::string stem = extension ? out.substr(0, dot) : out;
    std::map<std::string, std::string> files;
    std::set<std::string> taken;
    for (const std::string& domain : domains) {
        std::string name = domain.substr(0, kMostName);
        for (char& c : name)
            if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-') c = '_';
        std::string numbered = name;
        for (int n = 2; !taken.insert(absl::AsciiStrToLower(numbered)).second; ++n)
            numbered = absl::StrCat(name, "-", n);
        files[domain] = absl::StrCat(stem, ".", numbered, extension ? out.substr(dot) : "");
    }
    return files;
}

model::Json jsonOf(const DomainJudgement& judged) {
    model::Json json = model::toJson(judged.outcome);
    json["step"] = model::toJson(judged.time);
    return json;
}

void printJson(const PerDomain& made, double stepTokens, const std::vector<std::string>& written) {
    model::Json domains = model::Json::array(), switches = model::Json::array();
    for (size_t d = 0; d < made.domains.size(); ++d) {
        const DomainPlanGain& g = made.domains[d];
        domains.push_back({{"domain", g.domain},
                           {"tokens", g.tokens},
                           {"shared", jsonOf(g.shared)},
                           {"own", jsonOf(g.own)},
                           {"gain", g.gain()},
                           {"sends_gain", g.sendsGain()},
                           {"pays_after_steps", g.paysAfterSteps(made.switches[0][d + 1])},
                           {"worth", g.worth},
                           {"reason", g.reason}});
    }
    for (const auto& row : made.switches) {
        model::Json line = model::Json::array();
        for (const Migration& m : row) line.push_back(model::toJson(m));
        switches.push_back(std::move(line));
    }
    const model::Json json{{"domains", std::move(domains)},
                           {"switches", std::move(switches)},
                           {"step_tokens", stepTokens},
                           {"out", written}};
    std::printf("%s\n", model::dumpJson(json).c_str());
}

std::string switchText(const Migration& m) {
    return absl::StrFormat("%.0f (%.0f), %.3f", m.bytes / 1e6, m.bytesAcross / 1e6, m.seconds);
}

void printTables(const PerDomain& made, double stepTokens) {
    std::vector<std::vector<std::string>> rows{{"DOMAIN", "SCORED", "STEP MS SHARED", "OWN", "GAIN",
                                                "SENDS SHARED", "OWN", "COPIES SHARED", "OWN",
                                                "NODE LOAD SHARED", "OWN"}};
    for (const DomainPlanGain& g : made.domains) {
        const Outcome &shared = g.shared.outcome, &own = g.own.outcome;
        rows.push_back({g.domain, absl::StrCat(own.tokens),
                        absl::StrFormat("%.3f", g.shared.time.stepSeconds * 1e3),
                        absl::StrFormat("%.3f", g.own.time.stepSeconds * 1e3),
                        absl::StrFormat("%+.1f %%", g.gain() * 100),
                        absl::StrFormat("%.3f", shared.sendsPerToken),
                        absl::StrFormat("%.3f", own.sendsPerToken),
                        absl::StrFormat("%.3f", shared.copiesPerToken),
                        absl::StrFormat("%.3f", own.copiesPerToken),
                        absl::StrFormat("%.3f", shared.nodeLoadMaxOverMean),
                        absl::StrFormat("%.3f", own.nodeLoadMaxOverMean)});
    }
    std::vector<std::vector<std::string>> costs{{"MB (BETWEEN NODES), SECONDS", "to shared"}};
    for (const DomainPlanGain& g : made.domains) costs[0].push_back("to " + g.domain);
    for (size_t from = 0; from < made.switches.size(); ++from) {
        costs.push_back({from == 0 ? "from shared" : "from " + made.domains[from - 1].domain});
        for (size_t to = 0; to < made.switches.size(); ++to)
            costs.back().push_back(from == to ? "-" : switchText(made.switches[from][to]));
    }
    std::printf("%s\n", table(rows).c_str());
    for (const DomainPlanGain& g : made.domains)
        std::printf("%s: %s\n", g.domain.c_str(), g.reason.c_str());
    std::printf("\n%s", table(costs).c_str());
    std::printf(
        "planned on every second request of a domain, scored on the others, served alone; a step "
        "has %.0f tokens%s\n",
        stepTokens, made.switches[0].back().bytesAssumed ? "; expert size assumed" : "");
}

}  // namespace

int solveByDomain(const Cli& cli, const PlanOptions& options, const Routing& routing,
                  const Topology& topology, const JointOptions& joint) {
    PerDomainOptions wanted;
    wanted.joint = joint;
    std::map<std::string, std::string> files;
    if (!options.out.empty()) files = filesFor(options.out, routing.domains());
    for (const auto& [domain, file] : files)
        if (auto status = checkOut(file); !status.ok()) return refuseOut(cli, status);
    auto made = [&] {
        const SayInterrupted interrupted;
        return solvePerDomain(routing, topology, wanted);
    }();
    if (!made.ok())
        return refusePlan(cli, "Cannot plan for each domain", made.status(),
                          "Label recordings with --routing DOMAIN=PATH, or record more requests.");
    std::vector<std::string> written;
    const auto write = [&](const Plan& plan, const std::string& file) {
        written.push_back(file);
        return writePlan(plan, file);
    };
    if (!options.out.empty()) {
        absl::Status status = write(made->shared, options.out);
        for (const DomainPlanGain& gain : made->domains)
            if (status.ok()) status = write(gain.plan, files.at(gain.domain));
        if (!status.ok()) return refuseOut(cli, status);
    }
    if (cli.json) {
        printJson(*made, wanted.step.tokens, written);
    } else {
        printTables(*made, wanted.step.tokens);
        for (const std::string& file : written) std::printf("written to %s\n", file.c_str());
    }
    return kOk;
}

}  // namespace bulkhead::cli
