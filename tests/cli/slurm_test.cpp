// SPDX-License-Identifier: Apache-2.0
// Batch scripts, and what Slurm says of nodes; slurm_cluster_test.cpp has a real Slurm.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "backend/cli/cli.h"
#include "backend/cli/slurm_nodes.h"
#include "backend/cli/slurm_script.h"
#include "tests/cli/said.h"

namespace bulkhead::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

SlurmScript trainScript() {
    SlurmScript script;
    script.name = "train";
    script.bin = "/usr/bin";
    script.folder = "/home/anna/train";
    script.nodes = 4;
    script.time = "1-00:00:00";
    script.partition = "gpu";
    script.directives = {"--account=ml"};
    script.job = {"/home/anna/it's a job.toml", "--steps", "9"};
    return script;
}

/// Bash can read the text as a script.
bool bashReads(const std::string& text) {
    char file[] = "/tmp/bulkhead-script-XXXXXX";
    ::close(::mkstemp(file));
    std::ofstream(file) << text;
    const int code = std::system((std::string("bash -n ") + file).c_str());
    std::filesystem::remove(file);
    return code == 0;
}

TEST(SlurmScript, AsksForWholeNodesThatMayBeLostAndASignalBeforeTheEnd) {
    const std::string text = jobScript(trainScript());
    for (const char* line :
         {"#SBATCH --job-name=train\n", "#SBATCH --nodes=4\n", "#SBATCH --ntasks-per-node=1\n",
          "#SBATCH --exclusive\n", "#SBATCH --no-kill\n", "#SBATCH --requeue\n",
          "#SBATCH --signal=B:USR1@300\n", "#SBATCH --time=1-00:00:00\n",
          "#SBATCH --partition=gpu\n", "#SBATCH --account=ml\n",
          "#SBATCH --output=/home/anna/train/slurm-%j.out\n"})
        EXPECT_THAT(text, HasSubstr(line));
    EXPECT_THAT(text, HasSubstr(" '/home/anna/it'\\''s a job.toml' --steps 9 &\n"));
    EXPECT_THAT(text, Not(HasSubstr("@FOLDER@")));
    EXPECT_TRUE(bashReads(text));
}

TEST(SlurmScript, AgentsOfARunningControllerHaveAKeyEachAndNoSecretInTheScript) {
    SlurmScript script = trainScript();
    script.controller = "train-1:7401";
    script.keys = "/home/anna/keys";
    const std::string text = agentsScript(script);
    EXPECT_THAT(text, HasSubstr("controller=${1:-train-1:7401}\n"));
    EXPECT_THAT(text, HasSubstr("--agent-key \"/home/anna/keys/$SLURMD_NODENAME.key\""));
    EXPECT_THAT(text, Not(HasSubstr("--role=all")));
    EXPECT_THAT(text, Not(HasSubstr("control.token")));
    EXPECT_TRUE(bashReads(text));
}

TEST(SlurmScript, ValuesThatTheShellWouldReadOtherwiseAreRefusedByName) {
    for (const auto& [member, option] : {std::pair{&SlurmScript::folder, "--state-dir"},
                                         {&SlurmScript::name, "--name"},
                                         {&SlurmScript::partition, "--partition"},
                                         {&SlurmScript::keys, "--keys"}}) {
        SlurmScript script = trainScript();
        script.*member = "$(id)";
        EXPECT_THAT(std::string(checkScript(script).message()), HasSubstr(option));
    }
    SlurmScript script = trainScript();
    script.directives = {"--account=ml\nrm -r /"};
    EXPECT_FALSE(checkScript(script).ok());
    EXPECT_TRUE(checkScript(trainScript()).ok());
}

