// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/linux_host.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "backend/common/digest.h"
#include "backend/common/file_system.h"
#include "backend/model/program_files.h"
#include "backend/runtime/agent/death_watch.h"
#include "backend/runtime/agent/output_reader.h"
#include "spdlog/spdlog.h"

namespace bulkhead::runtime {

std::string nameOf(const RankProcess& p) {
    return absl::StrCat(p.job, " r", p.rank.replica, "s", p.rank.shard, " incarnation ",
                        p.incarnation);
}

/// The process whose standard output is `pipe`; 0: there is none.
int32_t processPrintingTo(const std::string& pipe) {
    std::error_code error;
    for (auto it = std::filesystem::directory_iterator("/proc", error);
         !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
        int32_t pid = 0;
        if (!absl::SimpleAtoi(it->path().filename().string(), &pid)) continue;
        std::error_code gone;
        if (std::filesystem::read_symlink(it->path() / "fd/1", gone) == pipe) return pid;
    }
    return 0;
}

/// The number of the named pipe that a rank prints to, in its environment.
constexpr const char* kPipeVariable = "BULKHEAD_OUTPUT_PIPE";

/// 0: there is no such file.
uint64_t fileNumber(const std::string& path) {
    struct stat about {};
    return ::stat(path.c_str(), &about) == 0 ? about.st_ino : 0;
}

/// The process was started to print to these named pipes, of which a copied folder has others. One
/// that prints elsewhere by now still has their number in its environment.
bool printsTo(int32_t pid, const std::string& output) {
    const std::string process = absl::StrCat("/proc/", pid);
    const uint64_t out = fileNumber(output + ".out"), err = fileNumber(output + ".err");
    if (out != 0 && fileNumber(process + "/fd/1") == out) return true;
    if (err != 0 && fileNumber(process + "/fd/2") == err) return true;
    std::ifstream environment(process + "/environ", std::ios::binary);
    const std::string wanted = absl::StrCat(kPipeVariable, "=", out);
    for (std::string entry; std::getline(environment, entry, '\0');)
        if (entry == wanted) return out != 0;
    return false;
}

class LinuxHost::Process final : public HostProcess {
  public:
    Process(LinuxHost& host, RankProcess id, ProcessWatcher watcher)
        : host_(host), id_(std::move(id)), watcher_(std::move(watcher)) {}

    ~Process() override {
        if (handle_.valid()) host_.reactor_.unwatch(handle_.get());
        for (const auto& reader : output_)
            if (reader != nullptr) host_.reactor_.unwatch(reader->fd());
        host_.sampler_.forget(pid_);
    }

    absl::Status openOutput(const std::string& path) {
        for (const bool isStderr : {false, true}) {
            const std::string pipe = path + (isStderr ? ".err" : ".out");
            if (::mkfifo(pipe.c_str(), 0600) != 0 && errno != EEXIST)
                return absl::UnavailableError(
                    absl::StrCat("cannot make the pipe ", pipe, ": ", std::strerror(errno)));
            auto reader =
                OutputReader::open(pipe, host_.outputLinesPerSecond_,
                                   [this, isStderr](std::string line, uint64_t dropped) {
                                       watcher_.printed(isStderr, std::move(line), dropped);
                                   });
            if (!reader.ok()) return reader.status();
            output_[isStderr] = std::make_unique<OutputReader>(*std::move(reader));
            pipes_[isStderr] = pipe;
        }
        return absl::OkStatus();
    }

