// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "backend/common/fields.h"
#include "backend/common/fingerprint.h"
#include "backend/common/types.h"
#include "backend/model/event.h"
#include "backend/runtime/transport/rank_secrets.h"

/// The messages between the controller and the agent of a node over a control channel. Pure values
/// in the codec's binary form. The controller decides everything; the agent obeys and reports.
namespace bulkhead::runtime {

/// An agent and a controller whose versions differ cannot read each other: a hash of the shape of
/// all messages below. Thread: any.
[[nodiscard]] uint64_t agentVersion();
/// First field of the first message of an agent. Ranks and agents share one listener; a rank's
/// first frame begins with a small variant index, an agent's with this.
constexpr uint32_t kAgentMagic = 0x41424b48;

/// Sign of life: a controller hears from an agent at least once an interval.
struct AgentHeartbeat {
    uint32_t intervalMs = 1000;
    uint32_t limit = 3;  ///< intervals of silence after which the node does not respond
    uint32_t silenceMs() const { return intervalMs * limit; }
};

/// One process: a rank of a job, in one incarnation.
struct RankProcess {
    std::string job;
    RankId rank;
    uint32_t incarnation = 0;
    auto operator<=>(const RankProcess&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("job", self.job);
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
    }
};

/// A GPU of a node, and how a rank has it.
struct GpuPlace {
    uint32_t gpu = 0;     ///< the driver's index
    std::string uuid;     ///< by which CUDA_VISIBLE_DEVICES names it; empty: none
    bool shared = false;  ///< with ranks of jobs that share as well
    bool operator==(const GpuPlace&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("gpu", self.gpu);
        visit("uuid", self.uuid);
        visit("shared", self.shared);
    }
};

struct RunningRank {
    RankProcess process;
    int32_t pid = 0;
    GpuPlace gpu = {};  ///< as RankUp's
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("process", self.process);
        visit("pid", self.pid);
        visit("gpu", self.gpu);
    }
};

// ---- agent -> controller ---------------------------------------------------------------------

/// First message of a connection, alone in its frame (not inside AgentMessage). `magic` and
/// `version` stay its first fields: that much is read of every version. `running` are the ranks
/// that outlived an earlier life of the agent or of the controller.
struct AgentHello {
    uint32_t magic = kAgentMagic;
    uint64_t version = 0;  ///< agentVersion() of the build that sends it
    std::string node;
    std::string address;            ///< IP its ranks listen on
    uint32_t slots = 0;             ///< processes it is willing to run
    std::vector<std::string> gpus;  ///< UUIDs of those that it gives to ranks, one each
    int32_t pid = 0;
    /// Host and folder of its notes: an agent that was started again has the same, another one that
    /// was given its name has not.
    std::string home;
    std::vector<RunningRank> running;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("magic", self.magic);
        visit("version", self.version);
        visit("node", self.node);
        visit("address", self.address);
        visit("slots", self.slots);
        visit("gpus", self.gpus);
        visit("pid", self.pid);
        visit("home", self.home);
        visit("running", self.running);
    }
};

/// A file that a process runs, as it was just before the start.
struct RunFile {
    std::string path;    ///< links followed
    std::string sha256;  ///< 64 hexadecimal digits
    bool operator==(const RunFile&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("path", self.path);
        visit("sha256", self.sha256);
    }
};

/// Answer to StartRank: it runs, or it could not be started (`error` names the program and why).
struct RankUp {
    RankProcess process;
    int32_t pid = 0;
    std::string error = {};
    GpuPlace gpu = {};  ///< that it was given
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("process", self.process);
        visit("pid", self.pid);
        visit("error", self.error);
        visit("gpu", self.gpu);
    }
};

/// The files that a process was started from. Follows RankUp by as long as it takes to read them;
/// the process may be gone by then.
struct RankFiles {
    RankProcess process;
    std::vector<RunFile> files;
    uint64_t receipt = 0;  ///< as RankGone's
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("process", self.process);
        visit("files", self.files);
        visit("receipt", self.receipt);
    }
};

/// A signal ended the process: it computes and answers no more, but may still hold memory, GPUs and
/// addresses. RankGone follows when it is gone, always, and may be all that is told. One that exits
/// by itself is not told of in advance: its last words count.
struct RankDied {
    RankProcess process;
    int32_t pid = 0;
    int32_t signal = 0;
    int64_t unixNs = 0;
    uint64_t receipt = 0;  ///< as RankGone's
    std::string words;     ///< as RankGone's
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("process", self.process);
        visit("pid", self.pid);
        visit("signal", self.signal);
        visit("unix_ns", self.unixNs);
        visit("receipt", self.receipt);
        visit("words", self.words);
    }
};

