// SPDX-License-Identifier: Apache-2.0
// Jobs on a real Slurm: slurmctld, a slurmd for each of two nodes, and munged, all on this host.
#include <gmock/gmock.h>
#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "backend/model/json.h"
#include "tests/cli/shell.h"
#include "tests/cli/whole_job.h"

namespace bulkhead::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class SlurmClusterTest : public WholeJobTest {
  protected:
    SlurmClusterTest() {
        ::setenv("PATH", (std::string(::getenv("PATH")) + ":/usr/sbin:/sbin").c_str(), 1);
        ::setenv("SLURM_CONF", (dir_ + "/slurm.conf").c_str(), 1);
    }

    void SetUp() override {
        for (const char* program : {"slurmctld", "slurmd", "sbatch", "munged"})
            ASSERT_EQ(shell(std::string("command -v ") + program).code, 0)
                << program << " is not installed: ./dev deps --cluster";
        std::ofstream(dir_ + "/munge.key") << std::string(64, 'k') << std::random_device()();
        ::chmod((dir_ + "/munge.key").c_str(), 0600);
        const std::string user = ::getpwuid(::getuid())->pw_name;
        std::ofstream conf(dir_ + "/slurm.conf");
        conf << "ClusterName=test\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=" << freePort()
             << "\nSlurmUser=" << user << "\nSlurmdUser="
             << user
             // A job that is queued again waits until the credential of its last start has expired.
             << "\nAuthInfo=socket=" << dir_ << "/munge.socket,cred_expire=5"
             << "\nStateSaveLocation=" << dir_ << "/ctld\nSlurmctldPidFile=" << dir_ << "/ctld.pid"
             << "\nSlurmctldLogFile=" << dir_ << "/ctld.log\nSlurmdSpoolDir=" << dir_ << "/spool-%n"
             << "\nSlurmdPidFile=" << dir_ << "/%n.pid\nSlurmdLogFile=" << dir_ << "/%n.log"
             << "\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none"
             << "\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core"
             << "\nSchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_min_interval=1"
             << "\nReturnToService=2\nSlurmdTimeout=2\nMessageTimeout=2\nKillWait=5"
             << "\nSlurmdParameters=config_overrides\n";
        for (const char* node : {"n1", "n2"})
            conf << "NodeName=" << node
                 << " NodeHostname=localhost NodeAddr=127.0.0.1 Port=" << freePort() << " CPUs=2\n";
        conf << "PartitionName=train Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP\n";
        conf.close();
        fs::create_directory(dir_ + "/ctld");
        daemons_["munged"] = start(
            "munged --foreground --force --key-file=" + dir_ + "/munge.key --socket=" + dir_ +
            "/munge.socket --pid-file=" + dir_ + "/munge.pid --seed-file=" + dir_ + "/munge.seed");
        ASSERT_TRUE(waitUntil([&] { return fs::exists(dir_ + "/munge.socket"); }));
        daemons_["slurmctld"] = start("slurmctld -D -f " + dir_ + "/slurm.conf");
        for (const char* node : {"n1", "n2"}) startNode(node);
        ASSERT_TRUE(waitUntil([&] { return stateOf("n1") == "idle" && stateOf("n2") == "idle"; }))
            << read(dir_ + "/ctld.log");
        std::ofstream(dir_ + "/small.toml") << smallJob().text;
    }

    void TearDown() override {
        if (HasFailure()) std::fprintf(stderr, "%s\n", output().c_str());
        (void)shell("scancel --user=$(id -un) 2>/dev/null");
        for (const char* node : {"n1", "n2"}) endNode(node);
        for (const auto& [name, pid] : daemons_) end(pid);
        killAllThatName(dir_);
    }

