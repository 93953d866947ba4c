// SPDX-License-Identifier: Apache-2.0
#include "backend/model/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "toml++/toml.h"

namespace bulkhead::model {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kDomain = "[[domains]]\nname = \"a\"\npaths = [\"a.txt\"]\n";

class JobFile : public testing::Test {
  protected:
    void SetUp() override {
        folder_ = fs::path(testing::TempDir()) /
                  ("job_file_" + std::to_string(getpid()) + "_" +
                   testing::UnitTest::GetInstance()->current_test_info()->name());
        fs::create_directories(folder_);
    }
    void TearDown() override {
        fs::permissions(folder_, fs::perms::owner_all);
        fs::remove_all(folder_);
    }
    fs::path write(const std::string& name, const std::string& text) {
        fs::create_directories((folder_ / name).parent_path());
        std::ofstream(folder_ / name, std::ios::binary) << text;
        return folder_ / name;
    }
    std::string errorOf(const std::string& toml) {
        const auto spec = parseJob(toml, "a.toml", folder_);
        return spec.ok() ? "" : std::string(spec.status().message());
    }
    fs::path folder_;
};

TEST_F(JobFile, demoIsAValidJobOfTheRepository) {
    const auto spec = readJobFile(fs::path(BULKHEAD_SOURCE) / "resources/jobs/demo.toml");
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->replicas * spec->samplesPerReplica * spec->sequenceLength, 2048u);
    EXPECT_EQ(spec->shards, 2u);
    ASSERT_EQ(spec->domains.size(), 4u);
    EXPECT_EQ(spec->domains[0].paths[0], (fs::path(BULKHEAD_SOURCE) / "backend").string());
    EXPECT_THAT(spec->modelToml, HasSubstr("tiny"));
    const absl::Status data = checkData(*spec);
    EXPECT_TRUE(data.ok()) << data;
}

TEST_F(JobFile, fillsInDefaultsAndResolvesPaths) {
    const auto spec = parseJob(kDomain, "jobs/night.toml", folder_);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->name, "night");
    EXPECT_EQ(spec->replicas, 4u);
    EXPECT_EQ(spec->domains[0].paths[0], (folder_ / "a.txt").string());
    EXPECT_EQ(spec->checkpointDir, "");
}

TEST_F(JobFile, readsEveryTable) {
    const auto spec = parseJob(std::string(R"(
replicas = 3
shards = 1
transport = "tcp"
wire = "bfloat16"
all_reduce = "ring"
connections = 4
encrypt = true
faults = ["kill:replica=2@step=50", "kill-node:node=n1"]
checkpoint_dir = "state"
[optimizer]
learning_rate = 1
[policies]
lr = "linear"
[timeouts]
beat_ms = 50
[plan]
drift = 0.2
cooldown_steps = 90
[[placement]]
node = "n0"
replicas = [0, 2]
[[placement]]
node = "n1"
replicas = [1]
)") + kDomain,
                               "a.toml", folder_);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->transport, TransportChoice::kTcp);
    EXPECT_EQ(spec->wire, WireType::kBfloat16);
    EXPECT_EQ(spec->allReduce, AllReduce::kRing);
    EXPECT_EQ(spec->connections, 4u);
    EXPECT_TRUE(spec->encrypt);
    EXPECT_TRUE(spec->takesFaults()) << "it plans some";
    EXPECT_EQ(spec->policies.lr, LrPolicy::kLinear);
    EXPECT_DOUBLE_EQ(spec->optimizer.learningRate, 1);
    EXPECT_EQ(spec->timeouts.beatMs, 50u);
    EXPECT_DOUBLE_EQ(spec->plan.drift, 0.2);
    EXPECT_EQ(spec->plan.cooldownSteps, 90u);
    EXPECT_EQ(spec->placement[0].replicas, (std::vector<int32_t>{0, 2}));
    EXPECT_EQ(spec->checkpointDir, (folder_ / "state").string());
}