/// The process is gone and reaped. An adopted process is no child of this agent: its status is then
/// unknown (`statusKnown` false, code and signal 0).
struct RankGone {
    RankProcess process;
    int32_t pid = 0;
    int32_t exitCode = 0;
    int32_t signal = 0;
    bool statusKnown = true;
    int64_t unixNs = 0;
    uint64_t receipt = 0;  ///< told again with every hello until AgentHeard names it
    /// Its own reason: the text of its last critical line on stderr, or the last line there if it
    /// exited with an error and has no such line. Empty: it gave none.
    std::string words = {};
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("process", self.process);
        visit("pid", self.pid);
        visit("exit_code", self.exitCode);
        visit("signal", self.signal);
        visit("status_known", self.statusKnown);
        visit("unix_ns", self.unixNs);
        visit("receipt", self.receipt);
        visit("words", self.words);
    }
};

/// The words of a rank's critical line, by which it says why it ends, after the time:
/// "15:25:11.100 critical WORDS"; empty: it is another line.
inline std::string criticalWords(const std::string& line) {
    constexpr std::string_view kCritical = " critical ";
    const size_t at = line.find(kCritical);
    return at == std::string::npos ? "" : line.substr(at + kCritical.size());
}

/// True of a line that the library writes as it goes, "15:25:11.100 info WORDS": it is never why a
/// rank ended.
inline bool isInformation(const std::string& line) {
    constexpr std::string_view kForm = "00:00:00.000 info ";
    return line.size() >= kForm.size() && line[2] == ':' && line[5] == ':' && line[8] == '.' &&
           std::string_view(line).substr(12, 6) == kForm.substr(12);
}

/// A line a rank printed, at most kMaxOutputLine bytes. `dropped`: lines lost to the rate limit
/// before this one.
struct OutputLine {
    RankProcess process;
    bool isStderr = false;
    std::string line;
    uint64_t dropped = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("process", self.process);
        visit("is_stderr", self.isStderr);
        visit("line", self.line);
        visit("dropped", self.dropped);
    }
};

struct ProcessSample {
    RankProcess process;
    std::optional<double> cpuPercent;  ///< of one core, since the sample before
    std::optional<uint64_t> rssBytes;
    std::optional<double> gpuPercent;
    std::optional<uint64_t> gpuBytes;
    std::vector<uint32_t> gpus;  ///< of the node, that it computes on
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("process", self.process);
        visit("cpu_percent", self.cpuPercent);
        visit("rss_bytes", self.rssBytes);
        visit("gpu_percent", self.gpuPercent);
        visit("gpu_bytes", self.gpuBytes);
        visit("gpus", self.gpus);
    }
};

/// Twice a second.
struct NodeSample {
    model::NodeSample node;
    std::vector<ProcessSample> ranks;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("node", self.node);
        visit("ranks", self.ranks);
    }
};

/// A GPU of the node had an error; `ranks` compute on it, or did at the sample before.
struct GpuTroubleSeen {
    model::GpuTroubled trouble;  ///< its ranks left out
    std::vector<RankProcess> ranks;
    std::vector<std::string> gpusLeft;  ///< UUIDs of those that its agent still gives to ranks
    uint64_t receipt = 0;               ///< as RankGone's
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("trouble", self.trouble);
        visit("ranks", self.ranks);
        visit("gpus_left", self.gpusLeft);
        visit("receipt", self.receipt);
    }
};

/// A fault the agent was told to commit took effect, could not (`error`), or ended.
struct AgentFaultNoted {
    std::string job;
    uint64_t fault = 0;
    bool ended = false;
    std::string error;
    int64_t unixNs = 0;
    uint64_t receipt = 0;  ///< as RankGone's
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("job", self.job);
        visit("fault", self.fault);
        visit("ended", self.ended);
        visit("error", self.error);
        visit("unix_ns", self.unixNs);
        visit("receipt", self.receipt);
    }
};

/// The agent lives. Depends on nothing that may take long on a node, as samples do.
struct AgentBeat {
    template <class Self, class Visitor>
    static void fields(Self&, Visitor&) {}
};

using AgentMessage = std::variant<RankUp, RankDied, RankGone, OutputLine, NodeSample,
                                  AgentFaultNoted, GpuTroubleSeen, AgentBeat, RankFiles>;