    pid_t start(const std::string& command) {
        return spawn({"/bin/sh", "-c", "exec " + command + " 2>/dev/null"}, "/dev/null");
    }
    void startNode(const std::string& node) {
        fs::create_directories(dir_ + "/spool-" + node);
        daemons_[node] = start("slurmd -D -f " + dir_ + "/slurm.conf -N " + node);
    }
    static void end(pid_t pid) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
    }

    /// The node is gone as by a cut of its power: slurmd, the steps of its jobs and all that these
    /// have started.
    void endNode(const std::string& node) {
        std::map<int, int> parents;
        std::set<int> doomed;
        for (const auto& entry : fs::directory_iterator("/proc")) {
            const std::string name = entry.path().filename().string();
            if (name.find_first_not_of("0123456789") != std::string::npos) continue;
            const std::string stat = read(entry.path() / "stat");
            int parent = 0;
            char state = 0;
            std::istringstream(stat.substr(std::min(stat.size(), stat.rfind(')') + 2))) >> state >>
                parent;
            parents[std::stoi(name)] = parent;
            std::error_code gone;
            for (const auto& fd : fs::directory_iterator(entry.path() / "fd", gone))
                if (fs::read_symlink(fd, gone) == dir_ + "/" + node + ".log")
                    doomed.insert(std::stoi(name));
        }
        for (bool grew = true; grew;) {
            grew = false;
            for (const auto& [pid, parent] : parents)
                if (doomed.contains(parent)) grew = doomed.insert(pid).second || grew;
        }
        doomed.erase(::getpid());
        for (const int pid : doomed) ::kill(pid, SIGKILL);
        if (const auto it = daemons_.find(node); it != daemons_.end()) {
            end(it->second);
            daemons_.erase(it);
        }
    }

    std::string stateOf(const std::string& node) {
        return lastLine(shell("sinfo --noheader --Node --format=%T --nodes=" + node).out);
    }
    /// "RUNNING", "COMPLETED", ...; of a Slurm job.
    std::string stateOfJob(const std::string& number) {
        const std::string text = shell("scontrol show job " + number).out;
        const size_t at = text.find("JobState=") + 9;
        return text.substr(at, text.find_first_of(" \n", at) - at);
    }
    /// Number of the Slurm job of `bulkheadctl slurm submit`.
    std::string submit(const std::string& options) {
        const Ran ran = shell(
            kBin + "/bulkheadctl --json slurm submit " + dir_ + "/small.toml --state-dir " +
            folder() + " --address 127.0.0.1 --port " + std::to_string(freePort()) + " " + options);
        EXPECT_EQ(ran.code, 0) << ran.out;
        const auto said = model::parseJson(lastLine(ran.out));
        return said.ok() ? said->value("slurm_job", "") : "";
    }
    std::string folder() const { return dir_ + "/s"; }
    std::string target() const { return "unix:" + folder() + "/bulkhead.sock"; }
    std::string output() const { return shell("cat " + folder() + "/slurm-*.out").out; }
    Ran ctl(const std::string& words) const {
        return shellBoth(kBin + "/bulkheadctl -t " + target() + " " + words);
    }
    /// The newest job of the controller; empty while it does not answer or has none.
    model::JobInfo job() const {
        const std::string line = lastLine(ctl("--json jobs").out);
        const auto json = model::fromJsonText<model::JobInfo>(line, model::UnknownKeys::kIgnore);
        return json.ok() ? *json : model::JobInfo();
    }
    bool trains(uint32_t replicas, uint64_t step) const {
        const model::JobInfo now = job();
        return now.phase == model::JobPhase::kTraining && now.contributors == replicas &&
               now.step >= step;
    }
    /// So many replicas train, and go on.
    bool advances(uint32_t replicas) {
        const uint64_t from = job().step + 5;
        return waitUntil([&] { return trains(replicas, from); });
    }
    /// Events of that type whose text says `what`.
    long events(const std::string& type, const std::string& what) const {
        return shell(kBin + "/bulkheadctl -t " + target() + " --json events --type " + type +
                     " --text '" + what + "'")
            .lines();
    }
    void stopped(const std::string& number) {
        EXPECT_EQ(ctl("stop --yes").code, 0);
        EXPECT_TRUE(waitUntil([&] { return stateOfJob(number) == "COMPLETED"; }))
            << stateOfJob(number);
        const Ran check =
            shellBoth(kBin + "/bulkheadctl ledger -f " + folder() + "/runs.db --check");
        EXPECT_EQ(check.code, 0) << check.out;
    }

    std::map<std::string, pid_t> daemons_;
};

