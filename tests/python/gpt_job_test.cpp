// SPDX-License-Identifier: Apache-2.0
// The programs of examples/gpt: four replicas of one rank, real processes of Python and torch.
#include <sys/wait.h>

#include <cmath>
#include <numeric>
#include <sstream>

#include "tests/fault/job_test.h"

namespace bulkhead::fault {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr const char* kSource = BULKHEAD_SOURCE;
/// Set by `./dev test torch`: a Python with torch 2 instead of Debian's.
const char* const kOther = std::getenv("BULKHEAD_PYTHON");
const std::string kPython = kOther ? kOther : BULKHEAD_PYTHON;
/// On a node with a GPU: "cuda", where replicas that have no GPU of their own share one.
const char* const kDevice = std::getenv("BULKHEAD_GPT_DEVICE");
constexpr uint64_t kSteps = 50;
// Windows of 64 bytes, so many that no pass over them ends within a step of 4 x 8.
constexpr size_t kTextBytes = 64 * 32 * 17 + 1;
constexpr size_t kDdpSteps = 3 * 17;
constexpr uint32_t kReplicas = 4;

/// Standard output of a shell; nullopt when it fails.
std::optional<std::string> shell(const std::string& line) {
    std::FILE* out = ::popen(line.c_str(), "r");
    std::string said;
    char part[4096];
    while (const size_t n = std::fread(part, 1, sizeof part, out)) said.append(part, n);
    const int status = ::pclose(out);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return std::nullopt;
    return said;
}

class GptJob : public JobTest {
  protected:
    void SetUp() override {
        patience_ = 120 * kSecond;
        host();
        ASSERT_TRUE(shell("head -c " + std::to_string(kTextBytes) + " " + kSource +
                          "/LICENSES/GPL-3.0-only.txt > " + text()));
    }
    std::string text() const { return host_->dir() + "/text"; }
    std::vector<std::string> program(const std::string& script) const {
        return {kPython,    std::string(kSource) + "/examples/gpt/" + script,
                "--text",   text(),
                "--width",  "64",
                "--layers", "2",
                "--epochs", "3",
                "--device", kDevice ? kDevice : "cpu"};
    }
    model::JobSpec spec(uint64_t steps) const {
        model::JobSpec s;
        s.name = "gpt";
        s.replicas = kReplicas;
        s.shards = 1;
        s.steps = steps;
        s.allowFaults = true;
        s.samplesPerReplica = 8;  // as the program's --batch
        s.sequenceLength = 64;
        s.command = program("train_bulkhead.py");
        s.env = {"PYTHONPATH=" BULKHEAD_PYTHONPATH};
        s.directory = host_->dir();
        s.domains = {{"data", {}}};
        if (kDevice) s.device = kDevice;
        s.shareGpu = kDevice != nullptr;
        s.timeouts.joinMs = 100'000;  // four imports of torch on few cores
        s.policies.lr = model::LrPolicy::kNone;
        s.policies.parityEverySteps = 1;  // the cost of a hash depends on the machine
        s.policies.deltaBudgetBytes = 1;  // less than a gradient, as that of a large model is
        return s;
    }
    /// The mean loss of each step by DistributedDataParallel, over all its processes. These are
    /// started one by one: Debian 12's torch.distributed.run does not go with its Python.
    std::vector<double> lossesByDdp() const {
        std::string line = "cd " + host_->dir() +
                           R"( && export OMP_NUM_THREADS=1 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1
            export MASTER_PORT=$()" +
                           kPython +
                           R"( -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
            for r in 0 1 2 3; do RANK=$r)";
        for (const std::string& word : program("train_ddp.py")) line += " " + word;
        line += " > ddp$r 2>&1 & done; wait; cat ddp?";
        const auto said = shell(line);
        std::vector<double> sum(kDdpSteps);
        std::istringstream lines(said.value_or(""));
        std::string word;
        size_t count = 0;
        for (double loss = 0; lines >> word;)
            if (word == "loss" && lines >> loss) sum[count++ % kDdpSteps] += loss / kReplicas;
        EXPECT_EQ(count, kDdpSteps * kReplicas) << said.value_or("");
        return sum;
    }
};