// ---- controller -> agent ---------------------------------------------------------------------

/// The agent is accepted. `error`: it is refused (version, name taken) and should give up.
struct AgentWelcome {
    std::string error;
    uint32_t beatMs = 0;  ///< it sends an AgentBeat so often; 0: never
    /// With an error: another connection has its name and may be dead. It comes again until this
    /// much time has passed, then gives up.
    uint32_t tryAgainMs = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("error", self.error);
        visit("beat_ms", self.beatMs);
        visit("try_again_ms", self.tryAgainMs);
    }
};

/// A file that the controller wrote to storage which ranks need as well.
struct SharedFile {
    std::string path;
    std::string text;  ///< all of it, without white space at its ends; empty: whatever it holds
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("path", self.path);
        visit("text", self.text);
    }
};

/// Start a process. `argv[0]` is the program's path, or a name that the agent's PATH has;
/// `environment` is added to what every rank has of the agent's own.
/// Starting a process that runs already answers with its pid and starts nothing.
/// On a node with GPUs a rank that may compute on one is given one of its own, by
/// CUDA_VISIBLE_DEVICES; when all are taken it is not started, or shares one if it may. One that
/// is given none sees none, and BULKHEAD_NO_GPU says why.
struct StartRank {
    RankProcess process;
    std::vector<std::string> argv;
    std::vector<std::string> environment;  ///< NAME=value
    std::string directory = {};            ///< working directory; empty: the agent's
    bool onGpu = false;                    ///< it computes on one if it is given one
    bool shareGpu = false;
    bool noGpu = false;         ///< it is given none: other ranks of its job compute without one
    RankSecrets secrets = {};   ///< handed down (inheritSecrets)
    std::string workload = {};  ///< plugins that our worker loads, as the job names them
    std::string device = {};
    std::vector<SharedFile> shared = {};  ///< a node that does not see them does not start it
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("process", self.process);
        visit("argv", self.argv);
        visit("environment", self.environment);
        visit("directory", self.directory);
        visit("on_gpu", self.onGpu);
        visit("share_gpu", self.shareGpu);
        visit("no_gpu", self.noGpu);
        visit("secrets", self.secrets);
        visit("workload", self.workload);
        visit("device", self.device);
        visit("shared", self.shared);
    }
};

/// Send a signal (SIGTERM, SIGKILL, SIGSTOP, SIGCONT). For a fault, `fault` is its id:
/// AgentFaultNoted answers, and with SIGSTOP and `durationMs` the agent continues the process after
/// that time. Signal 0 with a fault: the process stops itself, the agent only wakes it.
struct SignalRank {
    RankProcess process;
    int32_t signal = 0;
    uint64_t fault = 0;
    uint64_t durationMs = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("process", self.process);
        visit("signal", self.signal);
        visit("fault", self.fault);
        visit("duration_ms", self.durationMs);
    }
};

/// Leave no room on the file system that holds `directory`, for `durationMs` (0: until EndFault).
struct FillDisk {
    std::string job;
    uint64_t fault = 0;
    std::string directory;
    uint64_t durationMs = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("job", self.job);
        visit("fault", self.fault);
        visit("directory", self.directory);
        visit("duration_ms", self.durationMs);
    }
};

/// Ends what the agent holds for the fault, and hands the end to `ranks`, those that run here, by
/// endFaultSignal(): a rank whose network is cut hears of it no other way.
struct EndFault {
    std::string job;
    uint64_t fault = 0;
    std::vector<RankProcess> ranks;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("job", self.job);
        visit("fault", self.fault);
        visit("ranks", self.ranks);
    }
};

/// The node dies: SIGKILL to every rank on it, then to the agent itself.
struct KillNode {
    uint64_t fault = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("fault", self.fault);
    }
};

/// The message with this receipt was acted on; the agent need not keep it. 0: a beat was heard.
struct AgentHeard {
    uint64_t receipt = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("receipt", self.receipt);
    }
};

using AgentCommand =
    std::variant<AgentWelcome, StartRank, SignalRank, FillDisk, EndFault, KillNode, AgentHeard>;

inline uint64_t agentVersion() {
    /// Raise it when a message comes to mean something else and its fields stay the same.
    constexpr uint64_t kMeaning = 6;
    static const uint64_t version = shapeHash<AgentHello>() * 3 + shapeHash<AgentMessage>() * 5 +
                                    shapeHash<AgentCommand>() + kMeaning;
    return version;
}

}  // namespace bulkhead::runtime
