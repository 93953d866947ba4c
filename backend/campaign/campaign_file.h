// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/model/toml_reader.h"

/// The contents of a campaign's TOML file; resources/campaigns/storm.toml shows all of it.
/// Thread: any; nothing is kept.
namespace bulkhead::campaign {

/// [[faults]]: one fault at one time; [[rates]]: faults spaced exponentially, `every` on average.
/// `fault` is the word of backend/model/command_text.h without @step; replica=any, rank=any and
/// node=any stand for one drawn by the seed.
struct FaultLine {
    std::string fault;
    std::string at;     ///< [[faults]]: after the begin, "0s", "90s"
    std::string every;  ///< [[rates]]: mean spacing, at least 1s
    std::string phase;  ///< "", compute, exchange, vote, apply, or any: waited for within a step
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("fault", self.fault);
        visit("at", self.at);
        visit("every", self.every);
        visit("phase", self.phase);
    }
};

/// [pass]. That no invariant breaks, all hashes are equal and the ledger tiles the data is asked of
/// every campaign; an empty time or a zero asks nothing more.
struct PassTable {
    double minInjected = 0.5;
    double minEffectiveTime = 0;
    std::string maxStall;
    std::string maxRejoin;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("min_injected", self.minInjected);
        visit("min_effective_time", self.minEffectiveTime);
        visit("max_stall", self.maxStall);
        visit("max_rejoin", self.maxRejoin);
    }
};

struct CampaignFile {
    std::string name;  ///< empty in the file: as the file is called
    std::string about;
    uint64_t seed = 1;
    std::string duration;
    std::string settle = "60s";
    uint32_t keepTraining = 0;  ///< contributors every fault must leave; 0: more than half
    PassTable pass;
    std::vector<FaultLine> faults;
    std::vector<FaultLine> rates;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("name", self.name);
        visit("about", self.about);
        visit("seed", self.seed);
        visit("duration", self.duration);
        visit("settle", self.settle);
        visit("keep_training", self.keepTraining);
        visit("pass", self.pass);
        visit("faults", self.faults);
        visit("rates", self.rates);
    }
};

/// A file that holds whatever the job: the reader says where each of its keys stood.
struct ParsedCampaign {
    CampaignFile file;
    model::TomlReader reader;
};

/// InvalidArgument "storm.toml:12: rates[3].every: expected ..., found ...". `name` stands for the
/// file in messages.
[[nodiscard]] absl::StatusOr<ParsedCampaign> parseCampaign(std::string_view toml,
                                                           std::string_view name);

/// The fault of a line with its "any" replaced; what is not wanted is left as it stands.
struct Target {
    std::string replica;  ///< "2"
    std::string rank;     ///< "r2s1"
    std::string node;
};
[[nodiscard]] std::string aimed(std::string_view fault, const Target& target);

}  // namespace bulkhead::campaign
