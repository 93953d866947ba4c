// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/fault.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bulkhead::simulation {
namespace {

std::string what(const Fault& f) {
    const std::string replica = absl::StrCat("r", f.replica);
    const std::string rank = absl::StrCat(replica, "s", f.shard);
    switch (f.kind) {
        case FaultKind::kKillRank:
            return absl::StrCat(rank, " is killed");
        case FaultKind::kKillReplica:
            return absl::StrCat("all ranks of ", replica, " are killed");
        case FaultKind::kCrashNode:
            return absl::StrCat("the node of ", replica, " loses power");
        case FaultKind::kHangRank:
            return absl::StrCat(rank, " hangs", f.duration == 0 ? " for good" : "");
        case FaultKind::kSlowRank:
            return absl::StrCat(rank, " computes ", f.parameter, " times slower");
        case FaultKind::kCutData:
            return absl::StrCat("the data network of ", replica, " is cut");
        case FaultKind::kCutDataOneWay:
            return absl::StrCat("data of ", replica, " no longer reaches r", f.other);
        case FaultKind::kCutControl:
            return absl::StrCat("the control connection of ", rank, " breaks");
        case FaultKind::kLoseUp:
            return absl::StrCat("what ", rank, " tells the coordinator is lost");
        case FaultKind::kLoseDown:
            return absl::StrCat("what the coordinator tells ", rank, " is lost");
        case FaultKind::kStall:
            return absl::StrCat("messages of ", rank, " wait");
        case FaultKind::kStorm:
            return absl::StrCat("a storm on the control links of ", replica);
        case FaultKind::kStormAll:
            return "a storm on every control link";
        case FaultKind::kIsolate:
            return absl::StrCat(replica, " is cut off from everybody");
        case FaultKind::kLoseInner:
            return absl::StrCat("messages between ", rank, " and its leader are lost");
        case FaultKind::kKillCoordinator:
            return "the coordinator is killed";
        case FaultKind::kKillCoordinatorLosingTail:
            return "the coordinator's machine loses power, and what was not synced";
        case FaultKind::kSlowDisk:
            return "the controller's disk is slow";
        case FaultKind::kKillAgent:
            return absl::StrCat("the agent of ", replica, "'s node is killed");
        case FaultKind::kFailStart:
            return absl::StrCat("the next start of ", replica, " will fail");
        case FaultKind::kFlipParameter:
            return absl::StrCat("a parameter bit flips in ", rank);
        case FaultKind::kFlipGradient:
            return absl::StrCat("a bit of the next gradient flips in ", rank);
        case FaultKind::kNanGradient:
            return absl::StrCat("the next gradients of ", rank,
                                " are not finite: ", gradientsNotFinite(f));
        case FaultKind::kPoisonSample:
            return "a sample that gives non-finite gradients lies ahead";
        case FaultKind::kOverflow:
            return "the next sum overflows";
        case FaultKind::kFailFetch:
            return absl::StrCat("the next fetch of ", replica, " fails");
        case FaultKind::kLoseDeltas:
            return absl::StrCat(replica, " forgets its deltas");
        case FaultKind::kFailCheckpoint:
            return absl::StrCat("the next checkpoint of ", replica, " fails");
        case FaultKind::kFailLayoutMove:
            return absl::StrCat("the next move of experts fails in ", replica);
        case FaultKind::kDrain:
            return absl::StrCat("operator: drain ", replica);
        case FaultKind::kHold:
            return absl::StrCat("operator: hold ", replica);
        case FaultKind::kRelease:
            return absl::StrCat("operator: release ", replica);
        case FaultKind::kRestart:
            return absl::StrCat("operator: restart ", replica);
        case FaultKind::kPause:
            return "operator: pause";
        case FaultKind::kCheckpoint:
            return "operator: checkpoint";
        case FaultKind::kPolicies:
            return "operator: other policies";
        case FaultKind::kChangeLayout:
            return "operator: move experts";
        case FaultKind::kFlipCopy:
            return absl::StrCat("a bit flips in the state that ", replica, " fetches next");
        case FaultKind::kHangCoordinator:
            return "the controller hangs";
        case FaultKind::kSecondCoordinator:
            return "a second controller is started";
        case FaultKind::kCutAgent:
            return absl::StrCat("the agent of ", replica, "'s node loses its connection",
                                f.parameter % 3 == 0   ? ", first what it says"
                                : f.parameter % 3 == 1 ? ""
                                                       : ", which the controller does not see");
        case FaultKind::kFullDisk:
            return f.parameter % 4 == 0 ? absl::StrCat("the disk of ", replica, "'s node is full")
                                        : "the controller's disk is full";
        case FaultKind::kFreezeNode:
            return absl::StrCat("the node of ", replica, " is frozen");
        case FaultKind::kLyingDisk:
            return "the controller's disk lies about what it has synced until its power is cut";
        case FaultKind::kDamageCheckpoint:
            return "a bit of the newest checkpoint flips";
    }
    return "?";
}

}  // namespace

std::string describe(const Fault& f) {
    std::string text = what(f);
    if (f.duration > 0) absl::StrAppendFormat(&text, ", for %d ms", f.duration / kMillisecond);
    if (f.trigger != Trigger::kNone)
        absl::StrAppend(&text, ", at the moment of ", std::string(enumName(f.trigger)));
    return text;
}

}  // namespace bulkhead::simulation