TEST_F(GptJob, ItsLossIsThatOfDistributedDataParallel) {
    start(spec(kSteps));
    expectFinishedWell();
    const auto commits = all<model::StepCommitted>();
    ASSERT_THAT(commits, SizeIs(kSteps));
    const std::vector<double> ddp = lossesByDdp();
    double worst = 0;
    for (size_t i = 0; i < kSteps; ++i) {
        ASSERT_EQ(commits[i].record.contributors.size(), kReplicas) << "step " << i + 1;
        worst = std::max(worst, std::abs(commits[i].loss - ddp[i]));
    }
    EXPECT_LT(worst, 1e-4);
    RecordProperty("worst", std::to_string(worst));
    std::printf("largest difference of a step's loss: %.2g nats\n", worst);
    EXPECT_LT(commits.back().loss, commits.front().loss - 1) << "it learns";
}

TEST_F(GptJob, AKilledReplicaCatchesUpAndIsTheSameBitForBit) {
    start(spec(0));
    awaitStep(20);
    inject(model::FaultKind::kKillReplica, 2);
    ASSERT_TRUE(await<model::IncidentClosed>().has_value());
    const auto again = await<model::StepCommitted>(
        [](const model::StepCommitted& c) { return c.record.contributors.size() == kReplicas; });
    ASSERT_TRUE(again.has_value());
    awaitStep(again->record.step + 20);
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();  // the ledger adds up: auditRun()
    EXPECT_THAT(all<model::InvariantBroken>(), IsEmpty());
    EXPECT_THAT(all<model::ParityDisputed>(), IsEmpty());
    size_t compared = 0, alone = 0;
    uint64_t step = 0;
    for (const auto& c : all<model::StepCommitted>()) {
        EXPECT_EQ(c.record.step, ++step) << "no step is lost";
        for (const auto& group : c.parity) compared += group.replicas.size() == kReplicas;
        alone += c.record.contributors.size() < kReplicas;
    }
    EXPECT_GT(alone, 0u) << "the others trained on";
    EXPECT_GT(compared, 30u) << "hashes of all four";
    const auto closed = all<model::IncidentClosed>();
    ASSERT_THAT(closed, SizeIs(1));
    std::printf("survivors' stall %.0f ms, back after %.0f ms, %zu steps without it\n",
                closed[0].survivorStallMs, closed[0].rejoinMs, alone);
}

/// Two replicas of two ranks each, whose processes hold the model between them.
class ShardedGpt : public GptJob, public testing::WithParamInterface<const char*> {};

TEST_P(ShardedGpt, AKilledRankEndsItsReplicaAloneWhichComesBackTheSameBitForBit) {
    model::JobSpec s = spec(0);
    s.replicas = s.shards = 2;
    s.clipNorm = 1;
    s.command = program(GetParam());
    s.timeouts.beatMs = 1'000;  // an interpreter that ends is silent before it is gone
    s.timeouts.heartbeatMs = 20'000;
    start(s);
    awaitStep(15);
    model::FaultSpec fault;
    fault.kind = model::FaultKind::kKillRank;
    fault.replica = fault.shard = 1;
    ASSERT_TRUE(host_->controller().inject(run_, fault, 0, "", "test").ok());
    ASSERT_TRUE(await<model::IncidentClosed>().has_value());
    const auto again = await<model::StepCommitted>(
        [](const model::StepCommitted& c) { return c.record.contributors.size() == 2; });
    ASSERT_TRUE(again.has_value());
    awaitStep(again->record.step + 15);
    EXPECT_THAT(all<model::RankExited>(),
                testing::Each(testing::ResultOf([](const auto& e) { return e.rank.replica; }, 1)))
        << "the lost rank ends its replica alone";
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();  // the ledger adds up: auditRun()
    EXPECT_THAT(all<model::InvariantBroken>(), IsEmpty());
    EXPECT_THAT(all<model::ParityDisputed>(), IsEmpty());
    const auto commits = all<model::StepCommitted>();
    size_t compared = 0, alone = 0;
    uint64_t step = 0;
    for (const auto& c : commits) {
        EXPECT_EQ(c.record.step, ++step) << "no step is lost";
        for (const auto& group : c.parity)
            compared += group.replicas.size() == 2 && group.hashes.size() == 2;
        alone += c.record.contributors.size() == 1;
    }
    EXPECT_GT(alone, 0u) << "the other one trained on";
    EXPECT_GT(compared, 20u) << "hashes of both shards of both replicas";
    EXPECT_LT(commits.back().loss, commits.front().loss - 1) << "it learns";
    const auto opened = all<model::IncidentOpened>();
    ASSERT_THAT(opened, SizeIs(1));
    EXPECT_THAT(opened[0].title, testing::HasSubstr("r1s1"));
    const auto closed = all<model::IncidentClosed>();
    std::printf("survivors' stall %.0f ms, back after %.0f ms, %zu steps without it\n",
                closed[0].survivorStallMs, closed[0].rejoinMs, alone);
}

