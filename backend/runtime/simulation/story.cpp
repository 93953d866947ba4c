// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/story.h"

#include <deque>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bulkhead::simulation {
namespace {

constexpr size_t kLinesBeforeTheEnd = 70;

}  // namespace

std::string tellStory(uint64_t seed, const Setup& setup, const Minimised& minimised,
                      bool everything) {
    std::deque<std::string> lines;
    size_t leftOut = 0;
    const Verdict again = runTrial(
        seed, setup, minimised.schedule,
        [&](MonoNs when, const std::string& who, const std::string& what) {
            lines.push_back(absl::StrFormat("%10.3f ms  %-12s %s\n",
                                            static_cast<double>(when) / kMillisecond, who, what));
            if (everything || lines.size() <= kLinesBeforeTheEnd) return;
            lines.pop_front();
            ++leftOut;
        });
    const Options& o = setup.options;
    std::string out = absl::StrFormat(
        "seed %d: %d replicas and %d spares of %d shards on %d nodes, %s recovery, at least %d, "
        "parity %s, a hash takes %.2f ms\n",
        seed, o.replicas, o.spares, o.shards, setup.environment.nodes,
        std::string(enumName(o.policies.recovery)), o.policies.minReplicas,
        o.policies.parityEverySteps == kParityAuto
            ? "as it is cheap"
            : absl::StrCat("every ", o.policies.parityEverySteps, " steps"),
        setup.environment.hashMs);
    absl::StrAppend(
        &out, minimised.schedule.size(), " faults",
        minimised.trials > 0 ? absl::StrCat(" (fewest found, ", minimised.trials, " runs)") : "",
        ":\n");
    for (const Fault& f : minimised.schedule)
        absl::StrAppendFormat(&out, "%10.3f ms  %s\n",
                              static_cast<double>(f.at + kSecond) / kMillisecond, describe(f));
    absl::StrAppend(
        &out, "what happened",
        leftOut > 0 ? absl::StrCat(", less the first ", leftOut, " lines; --all shows them") : "",
        ":\n");
    for (const std::string& line : lines) out += line;
    absl::StrAppend(&out, "in the end: ", again.broken ? *again.broken : "all is well", "\n",
                    again.standing, "\n");
    return out;
}

}  // namespace bulkhead::simulation