TEST_F(SlurmClusterTest, AJobLosesANodeGetsItBackIsDrainedAndEnds) {
    const std::string number = submit("--nodes 2 --slots 1");
    ASSERT_TRUE(waitUntil([&] { return trains(2, 5); })) << ctl("jobs").out;

    // Nobody but its user reads the secret, which neither arguments nor environments hold.
    const std::string secret = lastLine(read(folder() + "/control.token"));
    ASSERT_GE(secret.size(), 16u);
    for (const auto& process : fs::directory_iterator("/proc"))
        for (const char* file : {"cmdline", "environ"})
            EXPECT_EQ(read(process.path() / file).find(secret), std::string::npos) << process;
    std::vector<std::string> holders;
    for (const auto& file : fs::recursive_directory_iterator(dir_))
        if (file.is_regular_file() && read(file.path()).find(secret) != std::string::npos)
            holders.push_back(file.path());
    EXPECT_EQ(holders, std::vector<std::string>{folder() + "/control.token"});
    for (const std::string& path : {folder(), folder() + "/control.token"})
        EXPECT_EQ(fs::status(path).permissions() & (fs::perms::group_all | fs::perms::others_all),
                  fs::perms::none);

    endNode("n2");
    ASSERT_TRUE(waitUntil([&] { return events("node_changed", "\"lost\"") > 0; }));
    ASSERT_TRUE(waitUntil([&] { return events("operator_acted", "slurm: n2 is down") > 0; }));
    EXPECT_TRUE(advances(1)) << "the other node trains on";
    EXPECT_TRUE(waitUntil(
        [&] { return shell("squeue --noheader --name=bulkhead-spare-" + number).lines() == 1; }));
    EXPECT_EQ(stateOfJob(number), "RUNNING");

    startNode("n2");
    EXPECT_TRUE(advances(2)) << ctl("status").out;
    EXPECT_TRUE(waitUntil([&] { return events("operator_acted", "uncordon") > 0; }));

    // The replica leaves the node that is drained, and comes back with it.
    (void)shell("scontrol update NodeName=n2 State=DRAIN Reason='bad DIMM'");
    EXPECT_TRUE(waitUntil(
        [&] { return events("operator_acted", "slurm: n2 is draining (bad DIMM)") == 2; }));
    EXPECT_TRUE(advances(1));
    (void)shell("scontrol update NodeName=n2 State=RESUME");
    EXPECT_TRUE(advances(2)) << ctl("status").out;
    stopped(number);
    // Slurm lists a job until all that it had started has ended.
    EXPECT_TRUE(waitUntil([] { return shell("squeue --noheader").out.empty(); }))
        << "the node that took a place is given back";
    EXPECT_THAT(output(), HasSubstr("slurm: n2 is down (Not responding): Cordon node n2"));
}

TEST_F(SlurmClusterTest, TheTimeLimitAndARequeueGoOnBehindTheLastStep) {
    // Slurm keeps the node of a step that does not end at once, and begins nothing on it meanwhile.
    constexpr auto kAgain = 6 * kForever;
    const std::string number = submit("--nodes 1 --time 1 --checkpoint-before 50 --until-done");
    ASSERT_TRUE(waitUntil([&] { return trains(2, 5); })) << ctl("jobs").out;
    const std::string first = job().run;
    // Slurm's signal comes, the job is stopped, and goes on as another run.
    ASSERT_TRUE(waitUntil([&] { return trains(2, 5) && job().run != first; }, kAgain))
        << ctl("runs").out;
    EXPECT_THAT(output(), HasSubstr("bulkheadctl: going on behind " + first));
    (void)shell("scontrol update JobId=" + number + " TimeLimit=60");

    const std::string second = job().run;
    const uint64_t step = job().step;
    ASSERT_EQ(shell("scontrol requeue " + number).code, 0);
    ASSERT_TRUE(waitUntil([&] { return stateOfJob(number) == "PENDING"; }));
    ASSERT_TRUE(waitUntil([&] { return trains(2, step); }, kAgain)) << output();
    EXPECT_THAT(output(), HasSubstr("bulkheadctl: going on "));
    stopped(number);
}

}  // namespace
}  // namespace bulkhead::testing
