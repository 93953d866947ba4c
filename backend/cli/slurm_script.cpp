// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/slurm_script.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace bulkhead::cli {
namespace {

/// Neither the shell nor sbatch, which replaces % in the name of an output file, reads it
/// otherwise.
bool isPlain(const std::string& text) {
    constexpr std::string_view kOthers = "/._-+:,@=[]";
    return std::all_of(text.begin(), text.end(), [&](unsigned char c) {
        return std::isalnum(c) != 0 || kOthers.find(static_cast<char>(c)) != kOthers.npos;
    });
}

std::string directives(const SlurmScript& script) {
    std::string out;
    const auto add = [&out](const std::string& option) {
        absl::StrAppend(&out, "#SBATCH ", option, "\n");
    };
    add("--job-name=" + script.name);
    add(absl::StrCat("--nodes=", script.nodes));
    add("--ntasks-per-node=1");
    add("--exclusive");
    add("--no-kill");
    add("--open-mode=append");
    add("--output=" + script.folder + "/slurm-%j.out");
    if (!script.time.empty()) add("--time=" + script.time);
    if (!script.partition.empty()) add("--partition=" + script.partition);
    for (const std::string& option : script.directives) add(option);
    return out;
}

/// srun of an agent on every node; one that is killed is started again and adopts its ranks.
std::string agents(const SlurmScript& script) {
    constexpr const char* kText =
        R"sh(# An agent on every node, whose name it has. One that is killed starts again; 2: it could not start.
srun --no-kill --kill-on-bad-exit=0 /bin/bash -c '
  until "$0" --role=agent --state-dir "$1" --controller "$2" --node "$SLURMD_NODENAME" \
    --address "${3//%N/$SLURMD_NODENAME}" --slots "@SLOTS@" @KEY@
  do [ $? -ne 2 ] || exit 2; done' \
  @BIN@/bulkheadd "$state" "$controller" "$address")sh";
    return absl::StrReplaceAll(
        kText, {{"@SLOTS@", script.slots.empty() ? "${SLURM_GPUS_ON_NODE:-$SLURM_CPUS_ON_NODE}"
                                                 : script.slots},
                {"@KEY@", script.keys.empty()
                              ? "--control-token \"$1/control.token\""
                              : "--agent-key \"" + script.keys + "/$SLURMD_NODENAME.key\""},
                {"@BIN@", script.bin}});
}

}  // namespace

std::string shellQuoted(const std::string& word) {
    if (!word.empty() && isPlain(word)) return word;
    return "'" + absl::StrReplaceAll(word, {{"'", "'\\''"}}) + "'";
}

absl::Status checkScript(const SlurmScript& script) {
    const std::pair<const char*, const std::string*> plain[] = {
        {"--name", &script.name},
        {"the folder of the programs", &script.bin},
        {"--state-dir", &script.folder},
        {"--time", &script.time},
        {"--partition", &script.partition},
        {"--slots", &script.slots},
        {"--controller", &script.controller},
        {"--keys", &script.keys}};
    for (const auto& [option, text] : plain)
        if (!isPlain(*text))
            return absl::InvalidArgumentError(
                absl::StrCat(option, ": \"", *text,
                             "\" cannot stand in a batch script; use letters, digits and "
                             "/._-+:,@="));
    for (const std::string& option : script.directives)
        if (!option.starts_with("--") || option.find('\n') != std::string::npos)
            return absl::InvalidArgumentError(
                "--sbatch: \"" + option + "\" is no option of sbatch; write --sbatch=--NAME=VALUE");
    return absl::OkStatus();
}

std::string agentsScript(const SlurmScript& script) {
    return absl::StrCat(
        "#!/bin/bash\n# Agents for a Bulkhead controller that runs elsewhere; written by "
        "bulkheadctl.\n",
        directives(script), "set -u\numask 077\nstate=", script.folder,
        "\naddress=", shellQuoted(script.address), "\ncontroller=${1:-", script.controller, "}\n",
        agents(script), "\n");
}

std::string jobScript(const SlurmScript& script) {
    constexpr const char* kText = R"sh(#!/bin/bash
# A Bulkhead job: the controller on the first node, an agent on every node; written by bulkheadctl.
# Queued again, or submitted again, it goes on behind its last step.
@DIRECTIVES@#SBATCH --requeue
#SBATCH --signal=B:USR1@@BEFORE@
set -u
umask 077
state=@FOLDER@
address=@ADDRESS@
controller=${address//%N/$SLURMD_NODENAME}:@PORT@
spares=bulkhead-spare-$SLURM_JOB_ID
again=
ctl() { @BIN@/bulkheadctl --target "unix:$state/bulkhead.sock" "$@"; }
end_spares() { scancel --quiet --user="$(id -un)" --name="$spares"; }

end_spares  # those of before a requeue know another controller
# The controller; one that is killed starts again. Agents read its secret, control.token, in $state.
@BIN@/bulkheadd --role=all --agents=0 --on-term=leave --state-dir "$state" \
  --control-listen "0.0.0.0:${controller##*:}" &
daemon=$!
@AGENTS@ &
agents=$!
# Starts the job or goes on with it, tells Bulkhead of Slurm's nodes, and asks Slurm for a node in the
# place of a lost one.
ctl slurm follow --folder "$state" --spare-name "$spares" --spare-for "$controller" @JOB@ &
follower=$!
trap 'again=@AGAIN@; ctl stop --yes' USR1            # the time limit is near
trap 'kill "$follower" "$daemon" 2>/dev/null' TERM  # cancelled, or queued again
while kill -0 "$follower" 2>/dev/null; do wait "$follower"; done
wait "$follower"
code=$?
end_spares
kill "$agents" "$daemon" 2>/dev/null
wait
[ -z "$again" ] || scontrol requeue "$SLURM_JOB_ID"
exit "$code"
)sh";
    std::vector<std::string> words;
    for (const std::string& word : script.job) words.push_back(shellQuoted(word));
    return absl::StrReplaceAll(kText,
                               {{"@DIRECTIVES@", directives(script)},
                                {"@BEFORE@", absl::StrCat(script.checkpointBefore)},
                                {"@FOLDER@", script.folder},
                                {"@ADDRESS@", shellQuoted(script.address)},
                                {"@PORT@", script.port != 0 ? absl::StrCat(script.port)
                                                            : "$((20000 + SLURM_JOB_ID % 10000))"},
                                {"@BIN@", script.bin},
                                {"@AGENTS@", agents(script)},
                                {"@AGAIN@", script.untilDone ? "1" : ""},
                                {"@JOB@", absl::StrJoin(words, " ")}});
}

}  // namespace bulkhead::cli