    absl::Status launch(const StartRank& command) {
        auto life = LifeLock::create();
        std::vector<std::string> environment = command.environment;
        environment.push_back(absl::StrCat(kPipeVariable, "=", fileNumber(pipes_[0])));
        const auto secrets = secretsPipe(command.secrets);
        if (!secrets.ok()) return secrets.status();
        // The reader's own descriptors do not block, and would make writes of the program fail.
        std::array<UniqueFd, 2> prints;
        for (size_t i = 0; i < prints.size(); ++i) {
            prints[i] = OutputReader::openToPrint(pipes_[i]);
            if (!prints[i].valid())
                return absl::UnavailableError(
                    absl::StrCat("cannot open the pipe ", pipes_[i], ": ", std::strerror(errno)));
        }
        auto pid = runtime::launch({command.argv, std::move(environment), prints[0].get(),
                                    prints[1].get(), life.ok() ? life->fd() : -1, secrets->get(),
                                    command.directory, host_.inherited_});
        if (!pid.ok()) return pid.status();
        pid_ = *pid;
        auto handle = openProcess(pid_);  // a child stays a zombie until it is reaped
        if (!handle.ok()) return handle.status();
        handle_ = *std::move(handle);
        startTime_ = processStartTime(pid_).value_or(0);
        watch(std::move(life));
        return absl::OkStatus();
    }

    absl::Status take(const RegisteredRank& rank, const std::string& output) {
        auto handle = openProcess(rank.pid);
        if (!handle.ok()) return handle.status();
        // Asked after the handle is open: a pid that was given to another process shows.
        if (processStartTime(rank.pid) != rank.startTime)
            return absl::NotFoundError(absl::StrCat("process ", rank.pid, " is another one"));
        // Else the agent of a copied folder would end the ranks of the original.
        if (!printsTo(rank.pid, output)) {
            spdlog::warn(
                "process {} is noted as {}, and did not start with the pipes {}.out and .err: this "
                "folder is the copy of another agent's, or its pipes were replaced; it is left "
                "alone",
                rank.pid, nameOf(rank.process), output);
            return absl::NotFoundError(absl::StrCat("process ", rank.pid, " is another agent's"));
        }
        handle_ = *std::move(handle);
        pid_ = rank.pid;
        startTime_ = rank.startTime;
        watch(LifeLock::ofProcess(pid_));
        return absl::OkStatus();
    }

    int32_t pid() const override { return pid_; }
    uint64_t startTime() const override { return startTime_; }
    absl::Status signal(int signal, int32_t value) override {
        return signalProcess(handle_, signal, value);
    }
    ExitStatus reap() override { return runtime::reap(handle_); }
    void drainOutput() override {
        for (const auto& reader : output_)
            if (reader != nullptr) reader->finish(host_.reactor_.now());
    }
    ProcessFigures sample() override { return host_.sampler_.sample(pid_, host_.reactor_.now()); }

  private:
    void watch(absl::StatusOr<LifeLock> life) {
        for (const auto& reader : output_)
            if (reader != nullptr)
                watch(reader->fd(), [this, r = reader.get()] { r->drain(host_.reactor_.now()); });
        // The notice may destroy this object.
        watch(handle_.get(), [gone = watcher_.gone] { gone(); });
        if (!life.ok())
            return spdlog::warn("the death of {} will be noticed only when it is gone: {}",
                                nameOf(id_), life.status().ToString());
        death_ = std::make_unique<DeathWatch>(
            *std::move(life), pid_,
            [this, alive = std::weak_ptr<char>(life_)](std::optional<int32_t> signal) {
                host_.reactor_.post([this, alive, signal] {
                    if (!alive.expired()) died(signal);
                });
            });
    }

    void watch(int fd, std::function<void()> task) {
        const absl::Status watched =
            host_.reactor_.watch(fd, EPOLLIN, [task = std::move(task)](uint32_t) { task(); });
        // Only when the kernel is out of memory for one more descriptor.
        if (!watched.ok())
            spdlog::error("cannot watch a process or its output: {}", watched.ToString());
    }

    void died(std::optional<int32_t> signal) {
        if (signal) return watcher_.died(*signal);
        spdlog::warn(
            "{} let go of its life lock and lives: its death will be noticed only when it is gone",
            nameOf(id_));
    }