TEST_F(JobFile, howOftenStatesAreComparedIsANumberOrLeftToTheJob) {
    const auto parsed = [&](const std::string& policies) {
        return parseJob(std::string("[policies]\n") + policies + kDomain, "a.toml", folder_);
    };
    EXPECT_EQ(parsed("")->policies.parityEverySteps, std::nullopt);
    EXPECT_EQ(parsed("parity_every_steps = \"auto\"\n")->policies.parityEverySteps, std::nullopt);
    EXPECT_EQ(parsed("parity_every_steps = 0\n")->policies.parityEverySteps, 0u);
    EXPECT_EQ(parsed("parity_every_steps = 7\n")->policies.parityEverySteps, 7u);
    EXPECT_THAT(
        std::string(parsed("parity_every_steps = \"often\"\n").status().message()),
        HasSubstr(
            "policies.parity_every_steps: expected a whole number of 0 or more, or \"auto\""));
}

TEST_F(JobFile, aCommandRunsInTheFilesFolderOnDataOfItsOwn) {
    const auto spec =
        parseJob("command = [\"python3\", \"train.py\"]\nenv = [\"A=1\"]\n", "a.toml", folder_);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->command, (std::vector<std::string>{"python3", "train.py"}));
    EXPECT_EQ(fs::path(spec->directory), folder_ / "");
    ASSERT_EQ(spec->domains.size(), 1u);
    EXPECT_EQ(spec->domains[0].name, "data");
    EXPECT_EQ(spec->shards, 1u);
    EXPECT_EQ(spec->sequenceLength, 1u);
    EXPECT_EQ(spec->timeouts.joinMs, 60000u);
    EXPECT_EQ(spec->timeouts.progressFloorMs, 60000u);
    EXPECT_EQ(spec->timeouts.chunkFloorMs, 60000u);
    EXPECT_TRUE(checkData(*spec).ok());
    const auto said = parseJob(
        "command = [\"a\"]\ndirectory = \"sub\"\nsequence_length = 8\ntimeouts.join_ms = 5\n"
        "[[domains]]\nname = \"web\"\n[[domains]]\nname = \"code\"\n",
        "a.toml", folder_);
    ASSERT_TRUE(said.ok()) << said.status();
    EXPECT_EQ(said->directory, (folder_ / "sub").string());
    EXPECT_EQ(said->domains.size(), 2u);
    EXPECT_EQ(said->sequenceLength, 8u);
    EXPECT_EQ(said->timeouts.joinMs, 5u);
}

TEST_F(JobFile, whatACommandDecidesItselfIsRefused) {
    const std::string command = "command = [\"a\"]\n";
    EXPECT_THAT(errorOf(command + kDomain), HasSubstr("domains[0].paths: a job with a command"));
    EXPECT_THAT(errorOf(command + "clip_norm = -1\n"), HasSubstr("clip_norm: expected 0"));
    EXPECT_THAT(errorOf("clip_norm = 1\n" + std::string(kDomain)),
                HasSubstr("use optimizer.clip_norm"));
    EXPECT_THAT(errorOf(command + "workload = \"x\"\n"), HasSubstr("workload: a job with a"));
    EXPECT_THAT(errorOf(command + "[optimizer]\nbeta1 = 0.5\n"), HasSubstr("optimizer: a job"));
    EXPECT_THAT(errorOf(command + "[model]\nsize = \"tiny\"\n"), HasSubstr("model: a job"));
    EXPECT_THAT(errorOf(command + "env = [\"A\"]\n"), HasSubstr("env[0]: expected NAME=value"));
    EXPECT_THAT(errorOf(command + "env = [\"BULKHEAD_JOB=x\"]\n"), HasSubstr("env[0]: names"));
    EXPECT_THAT(errorOf("command = [\"\"]\n"), HasSubstr("command: expected a program"));
    EXPECT_THAT(errorOf(std::string("env = [\"A=1\"]\n") + kDomain),
                HasSubstr("env: is for a job"));
}

TEST_F(JobFile, handsTheModelTableOverAsTextWithItsBaseFileInside) {
    write("base.toml", "dim = 96\nlayers = 4\n");
    const auto spec =
        parseJob(std::string(kDomain) + "[model]\nfile = \"base.toml\"\nlayers = 8\ntheta = 1e4\n",
                 "a.toml", folder_);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const toml::table model = toml::parse(spec->modelToml);
    EXPECT_EQ(model["dim"].value<int64_t>(), 96);
    EXPECT_EQ(model["layers"].value<int64_t>(), 8);
    EXPECT_EQ(model["theta"].value<double>(), 1e4);
    EXPECT_FALSE(model.contains("file"));
}

