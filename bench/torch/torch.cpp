// SPDX-License-Identifier: Apache-2.0
// Measures what Bulkhead and a kill cost a PyTorch program: `./dev bench torch`, see
// README.md.
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/torch/gpt_job.h"
#include "bench/torch/peer.h"
#include "tests/support/audit.h"

namespace bulkhead::bench {
namespace {

/// A GPT of about so many million parameters: 12 x layers x width^2 of them in its blocks.
GptShape shapeOf(uint32_t millions) {
    GptShape shape{6, 64, 2};
    if (millions >= 50) shape = {12, 64, 1};
    while (12ull * shape.layers * shape.width * shape.width < millions * 1'000'000ull)
        shape.width += 64;
    return shape;
}

void kills(const GptOptions& o, Report& report) {
    auto job = startGpt(o, kKilledGpt, "kills", drawnText(o, kKilledGpt, 100), 0);
    need(job->wait("the first step of all replicas", 120, allContribute));
    std::mt19937_64 rng(o.seed);
    std::vector<double> stalls, returns, exchanges;
    for (uint32_t i = 0; i < o.kills; ++i) {
        waitForSteps(*job, 10 + rng() % 10);
        model::FaultSpec fault = seededKill(rng);
        fault.shard = 0;
        uint64_t id = 0;
        const auto events = throughFault(*job, fault, id);
        const auto opened = incidentOf(events, id);
        const auto* closed = opened ? closedOf(events, opened->incident) : nullptr;
        if (closed == nullptr) die(absl::InternalError("a kill left no closed incident"));
        uint64_t without = 0;
        for (const auto& step : committed(events)) {
            without += step.record.contributors.size() < kGptReplicas;
            for (const auto& r : step.replicas) exchanges.push_back(r.exchangeMs);
        }
        stalls.push_back(closed->survivorStallMs);
        returns.push_back(closed->rejoinMs);
        report.row({absl::StrCat("kill ", i + 1, ": r", fault.replica, " in ", fault.atPhase),
                    number(closed->survivorStallMs), number(closed->rejoinMs / 1000),
                    absl::StrCat(without), closed->outcome});
    }
    model::Action stop;
    stop.kind = model::ActionKind::kStop;
    need(job->act(stop));
    need(
        job->wait("the end", 120, [](const model::RunState& s) { return s.finished.has_value(); }));
    const auto events = job->events();
    const auto wrong = support::auditRun(events);
    for (const std::string& line : wrong) report.note("ledger: " + line);
    uint64_t last = 0, missing = 0, disputed = 0;
    for (const auto& step : committed(events)) {
        missing += step.record.step - last - 1;
        last = step.record.step;
    }
    for (const model::Event& e : events)
        disputed += std::holds_alternative<model::ParityDisputed>(e.body);
    const double exchange = spreadOf(exchanges).median;
    report.atMost("median survivors' stall, beyond one exchange",
                  spreadOf(stalls).median - exchange, 300, "ms");
    report.note(absl::StrCat("back after ", number(spreadOf(returns).median / 1000), " s (",
                             number(spreadOf(returns).min / 1000), " to ",
                             number(spreadOf(returns).max / 1000), "), ", last, " steps"));
    report.atMost("steps that are missing", static_cast<double>(missing), 0, "");
    report.atMost("complaints of the ledger's audit", static_cast<double>(wrong.size()), 0, "");
    report.atMost("hashes that differed", static_cast<double>(disputed), 0, "");
}

struct Steady {
    double stepMs = 0;
    double gigabytes = 0;  ///< per replica, shortly before the end
};

/// Memory per replica now, of the processes whose arguments hold `word`: what several share counts
/// once.
double memoryOf(const std::string& word) {
    double gigabytes = 0;
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
        std::ifstream arguments(entry.path() / "cmdline");
        const std::string line{std::istreambuf_iterator<char>(arguments), {}};
        if (line.find(word) == std::string::npos || line.find("python") == std::string::npos)
            continue;
        std::ifstream memory(entry.path() / "smaps_rollup");
        std::string field;
        for (double kb = 0; memory >> field;)
            if (field == "Pss:" && memory >> kb) gigabytes += kb / 1e6;
    }
    return gigabytes / kGptReplicas;
}

/// The first steps touch memory for the first time.
double medianStep(std::vector<double> took) {
    took.erase(took.begin(), took.begin() + std::min<ptrdiff_t>(5, ptrdiff_t(took.size())));
    return spreadOf(took).median;
}

Steady underBulkhead(const GptOptions& o, const GptShape& s, const std::string& text) {
    auto job = startGpt(o, s, "steady", text, o.steps);
    Steady found;
    need(job->wait("all steps", 60 + 20. * double(o.steps), [&](const model::RunState& state) {
        // Once, as of the other: at its end the job writes a checkpoint, which the other does not.
        if (lastStep(state) + 2 >= o.steps && found.gigabytes == 0)
            found.gigabytes = memoryOf("train_bulkhead.py");
        return state.finished.has_value();
    }));
    std::vector<double> took;
    for (const auto& step : committed(job->events())) took.push_back(step.stepMs);
    if (found.gigabytes == 0) die(absl::InternalError("no process of the job was seen"));
    found.stepMs = medianStep(took);
    return found;
}

Steady underDdp(const GptOptions& o, const GptShape& s, const std::string& text) {
    std::string line =
        "export OMP_NUM_THREADS=1 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$(" + o.python +
        R"( -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
for r in 3 2 1; do RANK=$r )" +
        absl::StrJoin(gptProgram(o, s, "train_ddp.py", text), " ") +
        " --epochs 1 > /dev/null & done; RANK=0 " +
        absl::StrJoin(gptProgram(o, s, "train_ddp.py", text), " ") + " --epochs 1; wait";
    std::FILE* said = ::popen(line.c_str(), "r");
    Steady found;
    std::vector<double> took;
    std::array<char, 256> words{};
    auto before = std::chrono::steady_clock::now();
    while (std::fgets(words.data(), words.size(), said) != nullptr) {
        const auto now = std::chrono::steady_clock::now();
        took.push_back(std::chrono::duration<double, std::milli>(now - before).count());
        before = now;
        if (took.size() + 2 >= o.steps && found.gigabytes == 0)
            found.gigabytes = memoryOf("train_ddp.py");
    }
    if (::pclose(said) != 0 || took.size() < o.steps / 2)
        die(absl::InternalError("train_ddp.py failed; its words are above"));
    found.stepMs = medianStep(took);
    return found;
}

