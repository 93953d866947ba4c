// SPDX-License-Identifier: Apache-2.0
// Load alone: the cases and loads of ../shared/reference/moe_peers_measured.md, section 3, ours and
// EPLB's steps in NumPy on the same loads in turn.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>

#include "backend/planner/solve/balance.h"
#include "backend/planner/solve/random.h"
#include "bench/planner/cases.h"

namespace bulkhead::bench {

using namespace planner;  // NOLINT: the bench is about the planner

namespace {

struct Case {
    std::string name;
    uint32_t layers, experts, slots, groups, nodes, gpus;
    double mostMs;  ///< 0: no bar on time
};

/// Per layer: (rank + 1)^-s x lognormal(0, 0.25), shuffled, scaled to a million tokens, rounded,
/// + 1.
std::vector<double> madeLoads(const Case& c, double s) {
    Random random(20260423);
    std::vector<double> loads;
    for (uint32_t layer = 0; layer < c.layers; ++layer) {
        std::vector<double> w(c.experts);
        for (uint32_t e = 0; e < c.experts; ++e) {
            const double normal = std::sqrt(-2 * std::log(random.unit())) *
                                  std::cos(2 * std::numbers::pi * random.unit());
            w[e] = std::pow(e + 1.0, -s) * std::exp(0.25 * normal);
        }
        for (uint32_t e = c.experts; e > 1; --e) std::swap(w[e - 1], w[random.below(e)]);
        const double sum = std::accumulate(w.begin(), w.end(), 0.0);
        for (double& x : w) x = std::round(x / sum * 1e6) + 1;
        loads.insert(loads.end(), w.begin(), w.end());
    }
    return loads;
}

struct Result {
    double ms = 0, mean = 0, worst = 1;
};

Result python(const Settings& settings, const Case& c, const std::string& file) {
    const std::string command = settings.python + " " + settings.eplb + " --loads " + file +
                                " --layers " + std::to_string(c.layers) + " --slots " +
                                std::to_string(c.slots) + " --groups " + std::to_string(c.groups) +
                                " --nodes " + std::to_string(c.nodes) + " --gpus " +
                                std::to_string(c.gpus);
    std::string text;
    if (FILE* pipe = popen(("OMP_NUM_THREADS=1 " + command).c_str(), "r")) {
        char part[256];
        while (std::fgets(part, sizeof part, pipe)) text += part;
        pclose(pipe);
    }
    const auto json = nlohmann::json::parse(text, nullptr, false);
    if (json.is_discarded()) die(absl::UnavailableError("no answer from: " + command));
    return {json["seconds"].get<double>() * 1e3, json["mean"], json["worst"]};
}

Result ours(const Case& c, const BalanceShape& shape, const std::vector<double>& loads,
            double& bound) {
    std::vector<uint32_t> placed(size_t{c.layers} * c.slots);
    Result result{INFINITY, 0, 1};
    for (int repeat = 0; repeat < 5; ++repeat)
        result.ms = std::min(result.ms, 1e3 * secondsOf([&] {
                                            Balancer balancer(shape);
                                            for (uint32_t layer = 0; layer < c.layers; ++layer)
                                                balancer.balance(
                                                    {&loads[size_t{layer} * c.experts], c.experts},
                                                    {&placed[size_t{layer} * c.slots], c.slots});
                                        }));
    bound = 0;
    for (uint32_t layer = 0; layer < c.layers; ++layer) {
        const std::span<const double> load{&loads[size_t{layer} * c.experts], c.experts};
        const double even =
            balancednessOf(load, {&placed[size_t{layer} * c.slots], c.slots}, shape.slotsOfGpu);
        result.mean += even / c.layers;
        result.worst = std::min(result.worst, even);
        bound += balanceBound(load, shape) / c.layers;
    }
    return result;
}

}  // namespace

void balanceCases(const Settings& settings, Report& report) {
    report.note(
        "Balance: best of 5 runs, one thread; bound: mean over layers of what the LP relaxation "
        "allows; EPLB in NumPy: bench/planner/eplb.py.");
    for (const Case& c :
         std::vector<Case>{{"58x256->288, 8 groups, 4 nodes, 32 GPUs", 58, 256, 288, 8, 4, 32, 4},
                           {"58x256->288, global, 32 GPUs", 58, 256, 288, 1, 1, 32, 4},
                           {"58x256->512, global, 256 GPUs", 58, 256, 512, 1, 1, 256, 15},
                           {"94x128->160, global, 32 GPUs", 94, 128, 160, 1, 1, 32, 0}})
        for (const double s : {0.4, 0.8, 1.2}) {
            const std::vector<double> loads = madeLoads(c, s);
            const std::string file = settings.out + "/planner_loads.bin";
            std::ofstream(file, std::ios::binary)
                .write(reinterpret_cast<const char*>(loads.data()),
                       static_cast<std::streamsize>(loads.size() * sizeof(double)));
            const BalanceShape shape{c.experts, c.nodes,
                                     std::vector<uint32_t>(c.gpus, c.slots / c.gpus), c.groups};
            double bound = 0;
            const Result mine = ours(c, shape, loads, bound);
            const Result theirs = python(settings, c, file);
            const std::string name = c.name + ", Zipf " + number(s, 1);
            report.row({name, "EPLB in NumPy", "", "", "", number(theirs.mean, 4),
                        number(theirs.worst, 4), number(bound, 4), number(theirs.ms, 2)});
            report.row({name, "ours", "", "", "", number(mine.mean, 4), number(mine.worst, 4),
                        number(bound, 4), number(mine.ms, 2)});
            report.atLeast(name + ": balancedness against EPLB's", mine.mean / theirs.mean, 0.99999,
                           "x");
            report.atLeast(name + ": worst layer against EPLB's", mine.worst / theirs.worst,
                           0.99999, "x");
            if (c.mostMs > 0) report.atMost(name + ": time", mine.ms, c.mostMs, "ms");
        }
}

}  // namespace bulkhead::bench