    LinuxHost& host_;
    const RankProcess id_;
    const ProcessWatcher watcher_;
    std::array<std::string, 2> pipes_;  ///< of its standard output and error
    int32_t pid_ = 0;
    uint64_t startTime_ = 0;
    UniqueFd handle_;
    std::array<std::unique_ptr<OutputReader>, 2> output_;  ///< stdout, stderr; null: lost
    std::unique_ptr<DeathWatch> death_;                    ///< null: only the handle tells
    const std::shared_ptr<char> life_ = std::make_shared<char>();
};

static absl::Status checkShared(const std::vector<SharedFile>& files) {
    for (const SharedFile& file : files) {
        const auto there = diskFiles().read(file.path);
        if (there.ok() && (file.text.empty() || absl::StripAsciiWhitespace(*there) == file.text))
            continue;
        const std::string why = there.ok() ? absl::StrCat(file.path, " is another one there")
                                           : std::string(there.status().message());
        return absl::FailedPreconditionError(
            absl::StrCat("it does not see what the controller wrote (", why,
                         "): the controller's jobs folder, and checkpoint_dir where a job has one, "
                         "must be on storage that all nodes have at the same path"));
    }
    return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HostProcess>> LinuxHost::start(const StartRank& command,
                                                              const std::string& output,
                                                              ProcessWatcher watcher) {
    if (absl::Status s = checkShared(command.shared); !s.ok()) return s;
    ToHash from{open(command), watcher.files};
    auto process = std::make_unique<Process>(*this, command.process, std::move(watcher));
    if (absl::Status s = process->openOutput(output); !s.ok()) return s;
    if (absl::Status s = process->launch(command); !s.ok()) return s;
    hash(std::move(from));
    return process;
}

std::vector<GpuPlace> LinuxHost::gpus() {
    const std::vector<GpuPlace> all = gpus_.places();
    std::vector<GpuPlace> visible = visibleGpus(all, std::getenv("CUDA_VISIBLE_DEVICES"));
    if (visible.empty() && !all.empty()) spdlog::warn("no GPU is given to ranks: {}", whyNoGpus());
    return visible;
}

std::string LinuxHost::whyNoGpus() {
    if (!gpus_.whyNone().empty()) return gpus_.whyNone();
    const size_t all = gpus_.places().size();
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    if (all == 0 || visible == nullptr) return "the driver does not tell their UUIDs";
    return absl::StrCat("CUDA_VISIBLE_DEVICES=", visible, " of its agent leaves none of its ", all);
}

/// A lock on a file for each GPU, in a folder that every user of the machine can write.
absl::StatusOr<UniqueFd> LinuxHost::claim(const GpuPlace& gpu) {
    const std::string path = absl::StrCat("/dev/shm/bulkhead-gpu-", gpu.uuid);
    // Only its owner may open with O_CREAT what is there (fs.protected_regular).
    UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file.valid()) {
        file = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_CREAT | O_EXCL, 0644));
        if (!file.valid()) file = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    }
    if (!file.valid()) {
        spdlog::warn("cannot claim GPU {} before agents of other controllers on this machine: {}",
                     gpu.gpu, absl::StrCat(path, ": ", std::strerror(errno)));
        return file;
    }
    if (::flock(file.get(), (gpu.shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0 &&
        errno == EWOULDBLOCK)
        return absl::AlreadyExistsError(
            absl::StrCat("GPU ", gpu.gpu,
                         " by a rank of another agent on this machine, of this controller or "
                         "another; narrow one of them with --gpus"));
    return file;
}

LinuxHost::~LinuxHost() {
    ending_ = true;
    {
        MutexLock lock(mutex_);
        changed_.notify_all();
    }
    if (hashing_.joinable()) hashing_.join();
}

/// Null for what is no file that can be read, or larger than a program.
std::shared_ptr<LinuxHost::Hashed> LinuxHost::open(const std::string& path) {
    constexpr off_t kMostBytes = off_t{256} << 20;
    struct stat info {};
    // Opening a device may do something.
    if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return nullptr;
    UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (!file.valid() || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) ||
        info.st_size > kMostBytes)
        return nullptr;
    const auto ns = [](const timespec& t) { return absl::StrCat(t.tv_sec, ".", t.tv_nsec); };
    std::string identity = absl::StrCat(info.st_dev, " ", info.st_ino, " ", info.st_size, " ",
                                        ns(info.st_mtim), " ", ns(info.st_ctim));
    std::shared_ptr<Hashed>& known = hashed_[path];
    if (known == nullptr || known->identity != identity)
        known.reset(new Hashed{std::move(identity), std::move(file), ""});
    return known;
}

