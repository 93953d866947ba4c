// SPDX-License-Identifier: Apache-2.0
#include "backend/model/command_text.h"
#include "backend/model/names.h"
#include "backend/model/parse_number.h"
#include "backend/model/rank_name.h"
#include "backend/model/units.h"

namespace bulkhead::model {
namespace {

std::string target(const FaultSpec& f) {
    if (f.shard >= 0) return concat("rank ", rankName({f.replica, f.shard}));
    return concat("replica ", f.replica);
}

std::string forHowLong(const FaultSpec& f) {
    if (f.durationMs == 0) return {};
    return concat(" for ", humanDuration(static_cast<double>(f.durationMs)));
}

std::string when(const FaultSpec& f) {
    if (f.atPhase.empty())
        return f.atStep == 0 ? std::string() : concat(" when step ", f.atStep, " begins");
    const std::string step = f.atStep == 0 ? "the current step" : concat("step ", f.atStep);
    return concat(" in the ", f.atPhase, " phase of ", step);
}

std::string deed(const FaultSpec& f) {
    switch (f.kind) {
        case FaultKind::kKillRank:
        case FaultKind::kKillReplica:
            return concat("Kill ", target(f));
        case FaultKind::kHang:
            return concat("Stop ", target(f), f.durationMs == 0 ? " for good" : forHowLong(f),
                          " (SIGSTOP)");
        case FaultKind::kSlow:
            return concat("Slow ", target(f), " down ", shortest(f.factor), " times",
                          forHowLong(f));
        case FaultKind::kCutNetwork:
            return concat("Cut the network of ", target(f),
                          f.durationMs == 0 ? " for good" : forHowLong(f));
        case FaultKind::kDelayNetwork:
            return concat("Delay the network of ", target(f), " by ",
                          humanDuration(static_cast<double>(f.delayMs)), forHowLong(f));
        case FaultKind::kFlipGradient:
            return concat("Flip a bit in the gradient of ", target(f));
        case FaultKind::kNanGradient:
            return concat("Put NaN into the gradient of ", target(f));
        case FaultKind::kFlipParameter:
            return concat("Flip a bit in a parameter of ", target(f));
        case FaultKind::kFillDisk:
            return concat("Fill the checkpoint disk of ", f.node, forHowLong(f));
        case FaultKind::kKillNode:
            return concat("Kill ", f.node, " with every rank on it");
    }
    return "Unknown fault";
}

/// Sets the one field that is called `key`, from text.
struct PolicySetter {
    std::string_view key;
    std::string_view text;
    std::vector<std::string_view> known;
    bool found = false;
    absl::Status status;

    template <class T>
    void operator()(std::string_view name, T& value) {
        known.push_back(name);
        if (name != key) return;
        found = true;
        if constexpr (std::is_enum_v<T>) {
            if (const auto named = enumFromName<T>(text))
                value = *named;
            else
                refuse(concat("one of ", joined(EnumNames<T>::kNames)));
        } else if constexpr (IsOptional<T>::value) {
            value = parseNumber<typename T::value_type>(text);
            if (!value && text != "auto") refuse("a whole number of 0 or more, or auto");
        } else {
            if (const auto number = parseNumber<T>(text))
                value = *number;
            else
                refuse("a whole number of 0 or more");
        }
    }

    void refuse(std::string_view expected) {
        status = absl::InvalidArgumentError(concat("policy ", key, ": expected ", expected,
                                                   ", found \"", shortened(text, 60), "\""));
    }
};

}  // namespace

std::string describe(const FaultSpec& fault) {
    return deed(fault) + when(fault);
}

std::string describe(const Action& a) {
    switch (a.kind) {
        case ActionKind::kDrain:
            return concat("Drain replica ", a.replica);
        case ActionKind::kCordon:
            return concat("Cordon ", a.node);
        case ActionKind::kUncordon:
            return concat("Uncordon ", a.node);
        case ActionKind::kHoldRejoin:
            return concat("Hold replica ", a.replica, " out once it is lost");
        case ActionKind::kReleaseRejoin:
            return concat("Let replica ", a.replica, " come back");
        case ActionKind::kRestartReplica:
            return concat("Restart replica ", a.replica);
        case ActionKind::kPause:
            return "Pause after the current step";
        case ActionKind::kResume:
            return "Resume";
        case ActionKind::kCheckpoint:
            return "Write a checkpoint of the next commit";
        case ActionKind::kStop:
            return "Stop with a checkpoint";
        case ActionKind::kStopNow:
            return "Stop without a checkpoint";
        case ActionKind::kSetPolicy:
            return concat("Set policy ", a.policy, " to ", a.value);
        case ActionKind::kChangeLayout:
            return "Move experts between shards";
        case ActionKind::kCaptureRouting:
            return concat("Tell how the next ", a.tokens, " tokens are routed");
        case ActionKind::kRuleExperts:
            return a.rules.empty()       ? "Pin and forbid no expert"
                   : a.rules.size() == 1 ? "Pin or forbid 1 expert"
                                         : concat("Keep to ", a.rules.size(), " pins and bans");
        case ActionKind::kDismissPlan:
            return concat("Dismiss the plan proposed after step ", a.step);
    }
    return "Unknown action";
}

absl::StatusOr<Policies> withPolicy(const Policies& policies, std::string_view key,
                                    std::string_view value) {
    Policies changed = policies;
    PolicySetter setter{key, value, {}, false, absl::OkStatus()};
    Policies::fields(changed, setter);
    if (!setter.found)
        return absl::InvalidArgumentError(
            concat("unknown policy \"", shortened(key, 60), "\"", hintFor(key, setter.known)));
    if (!setter.status.ok()) return setter.status;
    if (changed.minReplicas == 0)
        return absl::InvalidArgumentError("policy min_replicas: expected 1 or more, found 0");
    return changed;
}

}  // namespace bulkhead::model