/// Debian's torch has no fully_shard().
INSTANTIATE_TEST_SUITE_P(
    Gpt, ShardedGpt,
    testing::ValuesIn(kOther ? std::vector<const char*>{"train_tensor_parallel.py", "train_fsdp.py"}
                             : std::vector{"train_tensor_parallel.py"}));

class Ends : public JobTest {
  protected:
    void SetUp() override {
        patience_ = 120 * kSecond;
        host();
    }
    model::JobSpec spec(uint32_t replicas, const std::vector<std::string>& command) const {
        model::JobSpec s;
        s.name = "ends";
        s.allowFaults = true;
        s.replicas = replicas;
        s.shards = 1;
        s.samplesPerReplica = 8;
        s.sequenceLength = 1;
        s.command = command;
        s.env = {"PYTHONPATH=" BULKHEAD_PYTHONPATH};
        s.directory = host_->dir();
        s.domains = {{"data", {}}};
        s.timeouts.joinMs = 100'000;
        s.timeouts.progressFloorMs = 6'000;
        s.timeouts.chunkFloorMs = 60'000;
        // An interpreter that ends is silent before it is gone: its peers alone must not end it.
        s.timeouts.beatMs = 1'000;
        s.timeouts.heartbeatMs = 10'000;
        s.policies.lr = model::LrPolicy::kNone;
        return s;
    }
};

TEST_F(Ends, ARankThatEndsIsNamedByWhatItEndedOfAndTheOthersTrainOn) {
    start(spec(6, {kPython, std::string(kSource) + "/tests/python/ends.py"}));
    await<model::StepCommitted>(
        [](const model::StepCommitted& c) { return c.record.contributors.size() == 1; });
    await<model::StepCommitted>(
        [](const model::StepCommitted& c) { return c.record.contributors.size() == 6; });
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    std::map<int32_t, std::string> titles;
    for (const auto& opened : all<model::IncidentOpened>())
        titles.emplace(opened.replica, opened.title);
    const auto named = [&](int32_t replica, const std::vector<std::string>& words) {
        for (const std::string& word : words)
            EXPECT_THAT(titles[replica], testing::HasSubstr(word)) << "r" << replica;
    };
    named(1, {"ValueError: no such row; at ends.py:", "in raises"});
    named(2,
          {"no batch and no gradient for", "the program stands at", "in __getitem__, queue.py:"});
    named(3, {"out of memory: ", "in takes_all_memory"});
    named(4, {"exited with code 3", "the program ended in step 5, the job did not: sys.exit()"});
    named(5, {"exited with code 1", "the program ended in step 5"});
    EXPECT_THAT(all<model::ParityDisputed>(), IsEmpty()) << "running statistics are alike";
    EXPECT_THAT(all<model::StepCommitted>().front().scalars,
                testing::ElementsAre(Scalar{"replica", 2.5}));
    EXPECT_FALSE(titles.contains(0)) << titles[0];
    EXPECT_THAT(titles, SizeIs(5)) << "who did nothing wrong is blamed for nothing";
    size_t told = 0;
    for (const auto& line : all<model::RankOutput>())
        told += line.line.find("only the rank itself trains") != std::string::npos;
    EXPECT_GE(told, 1u);
}