LinuxHost::Files LinuxHost::open(const StartRank& command) {
    constexpr size_t kMostArguments = 8;
    std::vector<std::string> paths{model::programFile(command.argv.front(), command.directory)};
    const std::vector<std::string> folders = model::pluginFolders(paths.front());
    if (!command.workload.empty())
        paths.push_back(model::pluginFile("workload", command.workload, folders));
    // A worker that may choose takes the GPU's, if it can.
    if (!command.device.empty())
        paths.push_back(model::pluginFile(
            "device", command.device == "auto" ? "cuda" : command.device, folders));
    for (size_t i = 1; i < std::min(command.argv.size(), kMostArguments); ++i)
        if (command.workload.empty())
            paths.push_back(
                model::withoutLinks(std::filesystem::path(command.directory) / command.argv[i]));
    Files files;
    for (const std::string& path : paths)
        if (std::shared_ptr<Hashed> file = open(path)) files.emplace_back(path, std::move(file));
    return files;
}

void LinuxHost::hash(ToHash what) {
    MutexLock lock(mutex_);
    toHash_.push_back(std::move(what));
    changed_.notify_all();
    if (!hashing_.joinable()) hashing_ = Thread([this] { hashAll(); });
}

void LinuxHost::hashAll() {
    for (;;) {
        ToHash next;
        {
            MutexLock lock(mutex_);
            changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                return ending_ || !toHash_.empty();
            });
            if (ending_) return;
            next = std::move(toHash_.front());
            toHash_.pop_front();
        }
        std::vector<RunFile> files;
        for (const auto& [path, file] : next.files) {
            if (file->file.valid()) read(*file);
            if (!file->sha256.empty()) files.push_back({path, file->sha256});
        }
        reactor_.post([done = std::move(next.done), files = std::move(files)]() mutable {
            done(std::move(files));
        });
    }
}

void LinuxHost::read(Hashed& hashed) const {
    const UniqueFd file = std::move(hashed.file);
    std::vector<char> buffer(size_t{1} << 20);
    Sha256 hash;
    for (ssize_t got = 1; got != 0;) {
        got = ::read(file.get(), buffer.data(), buffer.size());
        if (ending_ || (got < 0 && errno != EINTR)) return;
        if (got > 0) hash.add({buffer.data(), static_cast<size_t>(got)});
    }
    hashed.sha256 = hash.hex();
}

absl::StatusOr<std::unique_ptr<HostProcess>> LinuxHost::find(const RegisteredRank& rank,
                                                             const std::string& output,
                                                             ProcessWatcher watcher) {
    auto process = std::make_unique<Process>(*this, rank.process, std::move(watcher));
    if (absl::Status s = process->openOutput(output); !s.ok())
        spdlog::warn("output of {} is lost: {}", nameOf(rank.process), s.ToString());
    RegisteredRank found = rank;
    if (rank.pid == 0) {
        std::error_code error;
        found.pid = processPrintingTo(std::filesystem::weakly_canonical(output + ".out", error));
        found.startTime = processStartTime(found.pid).value_or(0);
        if (found.pid == 0) return absl::NotFoundError("it was not started");
    }
    if (absl::Status s = process->take(found, output); !s.ok()) return s;
    return process;
}

/// The driver may take seconds to answer; nothing else waits for it.
void LinuxHost::sample(std::function<void(HostFigures)> done) {
    askingGpus_ = std::jthread([this, done = std::move(done)] {
        reactor_.post([this, done, gpus = gpus_.sample()]() mutable {
            done({sampler_.memory(), std::move(gpus), gpus_.whyNone()});
        });
    });
}

}  // namespace bulkhead::runtime
