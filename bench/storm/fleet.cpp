// SPDX-License-Identifier: Apache-2.0
#include "bench/storm/fleet.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace bulkhead::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTagName = "BULKHEAD_STORM";
constexpr const char* kFaketime = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
constexpr uint16_t kPort = 7411;

uint16_t freePort() {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    if (::bind(fd, reinterpret_cast<sockaddr*>(&at), length) == 0)
        (void)::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length);
    ::close(fd);
    return ::ntohs(at.sin_port);
}

std::string slurp(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

/// Processes whose environment has NAME=VALUE, zombies left out.
std::vector<pid_t> tagged(const std::string& value) {
    std::vector<pid_t> found;
    const std::string wanted = std::string(kTagName) + "=" + value + std::string(1, '\0');
    std::error_code error;
    for (const auto& entry : fs::directory_iterator("/proc", error)) {
        const std::string pid = entry.path().filename().string();
        if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
        if (!absl::StrContains(slurp(entry.path() / "environ"), wanted)) continue;
        found.push_back(std::atoi(pid.c_str()));
    }
    return found;
}

}  // namespace

Ran shell(const std::string& command) {
    Ran ran;
    FILE* pipe = ::popen((command + " 2>/dev/null").c_str(), "re");
    if (pipe == nullptr) return ran;
    std::array<char, 4096> text;
    for (size_t n; (n = std::fread(text.data(), 1, text.size(), pipe)) > 0;)
        ran.out.append(text.data(), n);
    const int status = ::pclose(pipe);
    ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return ran;
}

Fleet::Fleet(FleetOptions options)
    : options_(std::move(options)), tag_(absl::StrCat("storm-", ::getpid())) {}

void Fleet::end() {
    killAll();
    for (const std::string& network : networks_) shell("ip netns del " + network);
    networks_.clear();
    for (const std::string& mount : mounted_) {
        // The files there are evidence: they move to the disk below before the mount goes.
        shell(absl::StrCat("cp -a ", mount, " ", mount, ".kept"));
        ::umount2(mount.c_str(), MNT_DETACH);
        shell(absl::StrCat("rm -rf ", mount, " && mv ", mount, ".kept ", mount));
    }
    mounted_.clear();
}

void Fleet::killAll() {
    for (bool found = true; found;) {
        found = false;
        for (uint32_t member = 0; member < members(); ++member)
            for (const pid_t pid : tagged(absl::StrCat(tag_, ":", name(member)))) {
                found = true;
                ::kill(pid, SIGKILL);
            }
        while (::waitpid(-1, nullptr, WNOHANG) > 0) {
        }
    }
    pids_.clear();
}

std::string Fleet::name(uint32_t member) const {
    return member == kController ? "controller" : absl::StrCat("node", member - 1);
}

std::string Fleet::address(uint32_t member) const {
    return networks_.empty() ? "127.0.0.1" : absl::StrCat("10.77.0.", member + 1);
}

std::string Fleet::clockFile(uint32_t member) const {
    return absl::StrCat(options_.dir, "/clock-", name(member));
}

/// A namespace for each member; the controller's has the bridge that joins them.
void Fleet::makeNetworks() {
    network_ = "loopback (asked for)";
    if (options_.loopback) return;
    std::vector<std::string> made;
    std::string setUp;
    const std::string bridge = absl::StrCat(tag_, "-0");
    for (uint32_t m = 0; m < members(); ++m) {
        const std::string ns = absl::StrCat(tag_, "-", m);
        absl::StrAppend(&setUp, "ip netns add ", ns, " && ip -n ", ns, " link set lo up && ");
        if (m == kController)
            absl::StrAppend(&setUp, "ip -n ", ns, " link add br0 type bridge && ip -n ", ns,
                            " addr add 10.77.0.1/24 dev br0 && ip -n ", ns, " link set br0 up && ");
        else
            absl::StrAppend(&setUp, "ip -n ", bridge, " link add v", m,
                            " type veth peer name eth0 netns ", ns, " && ip -n ", bridge,
                            " link set v", m, " master br0 up && ip -n ", ns, " addr add 10.77.0.",
                            m + 1, "/24 dev eth0 && ip -n ", ns, " link set eth0 up && ");
        made.push_back(ns);
    }
    if (shell(setUp + "true").code == 0) {
        networks_ = made;
        network_ = "network namespaces on a bridge; links can be cut";
        return;
    }
    for (const std::string& ns : made) shell("ip netns del " + ns);
    network_ = "loopback: no network namespaces here (they need root); links cannot be cut";
}

void Fleet::makeDisks() {
    const std::string history = fs::path(this->history()).parent_path();
    for (const std::string& dir : {history, checkpoints()}) {
        fs::create_directories(dir);
        if (::mount("none", dir.c_str(), "tmpfs", 0, "size=768m") == 0) mounted_.push_back(dir);
    }
    disks_ = canFill() ? "a tmpfs each for history and checkpoints, filled to the last byte"
                       : "none of its own (no mounts here): disks are not filled";
}

void Fleet::findFaketime() {
    if (!fs::exists(kFaketime)) {
        clocks_ = "true: libfaketime is not installed (./dev deps --bench), clocks do not jump";
        return;
    }
    // A sanitizer's runtime must be the first library.
    const Ran linked =
        shell("ldd " + options_.programs + "/bulkheadd | grep -o '/[^ ]*libasan[^ ]*'");
    std::string sanitizer = linked.out;
    while (!sanitizer.empty() && sanitizer.back() == '\n') sanitizer.pop_back();
    faketime_ = sanitizer.empty() ? kFaketime : absl::StrCat(sanitizer, ":", kFaketime);
    clocks_ = "libfaketime, each member its own; only the wall clock jumps";
}

