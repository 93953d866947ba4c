// SPDX-License-Identifier: Apache-2.0
#include "tests/attack/victim.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "backend/access/certificates.h"
#include "backend/common/clock.h"
#include "backend/model/run_state.h"

namespace bulkhead::attack {
namespace {

namespace fs = std::filesystem;
constexpr std::chrono::seconds kPatience{120};

std::string slurp(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

absl::Status statusOf(const client::Failure& failure) {
    return absl::UnavailableError(
        absl::StrCat(failure.title, ": ", failure.cause, " ", failure.remedy));
}

/// Words that no program says.
std::string madeUpText() {
    std::mt19937_64 random(7);
    std::string text;
    while (text.size() < 40'000) {
        for (uint64_t i = 3 + random() % 8; i > 0; --i)
            text += static_cast<char>('a' + random() % 26);
        text += ' ';
    }
    return text;
}

}  // namespace

Victim::Victim(std::string programs, std::string dir)
    : programs_(std::move(programs)), dir_(std::move(dir)), text_(madeUpText()) {
    // Ranks whose agent is killed become children of this process, to be killed here.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Victim::~Victim() {
    console_.reset();
    for (const auto& [name, pid] : pids_) ::kill(pid, SIGKILL);
    for (const auto& [name, pid] : pids_) ::waitpid(pid, nullptr, 0);
    for (bool found = true; found;) {
        found = false;
        for (const auto& task : fs::directory_iterator("/proc/self/task")) {
            std::ifstream children(task.path() / "children");
            for (pid_t pid = 0; children >> pid; found = true) {
                ::kill(pid, SIGKILL);
                ::waitpid(pid, nullptr, 0);
            }
        }
    }
}

absl::Status Victim::certificates() {
    const int64_t now = SystemClock().unixNs() / kSecond;
    const auto authority = access::Authority::init(file("authority"), "Authority", now);
    if (!authority.ok()) return authority.status();
    const auto issued = authority->issue("daemon", {"127.0.0.1"}, 30, now, file("certs"));
    if (!issued.ok()) return issued.status();
    fs::create_directory(file("ca"));
    fs::copy_file(file("authority/ca.pem"), file("ca/ca.pem"));
    return absl::OkStatus();
}

void Victim::agentOf(const std::string& secret) {
    agentSecret_ = "agent.token";
    std::ofstream(file(agentSecret_)) << secret;
    ::chmod(file(agentSecret_).c_str(), 0600);
}

void Victim::spawn(const std::string& name, const std::string& secret,
                   std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {programs_ + "/bulkheadd", "--control-token", file(secret),
                                         "--state-dir", file(name)});
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const pid_t pid = ::fork();
    if (pid != 0) {
        pids_[name] = pid;
        return;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int out = ::open(file(name + ".log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
}

absl::Status Victim::await(const std::string& what, const std::function<bool()>& reached) const {
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (!reached()) {
        if (std::chrono::steady_clock::now() > limit)
            return absl::DeadlineExceededError(
                absl::StrCat("waited for ", what, "; logs are in ", dir_));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // between two looks
    }
    return absl::OkStatus();
}

absl::Status Victim::start() {
    if (absl::Status s = certificates(); !s.ok()) return s;
    std::ofstream(file("text.txt")) << text_;
    std::vector<std::string> controller = {"--role=controller",
                                           "--control-listen",
                                           absl::StrCat("127.0.0.1:", kControlPort),
                                           "--listen",
                                           absl::StrCat("127.0.0.1:", kConsolePort),
                                           "--token-file",
                                           file("token")};
    if (tls_) controller.insert(controller.end(), {"--certs", file("certs")});
    spawn("controller", "control.token", std::move(controller));
    spawn("agent", agentSecret_,
          {"--role=agent", "--node", "west", "--address", "127.0.0.1", "--controller",
           absl::StrCat("127.0.0.1:", kControlPort)});
    if (absl::Status s = await("the token file", [&] { return fs::exists(file("token")); });
        !s.ok())
        return s;
    console_ = connect();
    return await("the daemon", [&] {
        return ask<model::ServerInfo>([&](auto reply) { console_->handshake(reply); }).ok();
    });
}

std::unique_ptr<client::Client> Victim::connect() const {
    client::Options options;
    options.target = absl::StrCat("127.0.0.1:", kConsolePort);
    options.tokenFile = file("token");
    if (tls_) options.certs = file("ca");
    options.who = "operator";
    options.deadline = kPatience;
    auto client = client::Client::open(options);
    return client.ok() ? std::move(client).value() : nullptr;
}

absl::Status Victim::begin(uint32_t replicas, const std::vector<std::string>& overrides) {
    client::JobText job;
    job.fileName = "victim.toml";
    job.baseDir = dir_;
    job.text = absl::StrCat(
        "name = \"victim\"\nreplicas = ", replicas,
        "\nshards = 1\ntransport = \"tcp\"\nfaults = \"on\"\nsequence_length = 64\n"
        "checkpoint_dir = \"",
        file("checkpoints"),
        "\"\n[model]\ndim = 32\nlayers = 4\nheads = 4\nkv_heads = 2\nattention_chunk = 32\n"
        "ffn_hidden = 64\nexperts = 4\nexpert_hidden = 32\nshared_hidden = 32\n[optimizer]\n"
        "learning_rate = 1e-30\nmin_learning_rate = 0\n[policies]\nmin_replicas = 1\n"
        "checkpoint_every_steps = 5\ncheckpoints_kept = 1000\n[[domains]]\nname = \"t\"\n"
        "paths = [\"text.txt\"]\n");
    job.overrides = overrides;
    const auto started =
        ask<model::JobInfo>([&](auto reply) { console_->startJob(job, {}, reply); });
    if (!started.ok()) return statusOf(started.failure());
    job_ = started.value().id;
    run_ = started.value().run;
    replicas_ = replicas;
    return absl::OkStatus();
}

absl::Status Victim::train(uint32_t replicas) {
    if (absl::Status s = begin(replicas); !s.ok()) return s;
    return awaitSteps(3);
}

client::Result<model::JobInfo> Victim::job() {
    return ask<model::JobInfo>([&](auto reply) { console_->getJob(job_, reply); });
}

client::Result<client::StatePtr> Victim::state() {
    return ask<client::StatePtr>([&](auto reply) { console_->getState(run_, 0, reply); });
}

absl::Status Victim::awaitSteps(uint64_t more) {
    uint64_t from = 0;
    return await("steps of all replicas", [&] {
        const auto now = job();
        if (!now.ok() || now.value().contributors < replicas_) {
            from = 0;
            return false;
        }
        if (from == 0) from = now.value().step + 1;
        return now.value().step >= from + more;
    });
}

absl::Status Victim::killAndAwait(int32_t replica) {
    model::FaultSpec fault;
    fault.replica = replica;
    const auto done = ask<uint64_t>([&](auto reply) { console_->inject(job_, fault, {}, reply); });
    if (!done.ok()) return statusOf(done.failure());
    if (absl::Status s = await("its return",
                               [&] {
                                   const auto now = state();
                                   return now.ok() && now.value()->faults.size() > 0 &&
                                          now.value()->incidents.size() > 0 &&
                                          now.value()->incidents.back().closedNs != 0;
                               });
        !s.ok())
        return s;
    return awaitSteps(3);
}

absl::Status Victim::stopAndCheck() {
    const auto stopped =
        ask<model::JobInfo>([&](auto reply) { console_->stopJob(job_, true, {}, reply); });
    if (!stopped.ok()) return statusOf(stopped.failure());
    absl::Status s = await("the end of the job", [&] {
        const auto now = job();
        return now.ok() && now.value().phase == model::JobPhase::kFinished;
    });
    if (!s.ok()) return s;
    const auto report =
        ask<model::LedgerReport>([&](auto reply) { console_->checkLedger(run_, reply); });
    if (!report.ok()) return statusOf(report.failure());
    if (!report.value().ok) return absl::DataLossError(report.value().findings.front().what);
    if (report.value().steps != report.value().lastStep || !report.value().logStep)
        return absl::DataLossError(absl::StrCat(report.value().steps, " steps up to ",
                                                report.value().lastStep, " are in the ledger"));
    return absl::OkStatus();
}

Pieces Victim::pieces() const {
    Pieces pieces;
    pieces.add("secret of the controller", slurp(file("control.token")));
    pieces.add("token of the administrator", slurp(file("token")));
    pieces.add("text", text_, 16);
    // Bytes that two checkpoints share at the same place are parameters: moments change.
    std::vector<fs::path> files;
    std::error_code none;
    for (const auto& entry : fs::recursive_directory_iterator(file("checkpoints"), none))
        if (entry.path().extension() == ".state") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    if (files.size() < 2) return pieces;
    const std::string first = slurp(files.front());
    const std::string last = slurp(files.back());
    for (size_t at = 0; at + 16 <= std::min(first.size(), last.size()); at += 16)
        if (first.compare(at, 16, last, at, 16) == 0)
            pieces.add("parameters", std::string_view(last).substr(at, 16));
    return pieces;
}

}  // namespace bulkhead::attack
