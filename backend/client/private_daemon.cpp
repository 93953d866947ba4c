// SPDX-License-Identifier: Apache-2.0
#include "backend/client/private_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

namespace bulkhead::client {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using Steady = std::chrono::steady_clock;

/// Descriptor of the daemon's report (--ready-fd): "ready\n", or "error\nCAUSE\nREMEDY\n".
constexpr int kReadyFd = 3;
/// The daemon's end of a connection (--life-fd) whose other end only this process holds.
constexpr int kLifeFd = 4;
constexpr std::string_view kSocketName = "/bulkhead.sock";
constexpr size_t kLongestDir = 107 - kSocketName.size();

Failure cannotStart(std::string cause, std::string remedy) {
    return {FailureCode::kServer, "Cannot start a daemon", std::move(cause), std::move(remedy),
            false};
}

/// The failure for an argument that the daemon cannot use: a file, a folder, an address.
Failure cannotUse(std::string cause, std::string remedy) {
    Failure failure = cannotStart(std::move(cause), std::move(remedy));
    failure.code = FailureCode::kInvalid;
    return failure;
}

std::optional<Failure> tooLong(const std::string& dir) {
    if (dir.size() <= kLongestDir) return std::nullopt;
    return cannotUse("The path " + dir +
                         " is too long for a folder with a socket in "
                         "it: " +
                         std::to_string(dir.size()) + " bytes, " + std::to_string(kLongestDir) +
                         " are possible.",
                     "Choose a place with a shorter path.");
}

/// A daemon holds the state folder's lock.
bool isTaken(const std::string& dir) {
    const int fd = ::open((dir + "/daemon.lock").c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    const bool taken = ::flock(fd, LOCK_EX | LOCK_NB) != 0;
    ::close(fd);
    return taken;
}

/// Beside this program, else by PATH.
std::string defaultProgram() {
    std::error_code error;
    const fs::path self = fs::read_symlink("/proc/self/exe", error);
    const fs::path beside = self.parent_path() / "bulkheadd";
    if (!error && ::access(beside.c_str(), X_OK) == 0) return beside.string();
    return "bulkheadd";
}

std::string firstLine(std::string& text) {
    const size_t end = text.find('\n');
    std::string line = text.substr(0, end);
    text.erase(0, end == std::string::npos ? text.size() : end + 1);
    return line;
}

class Process final : public PrivateDaemon {
  public:
    explicit Process(PrivateDaemonOptions options) : options_(std::move(options)) {}
    ~Process() override {
        if (!released_) stop(milliseconds(60000));
        if (ownsDir_ && !released_ && (endedWell_ || options_.stateDir.empty())) {
            std::error_code ignored;
            fs::remove_all(dir_, ignored);
        }
        if (life_ >= 0) ::close(life_);
    }

    std::optional<Failure> start();
    std::string target() const override { return "unix:" + dir_ + std::string(kSocketName); }
    int pid() const override { return pid_; }
    std::string stateDir() const override { return dir_; }
    void stop(milliseconds limit) override;
    void release() override {
        released_ = true;
        (void)::send(life_, "g", 1, MSG_NOSIGNAL);  // it goes on
    }
    bool ended() override {
        // An error means that somebody else has reaped it.
        int status = -1;
        if (pid_ > 0 && ::waitpid(pid_, &status, WNOHANG) != 0) {
            pid_ = -1;
            endedWell_ = status == 0;
        }
        return pid_ <= 0;
    }

  private:
    std::optional<Failure> makeDir();
    std::vector<std::string> arguments() const;
    std::optional<Failure> awaitReady(int fd);

    PrivateDaemonOptions options_;
    std::string dir_;
    bool ownsDir_ = false;
    bool released_ = false;
    bool endedWell_ = false;
    pid_t pid_ = -1;
    int life_ = -1;
};

std::optional<Failure> Process::makeDir() {
    if (!options_.stateDir.empty() && !(options_.scratch && isTaken(options_.stateDir))) {
        std::error_code error;
        ownsDir_ = options_.scratch;
        dir_ = fs::absolute(options_.stateDir, error).string();
        if (auto failure = tooLong(dir_)) return failure;
        fs::create_directories(dir_, error);
        if (error) return cannotUse(dir_ + ": " + error.message() + ".", "Choose another folder.");
        return std::nullopt;
    }
    const char* base = std::getenv("TMPDIR");
    std::string pattern = std::string(base != nullptr ? base : "/tmp") + "/bulkhead-XXXXXX";
    options_.stateDir.clear();
    if (auto failure = tooLong(pattern)) return failure;
    if (::mkdtemp(pattern.data()) == nullptr)
        return cannotStart(
            "No folder could be made for it: " + pattern + ": " + std::strerror(errno) + ".",
            "Set TMPDIR to a folder you can write to.");
    dir_ = pattern;
    ownsDir_ = true;
    return std::nullopt;
}

std::vector<std::string> Process::arguments() const {
    std::vector<std::string> args{
        options_.program.empty() ? defaultProgram() : options_.program,
        "--role=all",
        "--private",
        "--socket",
        dir_ + std::string(kSocketName),
        "--state-dir",
        dir_,
        "--ready-fd",
        std::to_string(kReadyFd),
        "--life-fd",
        std::to_string(kLifeFd),
    };
    if (options_.readOnly) {
        args.insert(args.end(), {"--run", options_.runFile});
        if (!options_.jobsDir.empty()) args.insert(args.end(), {"--jobs", options_.jobsDir});
    } else {
        if (!options_.runFile.empty()) args.insert(args.end(), {"--db", options_.runFile});
        args.insert(args.end(), {"--agents", std::to_string(options_.agents)});
    }
    return args;
}

std::optional<Failure> Process::start() {
    if (auto failure = makeDir()) return failure;
    const std::vector<std::string> args = arguments();
    std::vector<char*> argv;
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    int ready[2];
    int life[2];
    if (::pipe2(ready, O_CLOEXEC) != 0 ||
        ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, life) != 0)
        return cannotStart(std::string("No pipe: ") + std::strerror(errno) + ".", "Try again.");
    life_ = life[1];
    const std::string log = dir_ + "/daemon.log";
    pid_ = ::fork();
    if (pid_ == 0) {
        // Only calls that are safe after fork in a program with threads.
        ::setpgid(0, 0);
        const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        const int in = ::open("/dev/null", O_RDONLY);
        ::dup2(in, 0);
        ::dup2(out, 1);
        ::dup2(out, 2);
        // Away from the numbers they are to have, which dup2() might close on the way.
        const int tell = ::fcntl(ready[1], F_DUPFD_CLOEXEC, kLifeFd + 1);
        const int watch = ::fcntl(life[0], F_DUPFD_CLOEXEC, kLifeFd + 1);
        ::dup2(tell, kReadyFd);
        ::dup2(watch, kLifeFd);
        ::execvp(argv[0], argv.data());
        const char text[] =
            "error\nbulkheadd cannot be executed.\nBuild or install it, beside this "
            "program or on the PATH.\n";
        (void)!::write(kReadyFd, text, sizeof text - 1);
        ::_exit(127);
    }
    ::close(ready[1]);
    ::close(life[0]);
    std::optional<Failure> failure =
        pid_ < 0 ? cannotStart(std::string("fork: ") + std::strerror(errno) + ".", "Try again.")
                 : awaitReady(ready[0]);
    ::close(ready[0]);
    return failure;
}

std::optional<Failure> Process::awaitReady(int fd) {
    const auto limit = Steady::now() + options_.startLimit;
    std::string said;
    while (said.rfind("ready\n", 0) != 0) {
        const auto left = std::chrono::duration_cast<milliseconds>(limit - Steady::now()).count();
        if (left <= 0)
            return cannotStart("It did not serve in time.", "Look at " + dir_ + "/daemon.log.");
        pollfd entry{fd, POLLIN, 0};
        const int n = ::poll(&entry, 1, static_cast<int>(left));
        if (n < 0 && errno == EINTR) continue;
        char text[2048];
        const ssize_t got = n > 0 ? ::read(fd, text, sizeof text) : 0;
        if (got > 0) {
            said.append(text, static_cast<size_t>(got));
        } else if (n > 0) {
            if (firstLine(said) != "error")
                return cannotStart("It ended at once.", "Look at " + dir_ + "/daemon.log.");
            const std::string cause = firstLine(said);
            return cannotUse(cause, firstLine(said));
        }
    }
    return std::nullopt;
}

void Process::stop(milliseconds limit) {
    if (ended()) return;
    ::kill(pid_, SIGTERM);
    const auto until = Steady::now() + limit;
    while (!ended() && Steady::now() < until) std::this_thread::sleep_for(milliseconds(10));
    if (ended()) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

}  // namespace

Result<std::unique_ptr<PrivateDaemon>> PrivateDaemon::create(PrivateDaemonOptions options) {
    auto process = std::make_unique<Process>(std::move(options));
    if (auto failure = process->start()) {
        process->stop(milliseconds(2000));
        return *failure;
    }
    return std::unique_ptr<PrivateDaemon>(std::move(process));
}

}  // namespace bulkhead::client
