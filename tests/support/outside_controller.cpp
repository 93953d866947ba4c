// SPDX-License-Identifier: Apache-2.0
#include "tests/support/outside_controller.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "backend/model/json.h"
#include "tests/support/job_host.h"

namespace bulkhead::support {
namespace {

constexpr std::chrono::seconds kPatience{120};

}  // namespace

OutsideController::OutsideController(std::string dir, std::string socket, std::string worker,
                                     EventTape& tape)
    : dir_(std::move(dir)), socket_(std::move(socket)), worker_(std::move(worker)), tape_(tape) {
    ::signal(SIGPIPE, SIG_IGN);  // it may die while it is spoken to
}

OutsideController::~OutsideController() {
    killNow();
}

std::string OutsideController::start() {
    int to[2];
    int from[2];
    if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) return "";
    const std::string program = JobHost::program("bulkhead-test-controller");
    {
        const MutexLock lock(mutex_);
        gone_ = false;
        answers_.clear();
    }
    pid_ = ::fork();
    if (pid_ == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::dup2(to[0], STDIN_FILENO);
        ::dup2(from[1], STDOUT_FILENO);
        ::execl(program.c_str(), program.c_str(), dir_.c_str(), socket_.c_str(), JobHost::kToken,
                JobHost::program(worker_).c_str(), nullptr);
        ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    in_ = to[1];
    reader_ = std::thread([this, fd = from[0]] { read(fd); });
    return awaitAnswer();
}

void OutsideController::read(int fd) {
    FILE* stream = ::fdopen(fd, "r");
    char* line = nullptr;
    size_t room = 0;
    for (ssize_t n; (n = ::getline(&line, &room, stream)) > 0;) {
        if (line[n - 1] != '\n') break;  // cut short by its death
        const std::string text(line, static_cast<size_t>(n) - 1);
        if (text.starts_with("event ")) {
            const size_t space = text.find(' ', 6);
            if (auto event = model::fromJsonText<model::Event>(text.substr(space + 1)); event.ok())
                tape_.onEvent(text.substr(6, space - 6), *event);
            continue;
        }
        const MutexLock lock(mutex_);
        answers_.push_back(text);
        answered_.notify_all();
    }
    ::free(line);
    std::fclose(stream);
    const MutexLock lock(mutex_);
    gone_ = true;
    answered_.notify_all();
}

void OutsideController::tell(const std::string& command) {
    const std::string line = command + "\n";
    (void)!::write(in_, line.data(), line.size());
}

std::string OutsideController::ask(const std::string& command) {
    tell(command);
    return awaitAnswer();
}

std::string OutsideController::awaitAnswer() {
    MutexLock lock(mutex_);
    answered_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return gone_ || !answers_.empty();
    });
    if (answers_.empty()) return "";
    const std::string answer = answers_.front();
    answers_.pop_front();
    return answer;
}

bool OutsideController::gone(std::chrono::milliseconds patience) {
    MutexLock lock(mutex_);
    return answered_.wait_for(lock, patience,
                              [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return gone_; });
}

bool OutsideController::awaitKilled() {
    if (pid_ <= 0) return false;
    {
        MutexLock lock(mutex_);
        // Its end of the pipe closes with it. The moment it was to die at may never come.
        if (!answered_.wait_for(lock, kPatience,
                                [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return gone_; }))
            ::kill(pid_, SIGTERM);
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    ::close(in_);
    reader_.join();
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

void OutsideController::killNow() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    awaitKilled();
}

void OutsideController::end() {
    if (pid_ <= 0) return;
    ::close(in_);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
    reader_.join();
}

}  // namespace bulkhead::support
