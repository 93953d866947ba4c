// SPDX-License-Identifier: Apache-2.0
#include <cctype>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/cli/plan_files.h"
#include "backend/cli/text.h"
#include "backend/model/json.h"
#include "backend/planner/solve/per_domain.h"

namespace bulkhead::cli {

using namespace planner;  // NOLINT: this file is nothing but a verb of the planner

namespace {

/// "dir/plan.json" and "math & code" to "dir/plan.math___code.json".
std::string fileFor(const std::string& out, const std::string& domain) {
    std::string name = domain;
    for (char& c : name)
        if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-') c = '_';
    const size_t slash = out.rfind('/'), dot = out.rfind('.');
    const bool extension = dot != out.npos && (slash == out.npos || dot > slash);
    const std::string stem = extension ? out.substr(0, dot) : out;
    return absl::StrCat(stem, ".", name, extension ? out.substr(dot) : "");
}

model::Json jsonOf(const DomainJudgement& judged) {
    model::Json json = model::toJson(judged.outcome);
    json["step"] = model::toJson(judged.time);
    return json;
}

void printJson(const PerDomain& made, double stepTokens) {
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
                           {"step_tokens", stepTokens}};
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
    auto made = solvePerDomain(routing, topology, wanted);
    if (!made.ok())
        return refusePlan(cli, "Cannot plan for each domain", made.status(),
                          "Label recordings with --routing DOMAIN=PATH, or record more requests.");
    if (!options.out.empty()) {
        absl::Status written = writePlan(made->shared, options.out);
        for (const DomainPlanGain& gain : made->domains)
            if (written.ok()) written = writePlan(gain.plan, fileFor(options.out, gain.domain));
        if (!written.ok())
            return refusePlan(cli, "Cannot write the plan", written,
                              "Choose another place with --out.");
    }
    if (cli.json)
        printJson(*made, wanted.step.tokens);
    else
        printTables(*made, wanted.step.tokens);
    return kOk;
}

}  // namespace bulkhead::cli