TEST_F(JobFile, aKeyOfEndlessPartsIsRefusedBeforeItIsRead) {
    std::string key = "a";
    for (int i = 0; i < 200'000; ++i) key += i % 2 == 0 ? ".a" : " . 'b.c'";
    for (const std::string& text : {key + " = 1\n", "[" + key + "]\n", "x = {" + key + " = 1}\n",
                                    "s = \"\"\"\\\"\"\"\"\"\"\n" + key + " = 1\n"})
        EXPECT_THAT(errorOf(text), HasSubstr("a key has 200001 parts")) << text.substr(0, 40);
    const std::string dots(100, '.');
    const std::string quoted = kDomain + ("data_dir = '" + dots + "'  # " + dots + "\n");
    EXPECT_THAT(errorOf(quoted), testing::Not(HasSubstr("parts"))) << "they are in no key";
}

TEST_F(JobFile, namesLineKeyAndExpectation) {
    EXPECT_EQ(errorOf(std::string("replicas = 4\nshards = \"two\"\n") + kDomain),
              "a.toml:2: shards: expected a whole number of 0 or more, found \"two\"");
    EXPECT_EQ(errorOf(std::string("replicas = -1\n") + kDomain),
              "a.toml:1: replicas: expected a whole number of 0 or more, found -1");
    EXPECT_EQ(errorOf(std::string("replicas = 4294967296\n") + kDomain),
              "a.toml:1: replicas: expected a whole number of 0 or more, found 4294967296");
    EXPECT_EQ(errorOf(std::string(kDomain) + "[policies]\n\nlr = \"square\"\n"),
              "a.toml:6: policies.lr: expected one of none, linear, sqrt, found \"square\"");
    EXPECT_EQ(errorOf("domains = [{name = \"a\", paths = \"x\"}]\n"),
              "a.toml:1: domains[0].paths: expected an array, found \"x\"");
    EXPECT_EQ(errorOf("domains = 3\n"), "a.toml:1: domains: expected an array, found 3");
    EXPECT_THAT(errorOf("model = 3\n"), HasSubstr("a.toml:1: model: expected a table [model]"));
    EXPECT_THAT(errorOf("[model]\nfile = \"nowhere.toml\"\n"),
                StartsWith("a.toml:2: model.file: "));
}

TEST_F(JobFile, aTextThatOthersWouldReadOtherwiseIsRefused) {
    EXPECT_EQ(errorOf("command = [\"bash\\u0000/../run.sh\"]\n"),
              "a.toml:1: command[0]: expected text without a NUL, found "
              "\"bash\\x00/../run.sh\"");
    EXPECT_THAT(errorOf("command = [\"sh\"]\nenv = [\"A=b\\u0000c\"]\n"),
                HasSubstr("env[0]: expected text without"));
    for (const char* key : {"checkpoint_dir", "workload", "device"}) {
        EXPECT_THAT(errorOf(std::string(key) + " = \"/a\\u0000/../b\"\n" + kDomain),
                    HasSubstr(key));
        EXPECT_THAT(errorOf(std::string(key) + " = \"/a\\nFAKE\"\n" + kDomain),
                    HasSubstr("found \"/a\\x0aFAKE\""));
    }
    EXPECT_THAT(errorOf("[[domains]]\nname = \"a\"\npaths = [\"x\\u0000y\"]\n"),
                HasSubstr("domains[0].paths[0]"));
    EXPECT_THAT(errorOf(std::string("\"rep\\nFAKE\" = 4\n") + kDomain),
                StartsWith("a.toml:1: unknown key \"rep\\x0aFAKE\"; known: "));
}

TEST_F(JobFile, aCommandHasLinesOfItsOwn) {
    const auto spec =
        parseJob("command = [\"python3\", \"-c\", \"a = 1\\nprint(a)\"]\n", "a.toml", folder_);
    EXPECT_TRUE(spec.ok()) << spec.status();
}

TEST_F(JobFile, hintsAtTheKeyThatWasMeant) {
    EXPECT_EQ(errorOf(std::string("replcas = 4\n") + kDomain),
              "a.toml:1: unknown key \"replcas\"; did you mean \"replicas\"?");
    EXPECT_EQ(errorOf(std::string(kDomain) + "[timeouts]\nheartbeatMs = 4\n"),
              "a.toml:5: timeouts: unknown key \"heartbeatMs\"; did you mean \"heartbeat_ms\"?");
    EXPECT_THAT(errorOf("model_toml = \"\"\n"), HasSubstr("write a table [model] instead"));
}

TEST_F(JobFile, namesTheLineOfWhatDoesNotFitTogether) {
    EXPECT_EQ(errorOf(std::string("shards = 2\nsamples_per_replica = 3\n") + kDomain),
              "a.toml:2: samples_per_replica: expected a multiple of shards x micro_batch = 2 x 1, "
              "found 3");
    EXPECT_THAT(errorOf(std::string("replicas = 0\n") + kDomain),
                StartsWith("a.toml:1: replicas: expected 1 to"));
    EXPECT_THAT(errorOf(std::string("replicas = 65\n") + kDomain),
                HasSubstr("replicas + spares: at most 64, the exchange's limit; found 65 + 0"));
    EXPECT_THAT(errorOf(std::string("replicas = 60\nspares = 5\n") + kDomain),
                HasSubstr("replicas + spares: at most 64, the exchange's limit; found 60 + 5"));
    EXPECT_THAT(errorOf(std::string("shards = 65\n") + kDomain),
                HasSubstr("shards: expected 1 to 64, the limit of a replica's group; found 65"));
    EXPECT_THAT(errorOf(std::string(kDomain) + "[policies]\nmin_replicas = 9\n"),
                StartsWith("a.toml:5: policies.min_replicas: expected 1 up to replicas = 4"));
    EXPECT_THAT(errorOf(std::string("faults = [\"kil:replica=2\"]\n") + kDomain),
                StartsWith("a.toml:1: faults[0]: unknown fault \"kil\"; did you mean \"kill\"?"));
    EXPECT_THAT(errorOf(std::string("faults = [\"kill:replica=4\"]\n") + kDomain),
                HasSubstr("expected a replica from 0 to 3"));
    EXPECT_EQ(errorOf("all_reduce = \"ring\"\ntransport = \"shm\"\n" + std::string(kDomain)),
              "a.toml:1: all_reduce: a ring runs over TCP, but transport is \"shm\"");
    EXPECT_EQ(errorOf("plan = {drift = -1}\n" + std::string(kDomain)),
              "a.toml:1: plan.drift: expected 0 (nothing is proposed) to 100");
    EXPECT_EQ(errorOf("connections = 0\n" + std::string(kDomain)),
              "a.toml:1: connections: expected 1 to 16, found 0");
    EXPECT_THAT(errorOf("replicas = 4\n"), HasSubstr("a.toml: domains: expected at least one"));
}

TEST_F(JobFile, TakesFaultsWhenItSaysSo) {
    const auto takes = [&](const std::string& line) {
        const auto spec = parseJob(line + kDomain, "a.toml", folder_);
        EXPECT_TRUE(spec.ok()) << spec.status();
        return spec.ok() && spec->takesFaults();
    };
    EXPECT_FALSE(takes(""));
    EXPECT_FALSE(takes("faults = \"off\"\n"));
    EXPECT_TRUE(takes("faults = \"on\"\n"));
    EXPECT_EQ(errorOf(std::string("faults = \"yes\"\n") + kDomain),
              "a.toml:1: faults: expected \"on\", \"off\" or a list of faults, found \"yes\"");
}

TEST_F(JobFile, placesEveryReplicaOnce) {
    const auto placed = [&](const std::string& a, const std::string& b) {
        return errorOf("replicas = 3\n" + std::string(kDomain) + "[[placement]]\nnode = \"n0\"\n" +
                       "replicas = [" + a + "]\n[[placement]]\nnode = \"n1\"\nreplicas = [" + b +
                       "]\n");
    };
    EXPECT_EQ(placed("0, 1", "2"), "");
    EXPECT_EQ(placed("0, 1", ""), "a.toml:5: placement: replica 2 is on no node");
    EXPECT_EQ(placed("0, 1", "1, 2"), "a.toml:10: placement[1].replicas: replica 1 is on n0 too");
    EXPECT_THAT(placed("0, 1", "2, 3"), HasSubstr("expected 0 to 2, found 3"));
    EXPECT_THAT(placed("0, 1", "2, -1"), HasSubstr("found -1"));
}

TEST_F(JobFile, saysWhatIsWrongWithAFile) {
    EXPECT_EQ(readJobFile(folder_ / "none.toml").status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(readJobFile(folder_).status().code(), absl::StatusCode::kInvalidArgument);
    const auto broken = readJobFile(write("broken.toml", "replicas = 4\nshards = = 2\n"));
    EXPECT_THAT(std::string(broken.status().message()), HasSubstr("broken.toml:2: not TOML: "));
    EXPECT_EQ(readJobFile("/dev/zero").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(JobFile, survivesHostileToml) {
    std::mt19937 random(3);
    const std::string good =
        std::string("replicas = 3\nshards = 1\nfaults = [\"kill:replica=2\"]\n") +
        "[model]\nsize = \"tiny\"\n[policies]\nlr = \"sqrt\"\n" + kDomain;
    for (int round = 0; round < 3000; ++round) {
        std::string text = good;
        for (int flips = 0; flips < 4; ++flips)
            text[random() % text.size()] = static_cast<char>(random() % 256);
        (void)parseJob(text, "a.toml", folder_);
    }
    EXPECT_NE(errorOf("a = " + std::string(100'000, '[')), "");
    EXPECT_NE(errorOf(std::string(2 << 20, '#')), "");
    EXPECT_NE(errorOf(std::string("\0\0", 2)), "");
}

TEST_F(JobFile, checksThatThereIsTextToTrainOn) {
    JobSpec spec;
    spec.sequenceLength = 8;
    const auto check = [&](const fs::path& path) {
        spec.domains = {{"prose", {path.string()}}};
        return checkData(spec);
    };
    EXPECT_TRUE(check(write("good.txt", "nine bytes or more")).ok());
    const absl::Status absent = check(folder_ / "absent");
    EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(absent.message()), HasSubstr("domain \"prose\": "));
    EXPECT_THAT(std::string(check(write("empty.txt", "")).message()), HasSubstr("empty"));
    EXPECT_THAT(std::string(check(write("short.txt", "eight by")).message()),
                HasSubstr("8 bytes of text, expected more than one sample's 8"));
    fs::create_directories(folder_ / "hollow/deep");
    EXPECT_THAT(std::string(check(folder_ / "hollow").message()), HasSubstr("no text"));
    write("hollow/deep/data.bin", std::string("\0\1\2", 3));
    EXPECT_THAT(std::string(check(folder_ / "hollow").message()), HasSubstr("no text"));
    write("hollow/deep/text.txt", "now there is some");
    EXPECT_TRUE(check(folder_ / "hollow").ok());
}

TEST_F(JobFile, namesAnUnreadableFile) {
    JobSpec spec;
    spec.domains = {{"prose", {"/proc/self/mem"}}};  // unreadable for root as well
    const absl::Status status = checkData(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("domain \"prose\": /proc/self/mem: cannot be read"));
}

TEST_F(JobFile, makesADomainOfEveryEntryOfAFolder) {
    write("data/code/a.cpp", "int main() {}");
    write("data/shakespeare.txt", "to be");
    write("data/shakespeare.md", "or not");
    write("data/.hidden", "x");
    const auto domains = domainsOfFolder(folder_ / "data");
    ASSERT_TRUE(domains.ok()) << domains.status();
    ASSERT_EQ(domains->size(), 3u);
    EXPECT_EQ((*domains)[0].name, "code");
    EXPECT_EQ((*domains)[1].name, "shakespeare");
    EXPECT_EQ((*domains)[2].name, "shakespeare.txt");
    EXPECT_EQ((*domains)[2].paths[0], (folder_ / "data/shakespeare.txt").string());
    fs::create_directories(folder_ / "none");
    EXPECT_EQ(domainsOfFolder(folder_ / "none").status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(domainsOfFolder(folder_ / "absent").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace bulkhead::model
