// SPDX-License-Identifier: Apache-2.0
// Costs that somebody on the network, or a caller, has for a running job: `./dev bench attack`. See
// README.md.
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/access/access_list.h"
#include "backend/common/digest.h"
#include "backend/common/unique_fd.h"
#include "backend/model/run_state.h"
#include "bench/attack/http2_floods.h"
#include "bench/report.h"
#include "tests/attack/victim.h"

namespace bulkhead::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using attack::Callers;
using attack::Stream;
using attack::Victim;

constexpr uint32_t kReplicas = 3;

struct Settings {
    Place place;
    std::string programs = "build/bin";
    double minutes = 10;
    uint64_t seed = 1;
    std::vector<std::string> parts{"tap", "floods", "garbage", "reads", "strangers", "callers"};
    bool wants(std::string_view part) const {
        return std::find(parts.begin(), parts.end(), part) != parts.end();
    }
};

double msSince(Clock::time_point from) {
    return std::chrono::duration<double, std::milli>(Clock::now() - from).count();
}

/// MiB; 0: there is no such process.
double memoryOf(pid_t pid, std::string_view what) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with(what)) return std::stod(line.substr(what.size())) / 1024;
    return 0;
}
double residentOf(pid_t pid) {
    return memoryOf(pid, "VmRSS:");
}
/// Since the last call of forgetMost().
double mostOf(pid_t pid) {
    return memoryOf(pid, "VmHWM:");
}
void forgetMost(pid_t pid) {
    std::ofstream("/proc/" + std::to_string(pid) + "/clear_refs") << "5";
}

std::vector<pid_t> childrenOf(pid_t pid) {
    std::vector<pid_t> pids;
    std::ifstream children(absl::StrCat("/proc/", pid, "/task/", pid, "/children"));
    for (pid_t child = 0; children >> child;) pids.push_back(child);
    return pids;
}

template <class T>
T reply(client::Result<T> result) {
    if (!result.ok())
        die(absl::UnavailableError(result.failure().title + ": " + result.failure().cause));
    return std::move(result).value();
}

class Attack {
  public:
    explicit Attack(Settings settings)
        : settings_(std::move(settings)),
          dir_(fs::absolute(absl::StrCat(settings_.place.out, "/attack-", ::getpid())).string()),
          random_(settings_.seed),
          report_("attack", {"attack", "how much", "what came of it"}) {
        fs::create_directories(dir_);
    }

    int run() {
        need(attack::ownLoopback());
        tap_ = value(attack::Tap::begin());
        victim_ = std::make_unique<Victim>(fs::absolute(settings_.programs).string(), dir_);
        need(victim_->start());
        if (settings_.wants("tap") || settings_.wants("floods") || settings_.wants("garbage")) {
            need(victim_->train(kReplicas));
            if (settings_.wants("tap")) hear();
            tap_.reset();
            if (settings_.wants("floods")) floods();
            if (settings_.wants("garbage")) garbage();
            need(victim_->stopAndCheck());
            report_.row({"all of these", absl::StrCat(reply(victim_->job()).step, " steps"),
                         "the ledger adds up, no step lost"});
        }
        tap_.reset();
        if (settings_.wants("reads")) stops();
        victim_.reset();
        if (settings_.wants("strangers")) strangers();
        if (settings_.wants("callers")) callers();
        const int code = report_.finish(settings_.place.out);
        fs::remove_all(dir_);
        return code;
    }

  private:
    size_t incidents() { return reply(victim_->state())->incidents.size(); }
    std::string noise(size_t bytes) {
        std::string all(bytes, '\0');
        for (char& c : all) c = static_cast<char>(random_());
        return all;
    }

    /// A session of the whole job is recorded, searched, and repeated.
    void hear() {
        need(victim_->killAndAwait(2));
        const std::vector<Stream> heard = tap_->streams();
        const attack::Pieces pieces = victim_->pieces();
        size_t bytes = 0;
        size_t found = 0;
        for (const Stream& stream : heard) {
            bytes += stream.bytes.size();
            for (const auto& [name, times] : pieces.in(stream.bytes)) found += times;
        }
        report_.row({"a tap on every port",
                     absl::StrFormat("%.1f MB in %u streams", static_cast<double>(bytes) / 1e6,
                                     heard.size()),
                     absl::StrCat(found, " of ", pieces.size(),
                                  " pieces of secrets, text and parameters")});
        report_.atMost("pieces of secrets, text and parameters heard", static_cast<double>(found),
                       0, "");
        const std::set<uint16_t> ports = attack::listeningPorts();
        Callers replay;
        for (const Stream& stream : heard)
            if (stream.called && ports.contains(stream.to)) replay.call(stream.to, stream.bytes);
        const size_t before = reply(victim_->state())->faults.size();
        need(victim_->killAndAwait(2));
        while (replay.open() > 0) replay.pump(100);
        const size_t after = reply(victim_->state())->faults.size() - 1;
        report_.row({"recorded sessions repeated", absl::StrCat(replay.made(), " connections"),
                     absl::StrCat("all closed, ", after - before, " orders carried out again")});
        report_.atMost("orders of a recorded session carried out again",
                       static_cast<double>(after - before), 0, "");
    }