absl::Status Fleet::start() {
    makeNetworks();
    makeDisks();
    findFaketime();
    port_ = networks_.empty() ? freePort() : kPort;
    for (uint32_t m = 0; m < members(); ++m) {
        jump(m, 0);
        startMember(m);
    }
    return absl::OkStatus();
}

void Fleet::startMember(uint32_t member) {
    if (runs(member)) return;
    const std::string& dir = options_.dir;
    std::vector<std::string> args = {options_.programs + "/bulkheadd", "--control-token",
                                     dir + "/control.token"};
    const std::string control = absl::StrCat(address(kController), ":", port_);
    if (member == kController)
        args.insert(args.end(), {"--role=controller", "--state-dir", dir + "/state", "--db",
                                 history(), "--control-listen", control});
    else
        args.insert(args.end(), {"--role=agent", "--inherit", "FAKETIME_*", "--node", name(member),
                                 "--state-dir", absl::StrCat(dir, "/", name(member)),
                                 "--controller", control, "--address", address(member)});
    const std::string log = absl::StrCat(dir, "/", name(member), ".log");
    const pid_t pid = ::fork();
    if (pid != 0) {
        pids_[member] = pid;
        return;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!networks_.empty()) {
        const int ns =
            ::open(("/var/run/netns/" + networks_[member]).c_str(), O_RDONLY | O_CLOEXEC);
        if (ns < 0 || ::setns(ns, CLONE_NEWNET) != 0) ::_exit(126);
    }
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::setenv(kTagName, absl::StrCat(tag_, ":", name(member)).c_str(), 1);
    ::setenv("ASAN_OPTIONS", absl::StrCat("log_path=", dir, "/sanitizer").c_str(), 1);
    ::setenv("UBSAN_OPTIONS",
             absl::StrCat("print_stacktrace=1:log_path=", dir, "/sanitizer").c_str(), 1);
    if (canJump()) {
        ::setenv("LD_PRELOAD", faketime_.c_str(), 1);
        ::setenv("FAKETIME_TIMESTAMP_FILE", clockFile(member).c_str(), 1);
        ::setenv("FAKETIME_CACHE_DURATION", "1", 1);
        ::setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1", 1);
        // Shared memory of it is behind a lock that a killed process would keep.
        ::setenv("FAKETIME_DISABLE_SHM", "1", 1);
    }
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
}

bool Fleet::runs(uint32_t member) {
    const auto it = pids_.find(member);
    if (it == pids_.end()) return false;
    if (::waitpid(it->second, nullptr, WNOHANG) == 0) return true;
    pids_.erase(it);
    return false;
}

void Fleet::signalMember(uint32_t member, int signal) {
    if (runs(member)) ::kill(pids_[member], signal);
}

std::vector<pid_t> Fleet::workers(uint32_t member) const {
    std::vector<pid_t> found = tagged(absl::StrCat(tag_, ":", name(member)));
    std::erase_if(found, [](pid_t pid) {
        std::error_code error;
        const auto program = fs::read_symlink(absl::StrCat("/proc/", pid, "/exe"), error);
        return program.filename() != "bulkhead-worker";
    });
    return found;
}

void Fleet::cut(uint32_t member, bool cut) {
    if (canCut() && member != kController)
        shell(absl::StrCat("ip -n ", networks_[kController], " link set v", member,
                           cut ? " down" : " up"));
}

void Fleet::fill(bool checkpoints, bool full) {
    if (!canFill()) return;
    const std::string file =
        (checkpoints ? this->checkpoints() : fs::path(history()).parent_path().string()) +
        "/ballast";
    if (!full) {
        fs::remove(file);
        return;
    }
    const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    static const std::vector<char> kZeros(1 << 16);
    for (size_t piece = kZeros.size(); piece > 0;)
        if (::write(fd, kZeros.data(), piece) <= 0) piece /= 2;
    ::close(fd);
}

void Fleet::jump(uint32_t member, int64_t seconds) {
    // Renamed into place: a reader never sees half of it.
    const std::string file = clockFile(member);
    std::ofstream(file + ".new") << (seconds < 0 ? "" : "+") << seconds << "\n";
    fs::rename(file + ".new", file);
}

Ran Fleet::ctl(const std::string& arguments) const {
    return shell(absl::StrCat("timeout 60 ", options_.programs, "/bulkheadctl -t unix:",
                              options_.dir, "/state/bulkhead.sock ", arguments));
}

std::string Fleet::complaints() const {
    std::string found;
    for (const auto& entry : fs::directory_iterator(options_.dir))
        if (absl::StartsWith(entry.path().filename().string(), "sanitizer"))
            absl::StrAppend(&found, entry.path().string(), "\n");
    for (uint32_t m = 0; m < members(); ++m) {
        const std::string log = absl::StrCat(options_.dir, "/", name(m), ".log");
        for (const char* word : {"Assertion", "terminate called", "runtime error:"})
            if (absl::StrContains(slurp(log), word)) absl::StrAppend(&found, log, ": ", word, "\n");
    }
    return found;
}

}  // namespace bulkhead::bench