TEST(SlurmVerb, PrintsTheScriptAndMakesNothing) {
    const std::string folder = "/tmp/bulkhead-slurm-" + std::to_string(::getpid());
    const Said said = type({"slurm", "submit", BULKHEAD_SOURCE_DIR "/resources/jobs/demo.toml",
                            "--nodes", "2", "--state-dir", folder, "--set", "steps=4", "--print"});
    ASSERT_EQ(said.code, 0) << said.err;
    EXPECT_THAT(said.out, HasSubstr("#SBATCH --job-name=demo\n#SBATCH --nodes=2\n"));
    EXPECT_THAT(said.out, HasSubstr("/resources/jobs/demo.toml --set steps=4 &\n"));
    EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(SlurmVerb, AFolderThatOthersMayEnterIsRefused) {
    const std::string folder = "/tmp/bulkhead-slurm-" + std::to_string(::getpid());
    std::filesystem::create_directory(folder);
    ::chmod(folder.c_str(), 0755);
    const Said said = type({"slurm", "submit", "--state-dir", folder});
    std::filesystem::remove(folder);
    EXPECT_EQ(said.code, kInvalid);
    EXPECT_THAT(said.err, HasSubstr("others may enter"));
}

TEST(SlurmVerb, AJobFileThatCannotBeReadIsRefusedBeforeItWaitsInAQueue) {
    EXPECT_EQ(type({"slurm", "submit", "/nowhere.toml", "--print"}).code, kInvalid);
    EXPECT_EQ(type({"slurm", "submit", "--controller", "a:1", "--print"}).code, kInvalid)
        << "no keys";
}

TEST(SlurmNodes, ANodeOfSeveralPartitionsStandsOnce) {
    const auto nodes = parseSinfo("n1|idle|none\nn1|idle|none\nn2|draining|bad DIMM | slot 3\nx\n");
    ASSERT_EQ(nodes.size(), 2u);
    EXPECT_EQ(nodes[1].name, "n2");
    EXPECT_EQ(nodes[1].reason, "bad DIMM | slot 3");
}

TEST(SlurmNodes, StatesWithMarksAreReadAsWhatTheySay) {
    const auto node = [](const char* state) { return SlurmNode{"n1", state, "none"}; };
    for (const char* state : {"down", "down*", "error"}) EXPECT_TRUE(node(state).isDown()) << state;
    for (const char* state : {"drained", "draining@", "fail", "failing*", "down*"})
        EXPECT_TRUE(node(state).isWithdrawn()) << state;
    for (const char* state : {"idle", "allocated*", "mixed", "completing", "downtown", "unknown"})
        EXPECT_FALSE(node(state).isWithdrawn()) << state;
}

/// Two nodes with a replica of one rank each.
model::RunState twoNodes() {
    model::RunState job;
    for (int32_t i = 0; i < 2; ++i) {
        model::NodeView& node = job.nodes.emplace_back();
        node.node = "n" + std::to_string(i + 1);
        model::ReplicaView& replica = job.replicas.emplace_back();
        replica.replica = i;
        replica.state = model::ReplicaState::kTraining;
        model::RankView& rank = job.ranks.emplace_back();
        rank.rank = {i, 0};
        rank.node = node.node;
        rank.pid = 100 + i;
    }
    return job;
}

/// "cordon n1 by slurm: ...", one for each order.
std::vector<std::string> texts(const std::vector<SlurmOrder>& orders) {
    std::vector<std::string> out;
    for (const SlurmOrder& order : orders)
        out.push_back(
            std::string(enumName(order.action.kind)) + " " +
            (order.action.replica >= 0 ? std::to_string(order.action.replica) : order.action.node) +
            " by " + order.by);
    return out;
}

SlurmOrders carriedOut(SlurmOrders given, const std::vector<SlurmOrder>& orders) {
    for (const SlurmOrder& order : orders) note(given, order.action);
    return given;
}

TEST(SlurmNodes, ADrainedNodeIsCordonedAndEmptiedOnceAndUncordonedWhenItIsUsableAgain) {
    model::RunState job = twoNodes();
    const std::vector<SlurmNode> drains = {{"n1", "draining", "bad DIMM"}, {"n2", "idle", "none"}};
    const auto first = ordersFor(drains, job, {});
    EXPECT_THAT(texts(first), ElementsAre("cordon n1 by slurm: n1 is draining (bad DIMM)",
                                          "drain 0 by slurm: n1 is draining (bad DIMM)"));
    SlurmOrders given = carriedOut({}, first);
    EXPECT_THAT(ordersFor(drains, job, settled(drains, job, given)), IsEmpty());

    job.replicas[0].state = model::ReplicaState::kDrained;
    job.ranks[0].pid = 0;
    job.nodes[0].state = model::NodeState::kCordoned;
    const auto left = ordersFor(drains, job, settled(drains, job, given));
    EXPECT_THAT(texts(left), ElementsAre("release_rejoin 0 by slurm: it has left the node"));
    given = carriedOut(given, left);

    const std::vector<SlurmNode> usable = {{"n1", "idle", "none"}};
    const auto back = ordersFor(usable, job, given);
    EXPECT_THAT(texts(back), ElementsAre("uncordon n1 by slurm: n1 is idle"));
    EXPECT_EQ(carriedOut(given, back), SlurmOrders());
}

TEST(SlurmNodes, ReplicasLeaveANodeOneAfterAnother) {
    model::RunState job = twoNodes();
    job.ranks[1].node = "n1";
    job.nodes[0].state = model::NodeState::kCordoned;
    const std::vector<SlurmNode> drains = {{"n1", "draining", "bad DIMM"}};
    SlurmOrders given;
    given.cordoned = {"n1"};
    const auto first = ordersFor(drains, job, given);
    EXPECT_THAT(texts(first), ElementsAre("drain 0 by slurm: n1 is draining (bad DIMM)"));
    given = carriedOut(given, first);
    job.replicas[0].state = model::ReplicaState::kDrained;
    given = carriedOut(given, ordersFor(drains, job, given));
    EXPECT_THAT(texts(ordersFor(drains, job, given)),
                ElementsAre("drain 1 by slurm: n1 is draining (bad DIMM)"));
}

TEST(SlurmNodes, AnOperatorsCordonAndDrainStay) {
    model::RunState job = twoNodes();
    job.nodes[0].state = model::NodeState::kCordoned;
    job.replicas[1].state = model::ReplicaState::kDrained;
    EXPECT_THAT(ordersFor({{"n1", "down*", "Not responding"}}, job, {}), IsEmpty());
    EXPECT_THAT(ordersFor({{"n1", "idle", "none"}}, job, {}), IsEmpty());
    // A replica that was drained for Slurm and runs again is the operator's to drain.
    job.replicas[1].state = model::ReplicaState::kTraining;
    SlurmOrders given;
    given.drained = {1};
    EXPECT_THAT(settled({{"n2", "idle", "none"}}, job, given).drained, IsEmpty());
    EXPECT_THAT(settled({{"n2", "draining", "x"}}, job, given).drained, ElementsAre(1));
}

TEST(SlurmNodes, ALostNodeIsReplacedOnceUntilItIsBack) {
    model::RunState job = twoNodes();
    const std::vector<SlurmNode> down = {{"n2", "down*", "Not responding"}, {"n9", "down", "none"}};
    EXPECT_THAT(nodesToReplace(down, job, {}), IsEmpty()) << "its agent is still there";
    EXPECT_THAT(texts(ordersFor(down, job, {})),
                ElementsAre("cordon n2 by slurm: n2 is down (Not responding)"));
    job.nodes[1].state = model::NodeState::kLost;
    EXPECT_THAT(nodesToReplace(down, job, {}), ElementsAre("n2"));
    SlurmOrders given;
    given.replaced = {"n2"};
    EXPECT_THAT(nodesToReplace(down, job, settled(down, job, given)), IsEmpty());
    job.nodes[1].state = model::NodeState::kUp;
    EXPECT_THAT(settled(down, job, given).replaced, IsEmpty());
    job.nodes[1].state = model::NodeState::kLost;
    EXPECT_THAT(nodesToReplace({{"n2", "allocated", "none"}}, job, {}), IsEmpty())
        << "Slurm has it: its agent starts again";
}

TEST(SlurmNodes, OrdersAreReadBackAsTheyWereNoted) {
    SlurmOrders given;
    given.cordoned = {"n1", "n2"};
    given.drained = {0, 12};
    given.replaced = {"n3"};
    EXPECT_EQ(parseOrders(ordersText(given)), given);
    EXPECT_EQ(parseOrders("drained x\nnonsense\n\n"), SlurmOrders());
}

}  // namespace
}  // namespace bulkhead::cli