    struct Memory {
        std::string who;
        pid_t pid = 0;
        double idle = 0;
        double most = 0;
    };
    /// Memory and descriptors of every process of the job just before a flood.
    std::vector<Memory> idle() {
        std::vector<Memory> all = {{"controller", victim_->controller()},
                                   {"agent", victim_->agent()}};
        for (const pid_t rank : childrenOf(victim_->agent())) all.push_back({"a rank", rank});
        for (Memory& m : all) m.most = m.idle = residentOf(m.pid);
        return all;
    }
    void look(std::vector<Memory>& all) {
        for (Memory& m : all) {
            m.most = std::max(m.most, residentOf(m.pid));
            most_[m.pid] = std::max(most_[m.pid], m.most);
        }
    }
    void tell(const std::string& flood, const std::string& howMuch,
              const std::vector<Memory>& memory) {
        const Memory worst = *std::max_element(
            memory.begin(), memory.end(),
            [](const Memory& a, const Memory& b) { return a.most * b.idle < b.most * a.idle; });
        report_.row(
            {flood, howMuch,
             absl::StrFormat("%s: %.1f MiB, %.1f before", worst.who, worst.most, worst.idle)});
        report_.atMost(
            absl::StrCat("memory under ", flood, ", the worst process, of its own before"),
            worst.most / worst.idle, 1.5, "times");
    }

    /// Silence, bytes before anybody is known, and large requests that are refused.
    void floods() {
        const size_t before = incidents();
        std::vector<Memory> together = idle();
        {
            std::vector<Memory> memory = idle();
            Callers silent;
            for (const uint16_t port : attack::listeningPorts())
                for (int i = 0; i < 500; ++i) {
                    silent.call(port, "");
                    if (i % 50 == 0) look(memory);
                }
            need(victim_->awaitSteps(5));
            look(memory);
            tell("silent connections", absl::StrCat(silent.made(), ", 500 a port"), memory);
        }
        {
            std::vector<Memory> memory = idle();
            Callers loud;
            const std::string bytes = noise(60 << 20);
            const std::string tls = "\x16\x03\x01\x40" + noise(1 << 14);
            for (const uint16_t port : attack::listeningPorts())
                for (const std::string& begin : {std::string(), tls})
                    loud.call(port, begin + bytes);
            for (const auto from = Clock::now(); loud.open() > 0 && msSince(from) < 10'000;) {
                loud.pump(20);
                look(memory);
            }
            tell("60 MB from strangers",
                 absl::StrFormat("%u connections, %.1f MB were taken", loud.made(),
                                 static_cast<double>(loud.sent()) / 1e6),
                 memory);
        }
        {
            std::vector<Memory> memory = idle();
            const auto caller = victim_->connect();
            client::JobText job;
            job.fileName = "large.toml";
            job.text = "nonsense = 1\n#" + std::string(1900 << 10, 'x');
            size_t refused = 0;
            for (int i = 0; i < 60; ++i) {
                refused += !attack::ask<model::JobInfo>([&](auto answer) {
                                caller->startJob(job, {}, answer);
                            }).ok();
                look(memory);
            }
            tell("requests of 1.9 MB", absl::StrCat(refused, " of 60 refused"), memory);
        }
        for (Memory& m : together)
            if (const auto most = most_.find(m.pid); most != most_.end()) m.most = most->second;
        tell("all floods one after another", "", together);
        report_.atMost("incidents of a job under floods", static_cast<double>(incidents() - before),
                       0, "");
    }