TEST_F(Ends, AScriptForTorchftTrainsThroughAKillWithOnlyItsImportsChanged) {
    model::JobSpec s = spec(3, {kPython, std::string(kSource) + "/tests/python/torchft_script.py"});
    s.samplesPerReplica = 16;
    start(s);
    awaitStep(20);
    inject(model::FaultKind::kKillReplica, 1);
    await<model::IncidentClosed>();
    const auto again = await<model::StepCommitted>(
        [](const model::StepCommitted& c) { return c.record.contributors.size() == 3; });
    ASSERT_TRUE(again.has_value());
    awaitStep(again->record.step + 20);
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    EXPECT_THAT(all<model::ParityDisputed>(), IsEmpty());
    EXPECT_THAT(all<model::IncidentOpened>(), SizeIs(1)) << "each script ended with the job";
    double first = 0, last = 0, two = 0;
    for (const auto& said : all<model::RankOutput>()) {
        unsigned step = 0, replicas = 0;
        double loss = 0;
        if (std::sscanf(said.line.c_str(), "step %u of %u: %lf", &step, &replicas, &loss) != 3)
            continue;
        two += replicas == 2;
        if (step == 1) first = loss;
        if (step > again->record.step) last = loss;
    }
    EXPECT_GT(first, 1.5);
    EXPECT_LT(last, first / 5) << "it learns";
    EXPECT_GT(two, 0) << "the others trained on";
}

TEST_F(Ends, TheExpertsOfAProgramAreCountedAndStayWhereItPutThem) {
    start(spec(2, {kPython, std::string(kSource) + "/tests/python/mixture.py"}));
    const auto loads = await<model::ExpertLoads>();
    ASSERT_TRUE(loads.has_value());
    EXPECT_EQ(std::tuple(loads->moeLayers, loads->domains, loads->experts), std::tuple(2u, 1u, 4u));
    const uint64_t perStep = 2 * 8 * 8 * 2;  // replicas, samples, tokens of one, choices
    const size_t half = loads->counts.size() / 2;
    for (const size_t layer : {0, 1}) {
        const auto first = loads->counts.begin() + static_cast<std::ptrdiff_t>(layer * half);
        const uint64_t choices =
            std::accumulate(first, first + static_cast<std::ptrdiff_t>(half), uint64_t{0});
        EXPECT_GT(choices, 0u);
        EXPECT_EQ(choices % perStep, 0u);
    }
    model::Action move;
    move.kind = model::ActionKind::kChangeLayout;
    move.expertShard.assign(8, 0);
    const auto answer = [&](const model::Action& action) {
        return std::string(host_->controller().act(run_, action, 0, "", "test").message());
    };
    EXPECT_THAT(answer(move), testing::HasSubstr("the job's own program places the experts"));
    model::Action capture;
    capture.kind = model::ActionKind::kCaptureRouting;
    capture.tokens = 100;
    EXPECT_THAT(answer(capture), testing::HasSubstr("not which token chose which"));
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
}

TEST_F(Ends, ASignalShowsWhereEachThreadOfARankStands) {
    start(spec(2, {kPython, std::string(kSource) + "/tests/python/mixture.py"}));
    awaitStep(3);
    ASSERT_EQ(::kill(static_cast<pid_t>(all<model::RankStarted>().front().pid), SIGQUIT), 0);
    const auto said = await<model::RankOutput>([](const model::RankOutput& line) {
        return line.line.find("mixture.py\", line ") != std::string::npos;
    });
    EXPECT_TRUE(said.has_value());
    awaitStep(all<model::StepCommitted>().back().record.step + 3);
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    EXPECT_THAT(all<model::IncidentOpened>(), IsEmpty());
}