void steady(const GptOptions& o, Report& report) {
    for (const uint32_t millions : o.millions) {
        const GptShape shape = shapeOf(millions);
        const std::string text = drawnText(o, shape, o.steps);
        std::vector<double> ours, theirs;
        double oursGb = 0, theirsGb = 0;
        for (int turn = 0; turn < 3; ++turn) {  // in turn: a machine drifts
            const Steady ddp = underDdp(o, shape, text);
            const Steady job = underBulkhead(o, shape, text);
            ours.push_back(job.stepMs);
            theirs.push_back(ddp.stepMs);
            oursGb = std::max(oursGb, job.gigabytes);
            theirsGb = std::max(theirsGb, ddp.gigabytes);
            report.row({absl::StrCat(millions, " M, turn ", turn + 1), "", "", "",
                        absl::StrCat("step ", number(job.stepMs), " ms, DDP ", number(ddp.stepMs),
                                     " ms")});
        }
        const double extra = spreadOf(ours).median / spreadOf(theirs).median - 1;
        report.atMost(absl::StrCat("step at ", millions, " M over DDP's"), extra * 100, 3, "%");
        report.atMost(absl::StrCat("memory at ", millions, " M over DDP's, in gradients"),
                      (oursGb - theirsGb) * 1e9 / (4e6 * millions), 1, "");
    }
}

void loss(const GptOptions& o, Report& report) {
    const std::string text =
        std::filesystem::absolute(o.text.empty() ? o.root + "/LICENSES/GPL-3.0-only.txt" : o.text);
    lossUnderKills(
        [&](uint64_t seed) {
            GptShape shape = kKilledGpt;
            shape.seed = seed;
            shape.constantBatch =
                true;  // so that as many samples are trained on with kills as without
            auto job = startGpt(o, shape, "loss", text, o.lossSteps);
            need(job->wait("the first step of all replicas", 120, allContribute));
            return job;
        },
        o.lossSteps, o.kills, report);
}

}  // namespace
}  // namespace bulkhead::bench

int main(int argc, char** argv) {
    using namespace bulkhead::bench;
    CLI::App app(
        "A PyTorch program under Bulkhead: what kills cost, and what it costs without any");
    GptOptions options;
    options.lossSteps = 400;
    addPlace(app, options);
    app.add_option("--seed", options.seed, "of the kills")->capture_default_str();
    app.add_option("--kills", options.kills)->capture_default_str();
    app.add_option("--steps", options.steps, "of each steady run")->capture_default_str();
    app.add_option("--millions", options.millions, "parameters of the steady runs")
        ->capture_default_str();
    app.add_option("--text", options.text, "that the loss is of")->check(CLI::ExistingFile);
    app.add_option("--loss-steps", options.lossSteps)->capture_default_str();
    app.add_option("--parity", options.parityEverySteps,
                   "compare states every so many steps; 0: never; default: the job chooses");
    app.add_option("--part", options.parts, "kills, steady, loss; default: all");
    app.add_option("--peer", options.peer, "torchft: the kills beside it, in place of the parts")
        ->check(CLI::IsMember({"torchft"}));
    app.add_option("--no-peer", options.whyNoPeer, "why there is no torchft here");
    app.add_option("--python", options.python, "one that has torch")->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    if (!options.peer.empty()) return besideTorchft(options).finish(options.out);
    Report report("torch", {"what", "stall ms", "back s", "steps without", "outcome"});
    if (options.wants("kills")) kills(options, report);
    if (options.wants("steady")) steady(options, report);
    if (options.wants("loss")) loss(options, report);
    return report.finish(options.out);
}