    void garbage() {
        const std::vector<std::string> beginnings = {"", std::string("\x16\x03\x01\x02\x00\x01", 6),
                                                     "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                                     std::string("BKDA\x02\0\0\0", 8)};
        const size_t before = incidents();
        const uint64_t from = reply(victim_->job()).step;
        const auto began = Clock::now();
        size_t connections = 0;
        uint64_t bytes = 0;
        while (msSince(began) < settings_.minutes * 60'000) {
            Callers callers;
            for (const uint16_t port : attack::listeningPorts())
                for (const std::string& beginning : beginnings)
                    callers.call(port, beginning + noise(random_() % 20'000));
            const auto round = Clock::now();
            while (callers.open() > 0 && msSince(round) < 200) callers.pump(50);
            connections += callers.made();
            bytes += callers.sent();
        }
        const uint64_t steps = reply(victim_->job()).step - from;
        report_.row({"garbage on every port",
                     absl::StrFormat("%.1f min, %u connections, %.1f MB", msSince(began) / 60'000,
                                     connections, static_cast<double>(bytes) / 1e6),
                     absl::StrCat(steps, " steps, ", incidents() - before, " incidents")});
        report_.atMost("incidents of a job under garbage",
                       static_cast<double>(incidents() - before), 0, "");
        report_.atLeast("steps under garbage", static_cast<double>(steps), 1, "");
    }

    /// Each of ten jobs is stopped while a thousand reads were asked for and abandoned.
    void stops() {
        std::vector<double> took;
        for (int i = 0; i < 10; ++i) {
            need(victim_->train(1));
            for (int caller = 0; caller < 10; ++caller) {
                const auto reader = victim_->connect();
                // Else nothing of what is asked has left when it is abandoned.
                reply(attack::ask<model::ServerInfo>([&](auto r) { reader->handshake(r); }));
                for (int read = 0; read < 100; ++read)
                    reader->getState(victim_->run(), 0, [](client::Result<client::StatePtr>) {});
            }
            const auto from = Clock::now();
            reply(attack::ask<model::JobInfo>([&](auto answer) {
                victim_->console().stopJob(victim_->jobId(), true, {}, answer);
            }));
            took.push_back(msSince(from));
        }
        const Spread spread = spreadOf(took);
        report_.row({"1,000 abandoned reads", absl::StrCat(took.size(), " stops"),
                     absl::StrFormat("answered after %.1f ms (%.1f to %.1f)", spread.median,
                                     spread.min, spread.max)});
        report_.atMost("a stop under 1,000 abandoned reads, the slowest", spread.max, 100, "ms");
    }

    /// Times in ms of calls that are made one after another until `over`.
    std::vector<double> callUntil(const std::atomic<bool>& over) {
        std::vector<double> took;
        while (!over) {
            const auto from = Clock::now();
            reply(attack::ask<model::ServerInfo>(
                [&](auto answer) { victim_->console().handshake(answer); }));
            took.push_back(msSince(from));
            std::this_thread::sleep_for(std::chrono::milliseconds(20));  // as a console that looks
        }
        return took;
    }

    /// Connections that send `bytes`, 20 at a time; how many.
    size_t callForAWhile(const std::string& bytes, bool manyHosts) {
        constexpr double kFloodMs = 4000;
        size_t made = 0;
        for (const auto from = Clock::now(); msSince(from) < kFloodMs;) {
            Callers callers;
            for (int i = 0; i < 20; ++i)
                callers.call(Victim::kConsolePort, bytes,
                             manyHosts
                                 ? (127U << 24) + 256 + static_cast<uint32_t>(random_() % 0xfff000)
                                 : INADDR_LOOPBACK);
            for (const auto round = Clock::now(); callers.open() > 0 && msSince(round) < 500;)
                callers.pump(20);
            made += callers.made();
        }
        return made;
    }

    /// Starts a daemon without TLS in a folder of its own, for HTTP/2 by hand.
    void startPlain(const std::string& name) {
        const std::string dir = dir_ + "/" + name;
        fs::create_directories(dir);
        victim_ = std::make_unique<Victim>(fs::absolute(settings_.programs).string(), dir);
        victim_->withoutTls();
        need(victim_->start());
    }

    /// Tells what the daemon had and how long calls of others took while `flood` lasted.
    template <class Flood>
    void during(const std::string& name, Flood flood) {
        constexpr double kMostMiB = 63;
        const double before = residentOf(victim_->controller());
        forgetMost(victim_->controller());
        std::atomic<bool> over = false;
        auto took = std::async(std::launch::async, [&] { return callUntil(over); });
        const std::string done = flood();
        over = true;
        const Spread call = spreadOf(took.get());
        const double most = mostOf(victim_->controller());
        std::this_thread::sleep_for(std::chrono::seconds(2));  // as the row says
        report_.row({name, done,
                     absl::StrFormat("%.1f MiB, %.1f before, %.1f after 2 s; a call %.1f ms, most "
                                     "%.0f",
                                     most, before, residentOf(victim_->controller()), call.median,
                                     call.max)});
        report_.atMost("memory under " + name, most, kMostMiB, "MiB");
    }

    /// Those who have not signed in, one flood after another on one daemon.
    void strangers() {
        startPlain("plain");
        for (const bool manyHosts : {false, true})
            for (const Http2Flood& flood : http2Floods())
                during(absl::StrCat(flood.name, manyHosts ? ", of many hosts" : ", of one host"),
                       [&] {
                           return absl::StrCat(callForAWhile(flood.bytes, manyHosts),
                                               " connections in 4 s");
                       });
        victim_.reset();
    }

    /// Sends `bytes` on one connection after another that has signed in, until `over`; how many.
    static size_t sendSignedIn(const std::string& signIn, const std::string& bytes,
                               const std::atomic<bool>& over) {
        sockaddr_in at{};
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        at.sin_port = htons(Victim::kConsolePort);
        size_t made = 0;
        for (; !over; ++made) {
            const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
            if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) continue;
            ::send(fd.get(), signIn.data(), signIn.size(), MSG_NOSIGNAL);
            std::array<char, 4096> answer;
            std::string heard;
            for (ssize_t n = 1; n > 0 && heard.find("grpc-status") == heard.npos;) {
                n = ::recv(fd.get(), answer.data(), answer.size(), 0);
                if (n > 0) heard.append(answer.data(), static_cast<size_t>(n));
            }
            pollfd room{fd.get(), POLLIN | POLLOUT, 0};
            for (size_t sent = 0; sent < bytes.size() && !over;) {
                room.events = POLLIN | POLLOUT;
                ::poll(&room, 1, 100);
                if ((room.revents & POLLIN) != 0 &&
                    ::recv(fd.get(), answer.data(), answer.size(), 0) <= 0)
                    break;
                if ((room.revents & POLLOUT) == 0) continue;
                const ssize_t n = ::send(fd.get(), bytes.data() + sent, bytes.size() - sent,
                                         MSG_NOSIGNAL | MSG_DONTWAIT);
                if (n > 0) sent += static_cast<size_t>(n);
            }
        }
        return made;
    }

    /// A viewer who has signed in, six connections at a time.
    void callers() {
        startPlain("callers");
        access::AccessList list;
        const std::string token = access::freshToken();
        access::Principal eve;
        eve.name = "eve";
        eve.tokens = {sha256Hex(token)};
        list.put(eve);
        const std::string file = dir_ + "/callers/controller/access.toml";
        std::ofstream(file) << list.text();
        ::chmod(file.c_str(), 0600);
        for (const Http2Flood& flood : http2FloodsOfCallers())
            during(flood.name + ", of a viewer", [&] {
                std::atomic<bool> over = false;
                std::vector<std::future<size_t>> all;
                for (int i = 0; i < 6; ++i)
                    all.push_back(std::async(std::launch::async, [&] {
                        return sendSignedIn(http2SignIn(token), flood.bytes, over);
                    }));
                std::this_thread::sleep_for(std::chrono::seconds(4));  // as the row says
                over = true;
                size_t made = 0;
                for (auto& one : all) made += one.get();
                return absl::StrCat(made, " connections in 4 s");
            });
        victim_.reset();
    }

    Settings settings_;
    std::string dir_;
    std::mt19937_64 random_;
    std::map<pid_t, double> most_;  ///< MiB of a process under any flood
    Report report_;
    std::unique_ptr<attack::Tap> tap_;
    std::unique_ptr<Victim> victim_;
};

int main(int argc, char** argv) {
    Settings settings;
    CLI::App app{"Attacks on a job from its network and by its callers."};
    addPlace(app, settings.place);
    app.add_option("--programs", settings.programs, "folder of bulkheadd")->capture_default_str();
    app.add_option("--minutes", settings.minutes, "of garbage")->capture_default_str();
    app.add_option("--seed", settings.seed, "of the garbage")->capture_default_str();
    app.add_option("--part", settings.parts,
                   "tap, floods, garbage, reads, strangers, callers; default all")
        ->check(CLI::IsMember(settings.parts));
    CLI11_PARSE(app, argc, argv);
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
    return Attack(std::move(settings)).run();
}

}  // namespace
}  // namespace bulkhead::bench

int main(int argc, char** argv) {
    return bulkhead::bench::main(argc, argv);
}
