// SPDX-License-Identifier: Apache-2.0
// Throughput of the demo job without faults. `./dev bench demo`
#include <CLI/CLI.hpp>

#include "bench/demo_job.h"
#include "bench/report.h"

int main(int argc, char** argv) {
    using namespace bulkhead;
    using namespace bulkhead::bench;
    Place place;
    uint64_t steps = 120;
    CLI::App app("Steady state of the demo job");
    addPlace(app, place);
    app.add_option("--steps", steps, "measured, after twenty of warm-up");
    CLI11_PARSE(app, argc, argv);

    const auto job = value(DemoJob::start(place.root, place.out + "/demo-job"));
    const auto reach = [&](uint64_t step) {
        need(job->wait("step " + std::to_string(step), 300, [&](const model::RunState& s) {
            return s.lastCommit && s.lastCommit->record.step >= step;
        }));
    };
    reach(20);
    const uint64_t from = job->state().seq;
    reach(20 + steps);

    std::vector<double> stepMs, compute, exchange, exposed, vote, apply, tokens;
    const auto measured = committed(job->events(from));
    double first = 0, last = 0;
    for (const model::StepCommitted& s : measured) {
        stepMs.push_back(s.stepMs);
        tokens.push_back(static_cast<double>(s.record.tokens));
        for (const model::ReplicaLedger& r : s.replicas) {
            compute.push_back(r.computeMs);
            exchange.push_back(r.exchangeMs);
            exposed.push_back(r.exposedMs);
            vote.push_back(r.voteMs);
            apply.push_back(r.applyMs);
        }
        if (first == 0) first = s.loss;
        last = s.loss;
    }
    Report report("demo", {"figure", "median", "min", "max"});
    const auto row = [&](const std::string& name, const std::vector<double>& values) {
        const Spread s = spreadOf(values);
        report.row({name, number(s.median), number(s.min), number(s.max)});
    };
    row("step ms", stepMs);
    row("compute ms", compute);
    row("exchange ms", exchange);
    row("exchange not hidden ms", exposed);
    row("vote to commit ms", vote);
    row("apply ms", apply);
    row("tokens a step", tokens);
    report.note("4 replicas x 2 shards, " + std::to_string(measured.size()) + " steps, loss " +
                number(first, 3) + " to " + number(last, 3) + " nats/byte");
    double total = 0;
    for (const double ms : stepMs) total += ms;
    report.atLeast("steps per second", 1000.0 * static_cast<double>(stepMs.size()) / total, 2,
                   "1/s");
    report.atLeast("tokens a step", spreadOf(tokens).min, 2048, "");
    return report.finish(place.out);
}