TEST_F(Ends, AProgramWithoutTorchIsHopelessAtOnceWhicheverItImportsFirst) {
    const std::string first = "import bulkhead", other = "import no_such_torch, bulkhead";
    for (const auto& [imports, words] :
         {std::pair(first, "install python3-torch"), std::pair(other, "named 'no_such_torch'")}) {
        start(spec(2, {kPython, "-I", "-c",
                       "import sys; sys.path.insert(0, '" BULKHEAD_PYTHONPATH "');"
                       "sys.modules['torch'] = None; " +
                           imports}));
        const auto finished = await<model::RunFinished>();
        ASSERT_TRUE(finished.has_value());
        EXPECT_FALSE(finished->ok);
        EXPECT_THAT(finished->why, testing::HasSubstr(words));
        EXPECT_THAT(all<model::RankExited>(), SizeIs(2)) << "nobody was started again";
    }
}

/// A program that reads the numbers 0 to 999, whose loss of a step is the mean of its samples.
class Streams : public Ends {
  protected:
    static constexpr uint64_t kNumbers = 1000;
    void startAndAwait(const std::string& kind, uint64_t steps) {
        start(spec(3, {kPython, std::string(kSource) + "/tests/python/stream.py", kind}));
        awaitStep(steps);
    }
    static double meanOf(const CommitRecord& record) {
        double sum = 0, samples = 0;
        for (const Contribution& c : record.contributors)
            for (const SampleRange& r : c.ranges)
                for (uint64_t i = r.begin; i < r.end; ++i, ++samples)
                    sum += static_cast<double>(i % kNumbers);
        return sum / samples;
    }
    void expectEveryStepsSamples() const {
        uint64_t step = 0;
        for (const auto& c : all<model::StepCommitted>()) {
            ASSERT_EQ(c.record.step, ++step) << "no step is lost";
            ASSERT_NEAR(c.loss, meanOf(c.record), 1e-3) << "step " << step;
        }
    }
    size_t readAnew(int32_t replica) const {
        size_t told = 0;
        for (const auto& said : all<model::RankOutput>())
            told += said.rank.replica == replica &&
                    said.line.find("reads the stream of domain data") != std::string::npos;
        return told;
    }
};

class KilledStream : public Streams, public testing::WithParamInterface<const char*> {};

TEST_P(KilledStream, EverySampleIsTrainedOnOnceAndIsTheStreams) {
    startAndAwait(GetParam(), 20);
    inject(model::FaultKind::kKillReplica, 1);
    await<model::IncidentClosed>();
    const auto again = await<model::StepCommitted>(
        [](const model::StepCommitted& c) { return c.record.contributors.size() == 3; });
    ASSERT_TRUE(again.has_value());
    awaitStep(again->record.step + 3 * kNumbers / 24);
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();  // the ledger adds up: auditRun()
    expectEveryStepsSamples();
    EXPECT_THAT(all<model::IncidentOpened>(), SizeIs(1));
    if (GetParam() != std::string("plain")) {
        EXPECT_EQ(readAnew(1), 0u) << "its peers had left a state";
    }
}

INSTANTIATE_TEST_SUITE_P(Streams, KilledStream, testing::Values("plain", "continued", "listed"));

TEST_F(Streams, AResumedJobGoesOnWhereItsCheckpointWasWritten) {
    startAndAwait("continued", 100);
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    const uint64_t last = all<model::StepCommitted>().back().record.step;
    start(spec(3, {kPython, std::string(kSource) + "/tests/python/stream.py", "continued"}), run_);
    awaitStep(last + 50);
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    for (const auto& c : all<model::StepCommitted>())
        ASSERT_NEAR(c.loss, meanOf(c.record), 1e-3) << "step " << c.record.step;
    EXPECT_EQ(readAnew(0) + readAnew(1) + readAnew(2), 0u);
}

}  // namespace
}  // namespace bulkhead::fault
